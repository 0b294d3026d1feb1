"""Process groups whose collectives transfer longer than the same collectives of groups like them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from dptune.measure.communication.matching import MatchedCollective
from dptune.measure.outliers.thresholds import upper_limit
from dptune.measured.outliers import SlowLink

LEAST_TIMES = 1.5  # of the median transfer: what shares a link with other traffic varies by less than that
_LEAST_GROUPS = 4
_LEAST_CALLS = 3  # of each group: the median of fewer says little
_LEAST_BYTES = 64 * 1024  # smaller messages measure latency, and the last rank's own launch


class _Kind(NamedTuple):
    """Collectives that take equally long on equal links."""

    kind: str
    message_bytes: int
    ranks: int
    hosts: int


def slow_links(collectives: Sequence[MatchedCollective], hosts: Mapping[int, str]) -> tuple[list[SlowLink], list[str]]:
    """The groups with slow links, the slowest first; and the hosts that all of them and no other group include."""
    transfers: dict[_Kind, dict[tuple[int, ...], list[int]]] = defaultdict(lambda: defaultdict(list))
    for collective in collectives:
        if collective.splits and collective.message_bytes is not None and collective.message_bytes >= _LEAST_BYTES:
            ranks = tuple(collective.ranks.tolist())
            spanned = len({hosts.get(rank, "") for rank in ranks})
            kind = _Kind(collective.kind, collective.message_bytes, len(ranks), spanned)
            transfers[kind][ranks].append(collective.transfer_ns)
    slow: dict[tuple[int, ...], SlowLink] = {}
    usual: set[str] = set()
    for kind, by_group in transfers.items():
        medians = {ranks: float(np.median(times)) for ranks, times in by_group.items() if len(times) >= _LEAST_CALLS}
        if len(medians) < _LEAST_GROUPS:
            continue
        middle = float(np.median(list(medians.values())))
        limit = upper_limit(np.array(list(medians.values())), LEAST_TIMES * middle)
        with_slow = any(transfer_ns >= limit for transfer_ns in medians.values())
        for ranks, transfer_ns in medians.items():
            names = sorted({hosts[rank] for rank in ranks if rank in hosts})
            if transfer_ns < limit:
                usual.update(names if with_slow else ())
                continue
            link = SlowLink(
                ranks=list(ranks),
                hosts=names,
                kind=kind.kind,
                message_bytes=kind.message_bytes,
                transfer_ns=round(transfer_ns),
                others_ns=round(middle),
            )
            if ranks not in slow or link.message_bytes > slow[ranks].message_bytes:
                slow[ranks] = link
    found = sorted(slow.values(), key=lambda link: (-link.times, link.ranks))
    common = set.intersection(*(set(link.hosts) for link in found)) - usual if found else set()
    return found, sorted(common)
