"""What late ranks have in common: a host, hosts whose names start alike, or a position in their process groups."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from dptune.measure.views import RankView
from dptune.measured import ProcessGroupFigures
from dptune.measured.outliers import PlaceKind

_MOST_OF = 0.8  # of the ranks of a place that must be late, for the place to be called late
_NUMBER = re.compile(r"\d+(?=\D*$)")  # the last one in a name


class Place(NamedTuple):
    """Ranks of the run that share something."""

    kind: PlaceKind
    name: str
    ranks: frozenset[int]


def places(hosts: Mapping[int, str], positions: Mapping[int, Mapping[str, int]]) -> list[Place]:
    """The places of a run that hold two ranks or more, and not all; `hosts` of ranks whose host is known.

    Racks and switches are not in traces: hosts are put together by what their names start with, before the last number.
    """
    everything = hosts.keys() | positions.keys()
    by_host: dict[str, set[int]] = defaultdict(set)
    by_start: dict[str, dict[str, set[int]]] = defaultdict(dict)
    for rank, host in hosts.items():
        by_host[host].add(rank)
    for host, ranks in by_host.items():
        by_start[_NUMBER.split(host)[0]][host] = ranks
    by_position: dict[str, set[int]] = defaultdict(set)
    for rank, dimensions in positions.items():
        for dimension, position in dimensions.items():
            by_position[f"{dimension} {position}"].add(rank)
    found = [Place("host", host, frozenset(ranks)) for host, ranks in by_host.items()]
    found += [
        Place("hosts", f"{start}*", frozenset().union(*same.values()))
        for start, same in by_start.items()
        if start and len(same) > 1 and len(by_start) > 1
    ]
    found += [Place("position", name, frozenset(ranks)) for name, ranks in by_position.items()]
    return [place for place in found if 1 < len(place.ranks) < len(everything)]


def shared(late: Iterable[int], known: Sequence[Place]) -> list[Place]:
    """The late ranks by place: first the place that explains most of them, then of the rest; last single ranks.

    A place explains its late ranks where most of its ranks are late. Of places that explain the same number, the one
    with the fewest ranks counts, and a host before hosts before a position.
    """
    left = set(late)
    found = []
    order = ("host", "hosts", "position")
    while True:
        fitting = [
            (-len(place.ranks & left), len(place.ranks), order.index(place.kind), place.name, place)
            for place in known
            if len(place.ranks & left) > 1 and len(place.ranks & left) >= _MOST_OF * len(place.ranks)
        ]
        if not fitting:
            break
        best = min(fitting)[-1]
        found.append(best._replace(ranks=best.ranks & left))
        left -= best.ranks
    return [*found, *(Place("rank", str(rank), frozenset((rank,))) for rank in sorted(left))]


def positions(views: Iterable[RankView], groups: Sequence[ProcessGroupFigures]) -> dict[int, dict[str, int]]:
    """By rank, its place in its process group of each dimension (tensor, pipeline, data, ...), counted from 0.

    Groups of which the dimension is not known, or that have two dimensions, place nobody.
    """
    dimensions = {group.name: known[0] for group in groups if (known := group.known("dimensions")) and len(known) == 1}
    found: dict[int, dict[str, int]] = {}
    for view in views:
        for name, group in view.trace.distributed.groups.items():
            if name in dimensions and view.rank in group.ranks and len(group.ranks) > 1:
                found.setdefault(view.rank, {})[dimensions[name]] = group.ranks.index(view.rank)
    return found
