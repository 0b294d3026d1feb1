"""Units of FSDP: what each pass sends for them, what of it is exposed, and what compute could hide it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dptune.advice import Report
from dptune.measured import Missing, Pass, ProcessGroupFigures, ShardPolicy, ShardUnits, UnitFigures, UnitGroup
from dptune.measured.figure import digits
from dptune.measured.shard_units import SHARDED
from dptune.present.amounts import Hole, data, ns_as_ms, percent, several, shown
from dptune.present.lines import Line, heading, wrapped
from dptune.present.process_groups import group_name, rank_list
from dptune.present.table import Cell, Column, table

TITLE = "FSDP units (ms per rank and step, traced)"
_AT_MOST = 8
_TIMES = (Column("hidden"), Column("exposed"), Column("waiting"))
_HIDEABLE = Column("hideable")
_SUMS = (Column("collectives", right=False), Column("units"), Column("size"))
_UNITS = (Column("unit", right=False, least=8), Column("collectives", right=False), Column("size"))
_WORDS = (
    "Where collectives overlap, the shared time counts only for the one that started first. Size: one call of each "
    "unit. Ahead: gathers issued before the previous unit started."
)
_WAITING_WORDS = " Waiting: the part of exposed spent waiting for late ranks."
_HIDEABLE_WORDS = (
    " Hideable: exposed time, without waiting where that is known, that compute of the unit before (gathers) or after "
    "(reduces) could overlap."
)
_GROUPS = (
    Column("process group", right=False, least=8),
    Column("ranks", right=False, least=5),
    Column("collectives", right=False),
    Column("waiting"),
    Column("waited for", right=False),
)
Table = tuple[Sequence[Column], list[list[Cell]]]
_MOSTLY = 0.5  # of the gathers of a pass, that are issued ahead
_SMALL = 0.02  # of the compute of a pass: less exposed communication needs no reason
_KINDS = {"all_gather": "gather", "reduce_scatter": "reduce", "all_reduce": "all-reduce"}
_USUAL_PREFETCH = "BACKWARD_PRE"  # of FullyShardedDataParallel
_NUMBERED = " #N: the Nth unit that forward passes run; neither the trace nor the recording names units."


def fsdp(report: Report, width: int) -> Iterator[Line]:
    """The passes with all units together, then the units that are exposed most. Nothing of a run without FSDP."""
    found = report.measured.known("shard_units")
    if found is None:
        if why := no_table(report):
            yield from heading(TITLE, width)
            yield from wrapped(why, width, "  ")
        return
    yield from heading(TITLE, width)
    for gap in gaps(report, found):
        yield from wrapped(gap, width, "  ", "    ", role="warning")
    for policy in found.policies:
        yield from wrapped(policy_words(policy), width, "  ", "    ")
    yield from table(*sums(report, found), width)
    most = sorted((row for row in found.rows if row.exposed_ns), key=lambda row: -row.exposed_ns)[:_AT_MOST]
    in_order = [row for row in found.rows if row in most]
    yield from table(*units(report, found, in_order), width)
    if len(in_order) < len(found.rows):
        left = several(len(found.rows) - len(in_order), "row") + " with less exposed time: see --format json"
        yield from wrapped(left, width, "  ", role="dim")
    if len(found.groups) > 1:
        yield from table(*groups(report, found), width)
        if (more := len(found.groups) - _AT_MOST) > 0:
            yield from wrapped(
                f"{several(more, 'group')} with less waiting: see --format json", width, "  ", role="dim"
            )
    for remark in remarks(report, found):
        yield from wrapped(remark, width, "  ", "    " if _on_gpu(report) else "  ")
    yield from wrapped(words(report, found), width, "  ", role="dim")


def no_table(report: Report) -> str:
    """Why the collectives of FSDP's hooks are not listed by unit; empty where they are, or where there are none."""
    if report.measured.known("shard_units") is not None:
        return ""
    why, sharding = report.measured.missing["shard_units"], report.measured.known("sharding")
    if not why.startswith(SHARDED) and (sharding is None or not sharding.communication_ns):
        return ""
    return f"No table by unit: {why}. The section Collectives lists FSDP's collectives by kind and size."


def gaps(report: Report, found: ShardUnits) -> Iterator[str]:
    """What the traces do not show of the units, in sentences."""
    of_all = report.measured.known("world_size") or 0
    if len(found.ranks) < of_all:
        read = f"rank {found.ranks[0]:,}" if len(found.ranks) == 1 else rank_list(found.ranks)
        yield f"Partial data: figures are from {read} only; the run has {of_all:,} ranks."
    yield from (f"Partial data: {gap}." for gap in found.unseen)


def sums(report: Report, found: ShardUnits) -> Table:
    """The passes with all units together."""
    kinds = list(dict.fromkeys((row.direction, row.kind) for row in found.rows))
    by_kind = [[row for row in found.rows if (row.direction, row.kind) == key] for key in kinds]
    cells = [
        [
            _name(rows[0]),
            str(len(rows)),
            _size(rows),
            *_times(report, found, rows),
            "" if found.unseen else _issued(rows),
        ]
        for rows in by_kind
    ]
    return (*_SUMS, *_columns(report), Column("ahead")), cells


def units(report: Report, found: ShardUnits, rows: Sequence[UnitFigures]) -> Table:
    """These units, by themselves."""
    cells = [[row.unit or "(root)", _name(row), _size([row]), *_times(report, found, [row])] for row in rows]
    return (*_UNITS, *_columns(report)), cells


def groups(report: Report, found: ShardUnits) -> Table:
    """The process groups in which ranks wait longest, and for whom."""
    most = sorted(found.groups, key=lambda group: -group.waiting_ns)[:_AT_MOST]
    return _GROUPS, [_waits(group, report.measured.process_groups) for group in found.groups if group in most]


def _waits(group: UnitGroup, parallel: Sequence[ProcessGroupFigures]) -> list[Cell]:
    return [
        group_name(group.name, parallel),
        rank_list(group.ranks).removeprefix("ranks "),
        ", ".join(_KINDS.get(kind, kind) for kind in group.kinds),
        ns_as_ms(group.waiting_ns),
        shown(lambda: group.waited_for, lambda rank: f"rank {rank:,} ({percent(group.waited_share)})"),
    ]


def remarks(report: Report, found: ShardUnits) -> Iterator[str]:
    """Why passes expose communication, who is waited for, how far units are gathered ahead."""
    if _on_gpu(report):
        for direction in dict.fromkeys(row.direction for row in found.rows):
            yield _why(found, direction)
    else:
        yield "On a CPU, FSDP's collectives block the script: no compute hides them."
    if not found.unseen:
        yield from filter(None, (_repeated(found), _waited_for(found), _ahead(found)))


def words(report: Report, found: ShardUnits) -> str:
    """What the columns mean."""
    waits = any(row.known("waiting_ns") is not None for row in found.rows)
    columns = _WORDS + (_WAITING_WORDS if waits else "") + (_HIDEABLE_WORDS if _on_gpu(report) else "")
    return columns + (_NUMBERED if found.numbered else "")


def _on_gpu(report: Report) -> bool:
    return report.measured.known("device_kind") != "cpu"


def _columns(report: Report) -> tuple[Column, ...]:
    return (*_TIMES, _HIDEABLE) if _on_gpu(report) else _TIMES


def policy_words(policy: ShardPolicy) -> str:
    """How one line shards its units, in torch's names; what is torch's default is left out."""
    modules = ", ".join(name.removeprefix("FSDP") for name in policy.modules)
    where = f" at {policy.where}" if policy.where else ""
    largest = f", the largest {data(policy.largest_bytes)}" if policy.largest_bytes else ""
    flat = policy.flat
    settings = {
        "sharding_strategy": flat.sharding_strategy if flat else None,
        "reshard_after_forward": None if flat else policy.reshard_after_forward,
        "param_dtype": policy.parameter_dtype,
        "reduce_dtype": policy.reduce_dtype,
        "cpu_offload" if flat else "offload_policy": policy.offload,
        "forward prefetch": policy.forward_prefetch or None,
        "backward prefetch": policy.backward_prefetch or None,
        "forward_prefetch": True if flat and flat.forward_prefetch else None,
        "backward_prefetch": flat.backward_prefetch or "None" if flat else None,
        "limit_all_gathers": False if flat and not flat.limit_all_gathers else None,
    }
    if flat and flat.backward_prefetch == _USUAL_PREFETCH:
        del settings["backward_prefetch"]
    given = ", ".join(f"{name}={value}" for name, value in settings.items() if value is not None)
    mesh = "x".join(map(str, policy.mesh))
    return f"{several(policy.units, 'unit')} ({modules}){where}{largest}: mesh {mesh}, {given or 'defaults'}."


def _why(found: ShardUnits, direction: Pass) -> str:
    """Why communication of a pass is exposed: more of it than compute, or gathers that are not issued ahead."""
    rows, steps = [row for row in found.rows if row.direction == direction], found.rank_steps
    compute_ns = found.forward_compute_ns if direction == "forward" else found.backward_compute_ns
    sent_ns = sum(row.hidden_ns + row.sending_ns for row in rows)
    exposed_ns = sum(row.sending_ns for row in rows)
    split = all(row.known("waiting_ns") is not None for row in rows)
    sent = f"{_ms(sent_ns, steps)} ms of communication{' without waiting' if split else ', with waiting'}"
    if found.unseen:
        return f"{direction.capitalize()} passes: {sent}, of which {_ms(exposed_ns, steps)} ms are exposed."
    amounts = f"{direction.capitalize()} passes: {_ms(compute_ns, steps)} ms of compute, {sent}"
    if exposed_ns <= _SMALL * compute_ns:
        return f"{amounts}, of which {_ms(exposed_ns, steps)} ms are exposed."
    if sent_ns > compute_ns and not split:
        return f"{amounts}: how much stays exposed depends on how long ranks wait."
    if sent_ns > compute_ns:
        return (
            f"{amounts}: at least {_ms(sent_ns - compute_ns, steps)} ms stay exposed, even if every unit is prefetched."
        )
    gathers = [row for row in rows if row.known("prefetched_share") is not None]
    calls = sum(row.calls_per_step for row in gathers)
    ahead = sum(row.prefetched_share * row.calls_per_step for row in gathers)
    if ahead < _MOSTLY * calls:
        issued = f"only {percent(ahead / calls)} of gathers are" if ahead else "no gather is"
        return f"{amounts}: enough compute in total, but {issued} issued ahead."
    hideable_ns = sum(row.hideable_ns for row in rows)
    if hideable_ns < _MOSTLY * exposed_ns:
        return f"{amounts}: enough compute in total, but that of adjacent units is too short to hide collectives."
    return (
        f"{amounts}: {_ms(exposed_ns, steps)} ms are exposed although most gathers are issued ahead; compute of "
        f"adjacent units could hide {_ms(hideable_ns, steps)}."
    )


def _name(row: UnitFigures) -> str:
    return f"{row.direction} {_KINDS.get(row.kind, row.kind)}"


def _size(rows: Sequence[UnitFigures]) -> Cell:
    return shown(lambda: sum(row.message_bytes for row in rows), data)


def _times(report: Report, found: ShardUnits, rows: Sequence[UnitFigures]) -> list[Cell]:
    sums_ns = (
        lambda: sum(row.hidden_ns for row in rows),
        lambda: sum(row.exposed_ns for row in rows),
        lambda: sum(row.waiting_ns for row in rows),
        lambda: sum(row.hideable_ns for row in rows),
    )
    return [
        shown(sum_ns, lambda ns: _ms(ns, found.rank_steps))
        for sum_ns, _ in zip(sums_ns, _columns(report), strict=False)
    ]


def _issued(rows: Sequence[UnitFigures]) -> Cell:
    """The share of gathers that are issued ahead; empty of other collectives."""
    gathers = [row for row in rows if row.known("prefetched_share") is not None]
    calls = sum(row.calls_per_step for row in gathers)
    return percent(sum(row.prefetched_share * row.calls_per_step for row in gathers) / calls) if calls else ""


def _ms(sum_ns: int, steps: int) -> str:
    return ns_as_ms(sum_ns / max(1, steps))


def _repeated(found: ShardUnits) -> str:
    """How often units are gathered, where it is not once in a pass: several micro-batches, or evaluation."""
    often: dict[Pass, list[float]] = {}
    for row in found.rows:
        if row.kind == "all_gather":
            often.setdefault(row.direction, []).append(row.calls_per_step)
    if all(times == 1 for each in often.values() for times in each):
        return ""
    parts = (f"{_span(times)} in {direction} passes" for direction, times in often.items())
    return f"All-gathers of each unit per step: {', '.join(parts)} (forward passes include evaluation)."


def _span(times: Sequence[float]) -> str:
    low, high = digits(min(times)), digits(max(times))
    return low if low == high else f"{low} to {high}"


def _waited_for(found: ShardUnits) -> str:
    """The rank that most of the waiting is for; nothing where nobody waits. Of several groups a table shows it."""
    if any(row.known("waiting_ns") is None for row in found.rows):
        return ""
    rank = found.groups[0].known("waited_for") if len(found.groups) == 1 else None
    return "" if rank is None else f"{percent(found.groups[0].waited_share)} of the waiting is for rank {rank:,}."


def _ahead(found: ShardUnits) -> str:
    """How far units are gathered ahead, and what that holds in memory; nothing of units that are never gathered."""
    if not any(row.kind == "all_gather" for row in found.rows):
        return ""
    depths = f"Maximum prefetch depth: {several(found.forward_depth, 'unit')} in forward passes, "
    depths += f"{found.backward_depth:,} in backward passes."
    try:
        return f"{depths} Peak gathered parameters: {data(found.held_bytes)} of {data(found.whole_bytes)}."
    except Missing as missing:
        return f"{depths} Peak gathered parameters {Hole(missing.reason)}."
