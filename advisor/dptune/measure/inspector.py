"""Logs of NCCL Inspector matched over ranks: transfer and waiting, bandwidth, and who arrives last.

A collective has the same number in its communicator on every rank. No rank leaves a symmetric collective before the
last has arrived, so the shortest time over the ranks is the transfer, and what the others take longer is waiting.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from statistics import median

from dptune.measured.collectives import collective, kind_of
from dptune.measured.inspector import InspectedCalls, InspectorFigures, LastRank
from dptune.trace.inspector import InspectedCall

_MOST_ROWS = 200
_LEAST_CALLS = 10  # from which on a rank that is last in most of them is no chance: 1 in 2**10 for two ranks
_LEAST_SHARE = 0.5  # of the calls, at which it is last
_LEAST_WAITING = 0.05  # of the transfer: less is noise of the timing

_ByRank = dict[int, InspectedCall]


def inspector_figures(calls: Sequence[InspectedCall], unread: int = 0) -> InspectorFigures:
    """The figures of the logs of one job."""
    by_communicator: dict[str, dict[tuple[str, int, int], _ByRank]] = defaultdict(lambda: defaultdict(dict))
    for call in calls:
        by_communicator[call.communicator][call.kind, call.message_bytes, call.sequence][call.rank] = call
    rows = [row for matched in by_communicator.values() for row in _rows(matched)]
    rows.sort(key=lambda row: (-row.exec_us * row.calls, row.communicator, row.kind, row.message_bytes))
    last = [found for matched in by_communicator.values() if (found := _last_rank(matched)) is not None]
    return InspectorFigures(
        processes=len({(call.host, call.pid) for call in calls}),
        calls=len(calls),
        unread=unread,
        collectives=rows[:_MOST_ROWS],
        last_ranks=sorted(last, key=lambda found: -found.waiting_us * found.share),
    )


def _rows(matched: Mapping[tuple[str, int, int], _ByRank]) -> list[InspectedCalls]:
    by_kind: dict[tuple[str, int], list[_ByRank]] = defaultdict(list)
    for (kind, message_bytes, _), by_rank in matched.items():
        by_kind[kind, message_bytes].append(by_rank)
    found = []
    for (kind, message_bytes), all_calls in by_kind.items():
        one = next(iter(all_calls[0].values()))
        found.append(
            InspectedCalls(
                communicator=one.communicator,
                name=one.name,
                kind=kind,
                message_bytes=message_bytes,
                ranks=len({rank for by_rank in all_calls for rank in by_rank}),
                of_ranks=one.ranks,
                nodes=one.nodes,
                calls=len(all_calls),
                exec_us=median(max(call.exec_us for call in by_rank.values()) for by_rank in all_calls),
                transfer_us=median(min(call.exec_us for call in by_rank.values()) for by_rank in all_calls),
                busbw_gb_per_s=median(max(call.busbw_gb_per_s for call in by_rank.values()) for by_rank in all_calls),
            )
        )
    return found


def _last_rank(matched: Mapping[tuple[str, int, int], _ByRank]) -> LastRank | None:
    """The rank that is last in half of the calls or more that all ranks logged; None where there is none."""
    waiting: dict[int, list[float]] = defaultdict(list)
    one: dict[int, InspectedCall] = {}
    complete = 0
    for (kind, _, _), by_rank in matched.items():
        size = next(iter(by_rank.values())).ranks
        if len(by_rank) < max(2, size) or not collective(kind_of(kind)).symmetric:
            continue
        complete += 1
        last = min(by_rank.values(), key=lambda call: (call.exec_us, call.rank))
        waits = median(call.exec_us - last.exec_us for call in by_rank.values() if call is not last)
        if waits >= _LEAST_WAITING * last.exec_us:
            waiting[last.rank].append(waits)
            one[last.rank] = last
    if complete < _LEAST_CALLS or not waiting:
        return None
    rank, count = Counter({rank: len(waits) for rank, waits in waiting.items()}).most_common(1)[0]
    if count < _LEAST_SHARE * complete:
        return None
    call = one[rank]
    return LastRank(
        communicator=call.communicator,
        name=call.name,
        rank=rank,
        host=call.host,
        pid=call.pid,
        share=count / complete,
        waiting_us=median(waiting[rank]),
        of_ranks=call.ranks,
    )
