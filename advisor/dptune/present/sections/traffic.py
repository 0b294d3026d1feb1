"""What moves: collectives between ranks, copies between host and device, batches from the loader."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dptune.advice import Report
from dptune.measured import (
    CollectiveFigures,
    CopyFigures,
    CopySite,
    MatchBasis,
    Measured,
    Missing,
    NoiseFigures,
    ProcessGroupFigures,
)
from dptune.present.amounts import Hole, data, extrapolated, ns_as_ms, number, percent, several, shown, times
from dptune.present.lines import Line, heading, labelled, wrapped
from dptune.present.process_groups import group_name, group_rows
from dptune.present.sections.kernels import of_recording
from dptune.present.table import Cell, Column, table

COLLECTIVES = (
    Column("kind", right=False, least=14),
    Column("group", right=False, least=5),
    Column("ranks"),
    Column("type", right=False, least=8),
    Column("message"),
    Column("calls"),
    Column("ms"),
    Column("transfer"),
    Column("GB/s"),
)
_COPIES = (
    Column("direction", right=False),
    Column("memory", right=False),
    Column("copies"),
    Column("moved"),
    Column("ms"),
    Column("exposed"),
    Column("GB/s"),
    Column("blocking"),
)
DIRECTIONS = {
    "h2d": "host to device",
    "d2h": "device to host",
    "d2d": "on the device",
    "p2p": "device to device",
    "h2h": "on the host",
    "unknown": "unknown",
}
_ON_DEVICES = ("d2d", "p2p")
_DOUBTS: dict[MatchBasis, str] = {
    "order": " Calls without a sequence number are matched across ranks by order.",
    "shift": " ~ approximate: ranks recorded different calls, matched by the best alignment of kinds and sizes.",
}
_AT_MOST = 12
_SITES = 3  # places that are shown of each kind of copy


def collectives(report: Report, width: int) -> Iterator[Line]:
    """Collectives: how many, how big, how long."""
    yield from heading(f"Collectives{of_recording(report.measured)} (traced times)", width)
    try:
        found = report.measured.collectives
    except Missing as missing:
        yield from wrapped(str(Hole(missing.reason)), width, "  ")
        return
    if not found:
        yield from wrapped(_none(report.measured), width, "  ")
        return
    parallel = report.measured.process_groups
    yield from table(COLLECTIVES, [collective(row, parallel) for row in found[:_AT_MOST]], width)
    if len(found) > _AT_MOST:
        more = several(len(found) - _AT_MOST, "more kind and size", "more kinds and sizes")
        yield from wrapped(f"and {more}: see --format json", width, "  ", role="dim")
    yield from wrapped(collective_words(report.measured, found[:_AT_MOST]), width, "  ", role="dim")
    if rows := group_rows(parallel):
        yield from wrapped("Process groups:", width, "  ")
        for row in rows:
            yield from wrapped(row, width, "    ", "      ")


def _none(measured: Measured) -> str:
    return "None in the recording." if measured.tables_of == "recording" else "None inside the steps."


def collective_words(measured: Measured, rows: Sequence[CollectiveFigures]) -> str:
    """What the columns of these rows mean."""
    in_groups = any(_calls(row) != row.calls_per_step for row in rows)
    per = "rank" if measured.tables_of == "recording" else "step and rank"
    words = (
        f"Calls are per {per}{' of the group' if in_groups else ''}. ms: median call duration, including "
        f"time spent waiting for late ranks. transfer: ms in which data moved, the shortest over ranks. GB/s: bus "
        f"bandwidth during the transfer (busbw of nccl-tests)."
    )
    bases = {row.known("matched") for row in rows if row.known("transfer_ns") is not None}
    return words + "".join(said for basis, said in _DOUBTS.items() if basis in bases)


def copies(report: Report, width: int) -> Iterator[Line]:
    """Copies by direction: how many, how fast, whether they block the script, and where they are issued."""
    measured = report.measured
    per = "rank" if measured.tables_of == "recording" else "step and rank"
    yield from heading(f"Copies{of_recording(measured)} (traced, per {per})", width)
    try:
        found = report.measured.copies
    except Missing as missing:
        yield from wrapped(str(Hole(missing.reason)), width, "  ")
        return
    if not found:
        yield from wrapped(_none(measured), width, "  ")
        return
    yield from table(_COPIES, [_copy(copy) for copy in found[:_AT_MOST]], width)
    words = (
        f"Per {per} (means). ms: sum of durations; exposed: ms not overlapped by compute or communication. "
        "GB/s: median of copies of at least 1 MiB (8 MiB on the device); ~ median of all copies, which latency "
        "lowers. blocking: copies that block the script until the data is copied or staged; copies of pinned memory "
        "with non_blocking=True do not."
    )
    yield from wrapped(words, width, "  ", role="dim")
    sites = [(copy, site) for copy in found[:_AT_MOST] for site in (copy.known("sites") or [])[:_SITES]]
    if sites:
        per = "" if measured.tables_of == "recording" else "per step of "
        title = f"Call sites ({per}rank {sites[0][1].rank}), most time first:"
        yield from wrapped(title, width, "  ")
    for copy, site in sites:
        yield from wrapped(_site(copy, site, _steps(report.measured, site)), width, "  ", "    ")


def data_loading(report: Report, width: int) -> Iterator[Line]:
    """Waiting for input, and micro-batches per optimizer step."""
    measured = report.measured
    wait, step = measured.input, measured.accumulation
    yield from heading("Input and batch", width)
    share = shown(lambda: wait.wait_share, lambda found: f"{percent(found)} of the step")
    time = shown(lambda: wait.wait_ns, lambda ns: f"{ns_as_ms(ns)} ms per step")
    window = "untraced steps" if wait.basis == "untraced" else "traced steps"
    said = str(share) if isinstance(share, Hole) else f"{share}; {time} (in the script, {window})"
    yield from labelled("Input wait", said, width, column=18, indent="  ")
    notes = ["inferred"] * measured.samples_inferred + [note for note in [extrapolated(measured)] if note]
    note = f" ({', '.join(notes)})" if notes else ""
    rows = [
        ("Samples", shown(lambda: measured.samples_per_step, lambda n: f"{n:,} per step over all ranks{note}")),
        ("Backward passes", shown(lambda: step.backwards_per_step, _per_step)),
    ]
    if measured.known("world_size") != 1:
        reduced = "all-reduced" if measured.known("shard_units") is None else "reduced"
        rows.append((f"  {reduced}", shown(lambda: step.synchronised_backwards_per_step, _per_step)))
    for label, text in rows:
        yield from labelled(label, str(text), width, column=18, indent="  ")
    noise = measured.known("noise")
    if noise is not None:
        yield from labelled("Noise scale", _noise(noise), width, column=18, indent="  ")


def _per_step(count: int) -> str:
    return f"{count:,} per step"


def _noise(noise: NoiseFigures) -> str:
    """`812 samples (690 to 1,010): beyond that, a larger global batch hardly helps convergence`."""
    low, high = (shown(read, lambda found: f"{found:,.0f}") for read in (lambda: noise.low, lambda: noise.high))
    scale = shown(lambda: noise.noise_scale, lambda found: f"{found:,.0f} samples")
    if isinstance(scale, Hole):
        return str(scale) if isinstance(low, Hole) else f"more than {low} samples; {scale}"
    between = f"{low} to {'no known bound' if isinstance(high, Hole) else high}"
    return f"{scale} ({between}): beyond that, a larger global batch hardly helps convergence"


def collective(row: CollectiveFigures, groups: Sequence[ProcessGroupFigures]) -> list[Cell]:
    """Cells of one row, in the order of `COLLECTIVES`."""
    about = "~" if row.known("matched") == "shift" else ""
    return [
        row.kind,
        shown(lambda: row.group, lambda name: group_name(name, groups)),
        shown(lambda: row.group_size, lambda ranks: f"{ranks:,}"),
        shown(lambda: row.dtype),
        shown(lambda: row.message_bytes, data),
        times(_calls(row)),
        ns_as_ms(row.median_ns),
        shown(lambda: row.transfer_ns, lambda ns: about + ns_as_ms(ns)),
        shown(lambda: row.busbw_gb_per_s, lambda rate: about + number(rate)),
    ]


def _calls(row: CollectiveFigures) -> float:
    """Per step and rank: of the group, where the trace names it."""
    of_group = row.known("calls_per_member")
    return row.calls_per_step if of_group is None else of_group


def _copy(copy: CopyFigures) -> list[Cell]:
    steps = copy.calls / copy.calls_per_step
    return [
        DIRECTIONS[copy.direction],
        _memory(copy),
        times(copy.calls_per_step),
        shown(lambda: copy.total_bytes, lambda size: data(round(size / steps))),
        ns_as_ms(copy.total_ns / steps),
        ns_as_ms(copy.exposed_ns / steps),
        _rate(copy),
        shown(lambda: copy.blocking_calls, lambda calls: times(calls / steps)),
    ]


def _memory(copy: CopyFigures) -> Cell:
    """Of the host: no copy between or within devices uses any."""
    memory = shown(lambda: copy.pinned, lambda pinned: "pinned" if pinned else "pageable")
    return (
        Hole(memory.reason, "does not apply") if isinstance(memory, Hole) and copy.direction in _ON_DEVICES else memory
    )


def _rate(copy: CopyFigures) -> Cell:
    if copy.known("large_gb_per_s") is not None:
        return number(copy.large_gb_per_s)
    return shown(lambda: copy.gb_per_s, lambda rate: f"~{number(rate)}")


def _steps(measured: Measured, site: CopySite) -> int:
    """How many steps of its rank a site was read from; 0 where that is not known."""
    if site.window == "detailed":
        return measured.step.detailed_steps
    ranks = (rank for rank in measured.ranks if rank.rank == site.rank)
    return len({step.number for rank in ranks for device in rank.devices for step in device.steps})


_SAME_CALLS = 0.005  # per step: fewer are not shown


def _site(copy: CopyFigures, site: CopySite, steps: int) -> str:
    size = shown(lambda: site.copy_bytes, data)
    where = [
        str(shown(lambda: site.operator)) if site.known("operator") else "no operator",
        *(f"in {module}" for module in [site.known("module")] if module),
        *(f"by {function}" for function in [site.known("function")] if function),
    ]
    noun = "copy" if site.calls_per_step == 1 else "copies"
    each = " in every step" if site.every_step else ""
    took = f" ({ns_as_ms(site.total_ns / steps)} ms)" if steps else ""
    blocking = site.blocking_calls / steps if steps and site.known("blocking_calls") else 0.0
    all_block = abs(blocking - site.calls_per_step) < _SAME_CALLS
    held = f", {times(blocking)} of them blocking" if blocking and not all_block else ""
    if all_block:
        noun = f"blocking {noun}"
    memory = shown(lambda: copy.pinned, lambda pinned: " pinned" if pinned else " pageable")
    return (
        f"{DIRECTIONS[copy.direction]}{memory if isinstance(memory, str) else ''}: {' '.join(where)}, "
        f"{times(site.calls_per_step)} {noun} of {size if isinstance(size, str) else 'unknown size'}"
        f"{each}{held}{took}"
    )
