"""Collectives of the run: calls of one kind, group, type and size, over the steps of every rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_args

import numpy as np

from dptune.errors import TraceError
from dptune.measure.communication.calls import Call, Collectives, calls
from dptune.measure.communication.matching import MatchedCollective, RankCalls
from dptune.measure.communication.sizes import no_size, with_sizes
from dptune.measure.once import once_for_each
from dptune.measure.steps.windows import OUTSIDE
from dptune.measure.views import RankView, view
from dptune.measured import CollectiveFigures, MatchBasis
from dptune.measured.collectives import collective
from dptune.runfile.facts import Facts
from dptune.trace.events import Trace
from dptune.trace.run import RankTrace

_NO_GROUP = "the trace does not name the process group"
_NO_DTYPE = "the trace does not name the element type"
_UNTYPED = "the element type is missing or unknown, so message sizes in bytes are unknown"
_ASYMMETRIC = "a rank may leave before the last one arrives, so waiting and transfer cannot be separated"
_INCOMPLETE = "not all ranks of the group were read, their calls could not be matched, or a call has no duration"
_NO_LINK = "it is unknown how much of this kind crosses each link"
_ALONE = "this needs the traces of at least two ranks"
_UNMATCHED = "no calls of this kind and size were matched across ranks"
_SUREST_FIRST: tuple[MatchBasis, ...] = get_args(MatchBasis)


def heard(rank_view: RankView, ran: Collectives, rank_trace: RankTrace | None, facts: Facts | None) -> list[RankCalls]:
    """Of the collectives that ran on each device of a rank those in its steps, with their sizes.

    The window with shapes of `rank_trace` is read only where the light window has no sizes.
    """
    numbers = [step.number for step in rank_view.steps]
    found = [inside(ran[rank_view.rank, device.operations.device]) for device in rank_view.devices]
    if any(call.message_bytes is None for each in found for call in each):
        if rank_view.record is not None:
            shaped = list(rank_view.record.shaped)
        else:
            shaped = [] if rank_trace is None else _shaped(rank_trace)
        found = [with_sizes(each, shaped, facts) for each in found]
    return [
        RankCalls(rank_view.rank, device.operations.device, rank_view.base_ns, numbers, each)
        for device, each in zip(rank_view.devices, found, strict=True)
    ]


def inside(ran: Sequence[Call]) -> list[Call]:
    """The collectives that a step launched."""
    return [call for call in ran if call.step != OUTSIDE]


@once_for_each
def _shaped(rank: RankTrace) -> list[Call]:
    """The collectives in the steps of a rank's window with shapes; none where it has no such window."""
    try:
        detail = rank.detailed
    except TraceError:  # sizes stay missing, and their reason says what was looked for
        return []
    return [] if detail is None else shaped_calls(rank.rank, detail)


def shaped_calls(rank: int, detail: Trace) -> list[Call]:
    """The collectives in the steps of a rank's window with shapes."""
    with_shapes = view(rank, detail)
    return [call for device in with_shapes.devices for call in inside(calls(with_shapes, device))]


def collectives(
    ranks: Sequence[RankCalls], matches: Sequence[MatchedCollective], views: Sequence[RankView]
) -> list[CollectiveFigures]:
    """One record per kind, group, type and size, largest total first; the size is the largest over the ranks."""
    matched: dict[tuple[object, ...], list[MatchedCollective]] = {}
    largest: dict[tuple[int, str, Call], int | None] = {}
    for match in matches:
        key = match.kind, match.group, match.dtype, match.message_bytes
        matched.setdefault(key, []).append(match)
        for rank, device, call in zip(match.ranks.tolist(), match.devices, match.calls, strict=True):
            largest[rank, device, call] = match.message_bytes
    groups: dict[tuple[object, ...], list[Call]] = {}
    for rank_calls in ranks:
        for call in rank_calls.calls:
            size = largest.get((rank_calls.rank, rank_calls.device, call), call.message_bytes)
            alike = groups.setdefault((call.kind, call.group, call.group_size, call.dtype, size), [])
            alike.append(call if size == call.message_bytes else replace(call, message_bytes=size))
    steps = sum(rank_view.windows for rank_view in views)
    windows = {rank_view.rank: rank_view.windows for rank_view in views}
    members: dict[str | None, set[int]] = {}
    for rank_calls in ranks:
        for call in rank_calls.calls:
            members.setdefault(call.group, set()).add(rank_calls.rank)
    unsized = no_size(rank_view.trace for rank_view in views)
    unmatched = _UNMATCHED if len({rank_calls.rank for rank_calls in ranks}) > 1 else _ALONE
    found = []
    for alike in groups.values():
        first = alike[0]
        key = first.kind, first.group, first.dtype, first.message_bytes
        of_group = sum(windows[rank] for rank in members[first.group] & windows.keys())
        found.append(_figures(alike, matched.get(key, []), (steps, of_group or steps), unmatched, unsized))
    return sorted(found, key=lambda figures: -figures.total_ns)


def _figures(
    alike: list[Call], matched: list[MatchedCollective], steps: tuple[int, int], unmatched: str, unsized: str
) -> CollectiveFigures:
    """`steps` are those of all ranks, and those of the ranks of the group."""
    first = alike[0]
    durations = [call.dur_ns for call in alike]
    unsized = _UNTYPED if first.untyped else unsized
    holes = {"group": _NO_GROUP, "group_size": _NO_GROUP, "dtype": _NO_DTYPE, "message_bytes": unsized}
    missing = {name: why for name, why in holes.items() if getattr(first, name) is None}
    if first.group is None:
        missing["calls_per_member"] = _NO_GROUP
    if not matched:
        missing["matched"] = unmatched
    split = [match for match in matched if match.splits]
    figures = _transfer(first, split)
    why = (
        (_INCOMPLETE if collective(first.kind).symmetric else _ASYMMETRIC)
        if not split
        else unsized
        if first.message_bytes is None
        else _NO_LINK
    )
    return CollectiveFigures(
        kind=first.kind,
        group=first.group,
        group_size=first.group_size,
        dtype=first.dtype,
        message_bytes=first.message_bytes,
        calls=len(alike),
        calls_per_step=len(alike) / steps[0],
        calls_per_member=None if first.group is None else len(alike) / steps[1],
        median_ns=round(float(np.median(durations))),
        shortest_ns=min(durations),
        total_ns=sum(durations),
        matched=max((match.basis for match in matched), key=_SUREST_FIRST.index, default=None),
        **figures,
        missing=missing | {name: why for name, value in figures.items() if value is None},
    )


def _transfer(call: Call, split: list[MatchedCollective]) -> dict[str, Any]:
    """Time without waiting, and the bandwidth that comes of it; None where it is not known."""
    figures: dict[str, Any] = dict.fromkeys(("transfer_ns", "waiting_ns", "algbw_gb_per_s", "busbw_gb_per_s"))
    if not split:
        return figures
    transfers = [match.transfer_ns for match in split]
    transfer_ns = round(float(np.median(transfers)))
    figures["transfer_ns"] = transfer_ns
    figures["waiting_ns"] = sum(split_collective.waiting_ns for split_collective in split)
    if call.message_bytes and transfer_ns:
        figures["algbw_gb_per_s"] = call.message_bytes / transfer_ns
        factor = collective(call.kind).bus_factor(len(split[0].ranks))
        figures["busbw_gb_per_s"] = None if factor is None else factor * call.message_bytes / transfer_ns
    return figures
