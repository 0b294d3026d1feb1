"""Of many ranks, those that differ: late ranks by host and position, slow GPUs, slow links, unsteady hosts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dptune.advice import Report
from dptune.measured.outliers import LatePlace, OutlierFigures
from dptune.present.amounts import Hole, data, ns_as_ms, percent, several
from dptune.present.lines import Line, heading, wrapped
from dptune.present.table import Cell, Column, table
from dptune.runfile.ranks import spans

_AT_MOST = 8  # rows of each kind
_MOST_NAMES = 4
COLUMNS = (
    Column("late ranks", right=False, least=10),
    Column("where", right=False, least=8),
    Column("own delay ms"),
    Column("of steps"),
    Column("cause", right=False, least=18),
)
WORDS = (
    "own delay: how late the ranks arrive at collectives because of their own work, mean over steps; of steps: the "
    "share of steps with such a delay. Late ms, in the rank table, is of the median step and includes delays that "
    "other ranks cause."
)
_NO_HOST = Hole("the trace does not name the host")
_WHERE = {"host": "host {}", "hosts": "hosts {}", "position": "{}"}


def outliers(report: Report, width: int) -> Iterator[Line]:
    """Nothing where ranks are not compared, or nothing differs."""
    found = report.measured.known("outliers")
    if found is None or not (found.late or found.slow_devices or found.slow_links or found.unsteady_hosts):
        if found is not None and found.take_turns:
            yield from heading(f"Outliers among {len(found.ranks):,} ranks", width)
            yield from wrapped(_turns(found), width, "  ")
        return
    yield from heading(f"Outliers among {len(found.ranks):,} ranks", width)
    yield from table(COLUMNS, [row(place) for place in found.late[:_AT_MOST]], width)
    yield from _more(found.late, width)
    if found.late:
        yield from wrapped(WORDS, width, "  ", role="dim")
    for words in sentences(report, found):
        yield from wrapped(words, width, "  ", "    ")


def sentences(report: Report, found: OutlierFigures) -> list[str]:
    """What is said of them beside the table of late ranks."""
    turns = _turns(found) if found.take_turns and not found.late else ""
    gains = _gains(report, found)
    return [words for words in (turns, gains, _devices(found), *_links(found), *_unsteady(found)) if words]


def row(place: LatePlace) -> list[Cell]:
    """Ranks that are late together."""
    where = _WHERE[place.kind].format(place.place) if place.kind in _WHERE else next(iter(place.hosts), _NO_HOST)
    cause = place.known("cause") or "unknown"
    return [spans(place.ranks), where, ns_as_ms(place.lag_ns), percent(place.late_share), cause]


def _more(rows: Sequence[object], width: int) -> Iterator[Line]:
    if len(rows) > _AT_MOST:
        more = f"and {several(len(rows) - _AT_MOST, 'more row')}: see --format json"
        yield from wrapped(more, width, "  ", role="dim")


def _turns(found: OutlierFigures) -> str:
    return (
        f"The latest rank has an own delay of {ns_as_ms(found.latest_ns)} ms in the mean step, but no rank stands out: "
        f"{several(found.latest_ranks, 'rank')} take turns. Likely cause: the work of each step (samples of "
        "different size, garbage collection, other processes), not single hosts or GPUs."
    )


def _gains(report: Report, found: OutlierFigures) -> str:
    """What the steps gain without the slowest ranks; of one rank that a recommendation replays, its saving."""
    if not found.gains:
        return ""
    alone = found.gains[0].ranks if len(found.gains) == 1 else []
    for advice in report.advice if len(alone) == 1 else ():
        if advice.title.startswith(f"Rank {alone[0]} ") and advice.saves and advice.saves.basis == "replayed":
            return f"For the saving without the delays of rank {alone[0]}, see {advice.rule}."
    parts = [f"{percent(gain.share)} shorter without the delays of {_who(gain.ranks)}" for gain in found.gains]
    return (
        f"Replayed with the slowest ranks as fast as the median rank, a step is up to {', '.join(parts)}. The replay "
        "leaves out host launches, which can limit the saving."
    )


def _who(ranks: Sequence[int]) -> str:
    if len(ranks) > _MOST_NAMES:
        return f"the {len(ranks):,} slowest ranks"
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {spans(ranks)}"


def _devices(found: OutlierFigures) -> str:
    """Slow GPUs: by host where there are several on one."""
    if not found.slow_devices:
        return ""
    by_host: dict[str, list[tuple[int, float]]] = {}
    for device in found.slow_devices:
        by_host.setdefault(device.host, []).append((device.rank, device.times))
    parts = []
    for host, slow in list(by_host.items())[:_AT_MOST]:
        on = f" on {host}" if host else ""
        parts.append(f"{_who(sorted(rank for rank, _ in slow))}{on} ({slow[0][1]:.2f}x)")
    more = f" and {len(by_host) - _AT_MOST} more hosts" if len(by_host) > _AT_MOST else ""
    return f"Slow GPUs (time of the same kernels relative to the median rank): {'; '.join(parts)}{more}."


def _links(found: OutlierFigures) -> Iterator[str]:
    """Slow links: the groups, and the hosts that they share."""
    for link in found.slow_links[:_AT_MOST]:
        where = f" ({', '.join(link.hosts[:_MOST_NAMES])}{', ...' if len(link.hosts) > _MOST_NAMES else ''})"
        yield (
            f"Slow link: {link.kind} of {data(link.message_bytes)} among ranks {spans(link.ranks)}"
            f"{where if link.hosts else ''} takes {ns_as_ms(link.transfer_ns)} ms to transfer, "
            f"but {ns_as_ms(link.others_ns)} ms in similar groups ({link.times:.1f}x)."
        )
    if len(found.slow_links) > _AT_MOST:
        yield f"and {several(len(found.slow_links) - _AT_MOST, 'more slow group')}: see --format json"
    if len(found.slow_links) > 1 and found.slow_link_hosts:
        hosts = ", ".join(found.slow_link_hosts[:_MOST_NAMES])
        yield f"All slow groups include {hosts}, and no other group of the same kind does."


def _unsteady(found: OutlierFigures) -> Iterator[str]:
    for unsteady in found.unsteady_hosts[:_MOST_NAMES]:
        yield (
            f"Unsteady host: the ranks of {unsteady.host} ({spans(unsteady.ranks)}) are {ns_as_ms(unsteady.spread_ns)} "
            "ms later at the 90th percentile of steps than in their median step."
        )
