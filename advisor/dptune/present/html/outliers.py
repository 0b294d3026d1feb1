"""Late ranks as a map: a row for each host, and one for each dimension of the process groups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import mean

from dptune.advice import Report
from dptune.measured.outliers import OutlierFigures, RankLag
from dptune.present.amounts import ns_as_ms
from dptune.present.html import charts
from dptune.present.html.markup import Section, note, paragraph
from dptune.present.html.style import COLORS
from dptune.present.html.tables import table
from dptune.present.sections.outliers import COLUMNS, WORDS, row, sentences

_LEAST_HOSTS = 8  # of many: the first late ones, or some to compare with
_LATE = 0.1  # of the lag of the latest rank: with less, a host of many is not drawn
_LEAST_OPACITY = 0.06  # of a cell without lag: it is seen


def outliers(report: Report) -> Iterator[Section]:
    """The late ranks, what is said of outliers, and a cell for each rank of a host and each position in a group."""
    found = report.measured.known("outliers")
    if found is None:
        return
    hosts = {rank.rank: rank.known("host") for rank in report.measured.ranks}
    by_host: dict[str, list[RankLag]] = {}
    for rank in found.ranks:
        if host := hosts.get(rank.rank):
            by_host.setdefault(host, []).append(rank)
    most = max((rank.lag_ns for rank in found.ranks), default=0)
    words = sentences(report, found)
    if not most or (len(by_host) < 2 and not (words or found.late)):
        return
    lags = {host: max(rank.lag_ns for rank in ranks) for host, ranks in by_host.items()}
    latest = sorted(by_host, key=lambda host: -lags[host])[: charts.MOST_ROWS]
    if len(by_host) > charts.MOST_ROWS:
        latest = [host for place, host in enumerate(latest) if place < _LEAST_HOSTS or lags[host] >= _LATE * most]
    rows = [
        (host, charts.strip(_cells(by_host[host], most), f"Lateness on {host}")) for host in by_host if host in latest
    ]
    late = table(COLUMNS, [row(place) for place in found.late], "Late ranks")
    body = late + (note(WORDS) if late else "") + "".join(paragraph(sentence) for sentence in words)
    positions = list(_by_position(found, most, bool(rows)))
    cells = [*rows, *positions]
    if cells:
        by_position = ", and per position in process groups" if positions else ""
        body += charts.rows(cells, long_names=True)
        body += note(f"A cell per rank, by host{by_position}. The strongest has {ns_as_ms(most)} ms of own delay.")
    if len(by_host) > len(latest):
        body += note(f"{len(latest)} of {len(by_host):,} hosts, those with the latest ranks.")
    yield Section("outliers", f"Outliers among {len(found.ranks):,} ranks", "Outliers", body)


def _cells(ranks: Sequence[RankLag], most: int) -> Iterator[charts.Box]:
    for at, rank in enumerate(ranks):
        where = ", ".join(f"{dimension} {position}" for dimension, position in rank.positions.items())
        tooltip = f"rank {rank.rank}{f' ({where})' if where else ''}: {ns_as_ms(rank.lag_ns)} ms of own delay"
        yield _box(at, len(ranks), rank.lag_ns / most, tooltip)


def _by_position(found: OutlierFigures, most: int, by_host: bool) -> Iterator[tuple[str, str]]:
    """For each dimension the mean lag of the ranks at each position. `by_host`: each rank is shown by host already."""
    lags: dict[str, dict[int, list[int]]] = {}
    for rank in found.ranks:
        for dimension, position in rank.positions.items():
            lags.setdefault(dimension, {}).setdefault(position, []).append(rank.lag_ns)
    for dimension, by_position in lags.items():
        if not (by_host and len(by_position) == len(found.ranks)):  # the rows of hosts show each rank
            name = f"position in {dimension}"
            yield name, charts.strip(_of_positions(dimension, by_position, most), f"Lateness by {name}")


def _of_positions(dimension: str, lags: Mapping[int, Sequence[int]], most: int) -> Iterator[charts.Box]:
    for at, position in enumerate(sorted(lags)):
        lag_ns = mean(lags[position])
        tooltip = f"{dimension} {position}: {ns_as_ms(lag_ns)} ms of own delay, mean of {len(lags[position])} ranks"
        yield _box(at, len(lags), lag_ns / most, tooltip)


def _box(at: int, count: int, share: float, tooltip: str) -> charts.Box:
    opacity = _LEAST_OPACITY + (1 - _LEAST_OPACITY) * share
    return charts.Box(at / count, 0.96 / count, COLORS["communication"], tooltip, opacity)
