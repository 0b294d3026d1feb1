"""The events of chosen ranks on one clock, with what takes all ranks to know: who arrived last at each collective."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from dptune.measure.across_ranks import across, host_of
from dptune.measure.communication.matching import MatchedCollective
from dptune.measure.intervals import Intervals
from dptune.measure.steps.windows import Step
from dptune.measure.views import busiest, light_views
from dptune.measured import IDLE, Measured
from dptune.trace.columns import NONE, Columns
from dptune.trace.events import Trace
from dptune.trace.run import Run


@dataclass(frozen=True, eq=False)
class Arrival:
    """A collective on one rank: `row` is its event, `last_rank` arrived last, `early_ns` after this rank.

    `message_bytes` is None where the trace does not show it.
    """

    row: int
    kind: str
    message_bytes: int | None
    last_rank: int
    early_ns: int


@dataclass(frozen=True)
class Arrow:
    """From the event of the last rank to arrive at a collective to the event of a rank that waited for it."""

    from_rank: int
    from_row: int
    to_rank: int
    to_row: int


@dataclass(frozen=True, eq=False)
class RankTimeline:
    """One rank. `shift_ns` is added to times of its trace to get nanoseconds since the epoch by the reference clock.

    `aligned`: whether its clock is known to agree with that of the lowest rank after that. `idle` holds, by device, the
    idle time of each cause (a field of `Account`), on the trace's own clock, as the steps are.
    """

    rank: int
    host: str
    trace: Trace
    shift_ns: int
    aligned: bool
    steps: list[Step]
    idle: dict[str, dict[str, Intervals]]
    arrivals: list[Arrival]

    @property
    def columns(self) -> Columns:
        """The events of the trace."""
        return self.trace.columns


@dataclass(frozen=True, eq=False)
class OneTimeline:
    """Ranks in ascending order, and the arrows between their events."""

    ranks: list[RankTimeline]
    arrows: list[Arrow]


def one_timeline(run: Run, measured: Measured, chosen: Collection[int]) -> OneTimeline:
    """The light windows of the chosen ranks, by the clocks of the report; collectives are matched over all ranks."""
    views = [*light_views(run)]
    together = across(run, views)
    ahead_ns = {figures.rank: figures.known("clock_ahead_ns") for figures in measured.ranks}
    idle: dict[int, dict[str, dict[str, Intervals]]] = {}
    for rank_view, device, spent in together.spent:
        idle.setdefault(rank_view.rank, {})[device.operations.device] = {name: spent.classes[name] for name in IDLE}
    arrivals: dict[int, list[Arrival]] = {rank: [] for rank in chosen}
    arrows: list[Arrow] = []
    for collective in together.collectives:
        arrows += _arrivals(collective, ahead_ns, arrivals)
    ranks = [
        RankTimeline(
            rank_view.rank,
            host_of(run, rank_view.rank) or "",
            rank_view.trace,
            rank_view.base_ns - (ahead_ns.get(rank_view.rank) or 0),
            ahead_ns.get(rank_view.rank) is not None,
            busiest(rank_view),
            idle.get(rank_view.rank, {}),
            arrivals[rank_view.rank],
        )
        for rank_view in views
        if rank_view.rank in arrivals
    ]
    return OneTimeline(ranks, arrows)


def _arrivals(
    collective: MatchedCollective, ahead_ns: dict[int, int | None], arrivals: dict[int, list[Arrival]]
) -> list[Arrow]:
    """Add the arrivals of one collective at the chosen ranks; the arrows from the last one to those that waited.

    Only where the clocks of all its ranks are known. An event that ends before the last rank arrives did not wait.
    """
    ranks: Sequence[int] = collective.ranks.tolist()
    known = [ahead for rank in ranks if (ahead := ahead_ns.get(rank)) is not None]
    if len(known) < len(ranks):
        return []
    start_ns = collective.start_ns - np.array(known, dtype=np.int64)
    end_ns = collective.end_ns - np.array(known, dtype=np.int64)
    last = int(start_ns.argmax())
    arrows = []
    for at, rank in enumerate(ranks):
        row, early_ns = collective.calls[at].row, int(start_ns[last] - start_ns[at])
        if rank not in arrivals or row == NONE:
            continue
        arrivals[rank].append(Arrival(row, collective.kind, collective.message_bytes, ranks[last], early_ns))
        drawn = ranks[last] in arrivals and collective.calls[last].row != NONE
        if at != last and drawn and end_ns[at] > start_ns[last]:
            arrows.append(Arrow(ranks[last], collective.calls[last].row, rank, row))
    return arrows
