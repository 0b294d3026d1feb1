"""How fast the links between ranks are: latency and bandwidth, from the run itself and from a sweep."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dptune.advice import Report
from dptune.measured import LinkFigures, Missing
from dptune.present.amounts import Hole, data, number, several, shown
from dptune.present.lines import BLANK, Line, heading, wrapped
from dptune.present.table import Cell, Column, table
from dptune.runfile.link_age import age, in_words
from dptune.runfile.links import KindTimes, LinkRecord, SizeTimes

_COLUMNS = (
    Column("kind", right=False, least=14),
    Column("group", right=False, least=5),
    Column("ranks", right=False, least=5),
    Column("hosts", right=False),
    Column("sizes"),
    Column("alpha us"),
    Column("GB/s"),
    Column("low"),
    Column("high"),
    Column("peak"),
    Column("confidence", right=False),
)
_GROUP, *_ = _PLACES = (1, 2, 3)  # columns that say between which ranks: named once where all rows share them
_TIMES = (
    Column("kind", right=False),
    Column("message"),
    Column("ms"),
    Column("quarter below"),
    Column("quarter above"),
    Column("calls"),
)
_HOSTS = {"intra-node": "one", "inter-node": "many", "unknown": "?"}
_BASES = {"trace": "From the run's own collectives:", "sweep": "By a sweep of `dptune links`:"}
_AT_MOST = 12


def links(report: Report, width: int) -> Iterator[Line]:
    """Latency and bandwidth between ranks, by kind and group."""
    yield from heading("Links: latency and bandwidth between ranks", width)
    try:
        found = report.measured.links
    except Missing as missing:
        yield from wrapped(str(Hole(missing.reason)), width, "  ")
        return
    for basis, said in _BASES.items():
        basis_links = [link for link in found if link.basis == basis]
        if basis_links and not _fitted(basis_links):
            yield from wrapped(_unfitted(basis_links, len(basis_links) < len(found)), width, "  ")
        elif basis_links:
            yield from wrapped(said, width, "  ")
            yield from _table(basis_links[:_AT_MOST], width)
            if len(basis_links) > _AT_MOST:
                more = several(len(basis_links) - _AT_MOST, "more group")
                yield from wrapped(f"and {more}: see --format json", width, "  ", role="dim")
    if not _fitted(found):
        return
    yield from _legend(width)
    if any(link.scope_inferred for link in found):
        words = (
            "~: one host is inferred from consecutive ranks on consecutive GPUs (medium confidence); the peak assumes "
            "it."
        )
        yield from wrapped(words, width, "  ", role="dim")
    shared = sum(link.shared_calls for link in found)
    if shared:
        said = f"{several(shared, 'call')} excluded: they overlapped another collective of the same ranks."
        yield from wrapped(said, width, "  ", role="dim")
    for source, measured in dict.fromkeys((link.source, link.measured) for link in found if link.basis == "sweep"):
        made = f"Sweep: {source}, measured {measured or 'at an unknown time'}{_age(measured, report.run.recorded)}."
        yield from wrapped(made, width, "  ", role="dim")


def swept(found: Sequence[LinkFigures], record: LinkRecord, width: int) -> Iterator[Line]:
    """What `dptune links` prints: between whom, each time, and the fits."""
    hosts = several(len(set(record.hosts)), "host")
    what = f"{several(record.world_size, 'rank')} on {hosts}, {record.backend}, torch {record.torch}"
    yield from wrapped(f"Links between {what} ({', '.join(dict.fromkeys(record.devices))})", width, role="strong")
    yield BLANK
    yield from table(
        _TIMES, [row for kind_times in record.kinds for row in _times(kind_times, kind_times.sizes)], width
    )
    queued = [row for kind_times in record.kinds for row in _times(kind_times, kind_times.queued)]
    if queued:
        yield from heading("Per call, when many are queued back to back (like DDP buckets)", width)
        yield from table(_TIMES, queued, width)
    yield from heading("Latency and bandwidth", width)
    measured = [link for link in found if link.sizes]
    if _fitted(measured):
        yield from _table(measured, width)
        yield from _legend(width)
    else:
        yield from wrapped(_unfitted(measured), width, "  ")
    for kind in record.kinds:
        if kind.left_out:
            yield from wrapped(f"{kind.kind}: {kind.left_out}", width, "  ", role="warning")


def _age(measured: str, recorded: str | None) -> str:
    """How long before the run the sweep was made, where it was."""
    old = in_words(age(measured, recorded or ""))
    return f", {old} before this run" if old else ""


def _fitted(found: Sequence[LinkFigures]) -> bool:
    return any(link.known("alpha_us") is not None for link in found)


def _unfitted(found: Sequence[LinkFigures], swept_too: bool = False) -> str:
    """Why there is nothing to show, and what would show it; `swept_too`: that was done."""
    why = "; ".join(dict.fromkeys(link.missing["alpha_us"] for link in found))
    if found[0].basis == "sweep":
        return f"No fit from the sweep: {why}."
    measure = "" if swept_too else " Run `dptune links` to measure the link."
    return f"No fit from the run's own collectives: {why}.{measure}"


def _table(found: Sequence[LinkFigures], width: int) -> Iterator[Line]:
    rows = [_row(link) for link in found]
    alike = {at for at in _PLACES if len({row[at] for row in rows}) == 1 and isinstance(rows[0][at], str)}
    left_out = alike if len(rows) > 1 else set()
    shared = ", ".join(f"{_COLUMNS[at].heading} {rows[0][at]}" for at in sorted(left_out))
    if found[0].basis == "sweep":  # it makes a group of its own
        left_out.add(_GROUP)
    kept = [at for at in range(len(_COLUMNS)) if at not in left_out]
    yield from table([_COLUMNS[at] for at in kept], [[row[at] for at in kept] for row in rows], width)
    if shared:
        yield from wrapped(f"All rows: {shared}.", width, "  ", role="dim")


def _legend(width: int) -> Iterator[Line]:
    words = (
        "Model: time = alpha + bytes / beta. GB/s is beta as bus bandwidth (busbw of nccl-tests), low and high the "
        "interval that the measurements allow; peak is a GPU's maximum in one direction. Confidence is low where "
        "measurements deviate from the fit."
    )
    yield from wrapped(words, width, "  ", role="dim")


def _row(link: LinkFigures) -> list[Cell]:
    return [
        link.kind,
        shown(lambda: link.group),
        _ranks(link.ranks),
        f"{'~' if link.scope_inferred else ''}{_HOSTS[link.scope]}",
        f"{len(link.sizes)}",
        shown(lambda: link.alpha_us, number),
        shown(lambda: link.busbw_gb_per_s, _bandwidth),
        shown(lambda: link.busbw_low_gb_per_s, _bandwidth),
        shown(lambda: link.busbw_high_gb_per_s, _bandwidth),
        shown(lambda: link.peak_gb_per_s, number),
        shown(lambda: link.confidence),
    ]


def _times(kind: KindTimes, sizes: Sequence[SizeTimes]) -> Iterator[list[Cell]]:
    """A row for each size of a kind: milliseconds of one call."""
    for size in sizes:
        times = (number(seconds * 1e3) for seconds in (size.median_s, size.q1_s, size.q3_s))
        yield [kind.kind, data(size.message_bytes), *times, f"{size.calls:,}"]


def _ranks(ranks: Sequence[int]) -> str:
    """Ranks that follow each other as a span."""
    if len(ranks) > 2 and list(ranks) == list(range(ranks[0], ranks[0] + len(ranks))):
        return f"{ranks[0]}-{ranks[-1]}"
    return ",".join(map(str, ranks))


def _bandwidth(value: float) -> str:
    """GB/s, with three digits also where it is slow: 0.0123."""
    return f"{value:.3g}" if value < 1 else number(value)
