"""What ranks exchange: collectives, the links they cross, their overlap with compute, and who comes late."""

from __future__ import annotations

from math import comb
from typing import Literal

from pydantic import Field

from dptune.measured.device import Phase
from dptune.measured.figure import ABSENT, Figure, Figures, Model
from dptune.measured.place import Place

MatchBasis = Literal["sequence", "order", "shift"]  # the surest first


class CollectiveFigures(Figures):
    """All collectives of one kind, group, type and size, over the steps of every rank."""

    kind: str = Field(description="all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, p2p, ...; or unknown")
    group: Figure[str] = Field(ABSENT, description="name of the process group")
    group_size: Figure[int] = Field(ABSENT, description="ranks in the process group")
    dtype: Figure[str] = Field(ABSENT, description="type of the elements sent")
    message_bytes: Figure[int] = Field(
        ABSENT, description="max(input, output) of one call, bytes; of an uneven one, of the rank that sends most"
    )
    calls: int = Field(description="calls inside steps, all ranks together")
    calls_per_step: float = Field(description="per rank and step")
    median_ns: int = Field(description="median duration of one call on one rank, waiting included")
    shortest_ns: int = Field(description="shortest duration over calls and ranks: the least waiting")
    total_ns: int = Field(description="sum of durations, all ranks")
    matched: Figure[MatchBasis] = Field(
        ABSENT,
        description="what tells which calls of the ranks are one collective: its number, their order, or their order "
        "shifted, or the time at which they ran, where ranks lack calls; the least sure that was needed",
    )
    transfer_ns: Figure[int] = Field(
        ABSENT, description="median over calls of the shortest duration over the ranks: that of the last to come"
    )
    waiting_ns: Figure[int] = Field(ABSENT, description="sum over ranks of what they waited for the last to come")
    algbw_gb_per_s: Figure[float] = Field(ABSENT, description="message / transfer")
    busbw_gb_per_s: Figure[float] = Field(ABSENT, description="algbw times what each link carries, as nccl-tests does")


class LinkSize(Model):
    """The calls of one message size among some ranks, without waiting."""

    message_bytes: int = Field(description="max(input, output) of one call, bytes")
    calls: int = Field(description="how many were timed")
    median_ns: int = Field(description="median time of one call")
    q1_ns: int = Field(description="first quartile")
    q3_ns: int = Field(description="third quartile")


class LinkFigures(Figures):
    """The links between some ranks, as one kind of collective sees them: time = alpha + bytes / beta, fitted robustly.

    `low` and `high` are the extremes over fits with any size left out, and at the first and third quartiles.
    """

    kind: str = Field(description="all_reduce, all_gather, reduce_scatter, all_to_all, p2p")
    group: Figure[str] = Field(ABSENT, description="name of the process group")
    ranks: list[int] = Field(description="the ranks that exchange")
    scope: Literal["intra-node", "inter-node", "unknown"] = Field(description="whether they share a host")
    basis: Literal["trace", "sweep"] = Field(description="from the run's own collectives, or from `dptune links`")
    source: str = Field("", description="the file of the sweep")
    measured: str = Field("", description="when the sweep was made")
    sizes: list[LinkSize] = Field(description="what was fitted, ascending by size")
    queued: list[LinkSize] = Field(
        default_factory=list, description="one of many that are asked for at once, as buckets are, ascending by size"
    )
    calls: int = Field(description="calls that were fitted")
    shared_calls: int = Field(0, description="calls left out: another collective of these ranks ran meanwhile")
    alpha_us: Figure[float] = Field(ABSENT, description="time of a call of no bytes: latency")
    alpha_low_us: Figure[float] = Field(ABSENT, description="the least that the data allow")
    alpha_high_us: Figure[float] = Field(ABSENT, description="the most that the data allow")
    algbw_gb_per_s: Figure[float] = Field(ABSENT, description="beta: message bytes per time that each byte adds")
    busbw_gb_per_s: Figure[float] = Field(ABSENT, description="beta times what each link carries, as nccl-tests does")
    busbw_low_gb_per_s: Figure[float] = Field(ABSENT, description="the least that the data allow")
    busbw_high_gb_per_s: Figure[float] = Field(ABSENT, description="the most that the data allow")
    residual_share: Figure[float] = Field(ABSENT, description="median over sizes of |measured - fitted| / measured")
    confidence: Figure[Literal["high", "medium", "low"]] = Field(
        ABSENT, description="high: 5 sizes that span 64 times, residual 10 %; medium: residual 25 %"
    )
    peak_gb_per_s: Figure[float] = Field(ABSENT, description="what the links of one GPU carry at most, per direction")


class CommunicationFigures(Figures):
    """Communication of one kind, process group and phase, over the steps of every rank.

    Where several collectives are in flight, the moment counts for the one that began first: the rows sum to the
    communication of the account.
    """

    kind: str = Field(description="all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, p2p, ...; or unknown")
    group: Figure[str] = Field(ABSENT, description="name of the process group")
    phase: Figure[Phase] = Field(ABSENT, description="the phase in which it was asked for")
    calls: int = Field(description="calls inside steps, all ranks together")
    communication_ns: int = Field(description="hidden + exposed")
    hidden_ns: int = Field(description="with compute beside it")
    exposed_ns: int = Field(description="with no compute beside it")
    most_share: float = Field(description="exposed, of the steps of that device of which it takes most")
    longest: Figure[Place] = Field(ABSENT, description="where most of it in one stretch has no compute beside it")


class OverlapFigures(Figures):
    """How compute and communication share the steps, over every rank."""

    rows: list[CommunicationFigures] = Field(description="by kind, group and phase, the most exposed first")
    compute_per_communication: Figure[float] = Field(ABSENT, description="compute / communication of the account")
    slowdown: Figure[float] = Field(
        ABSENT, description="time of the same compute beside communication / without, of one place in the step"
    )
    slowdown_pairs: int = Field(
        0, description="places in a step at which one operation was seen both with and without communication beside it"
    )


class StepLag(Model):
    """How late one rank came to the collectives of one step."""

    number: int = Field(description="N of ProfilerStep#N; from 0 on where nothing marks steps")
    lag_ns: int = Field(description="how long after the mean of the others; a delay before several collectives once")


LagCause = Literal["input", "copies", "slower compute", "more compute", "gc", "host", "communication", "unexplained"]

# What a late rank does meanwhile, in words, by the cause.
LAG_CAUSES: dict[LagCause, str] = {
    "input": "it waits for its data loader",
    "copies": "it copies",
    "slower compute": "the same operations take longer there",
    "more compute": "it has more to compute than the others",
    "gc": "Python collects garbage",
    "host": "its device waits for the script: Python, files, sleep, blocking calls, launching",
    "communication": "it takes part in other collectives",
    "unexplained": "its device is idle, and why is not known",
}


class ArrivalFigures(Figures):
    """How a rank comes to symmetric collectives (those that no rank can leave before the last has come)."""

    collectives: int = Field(description="those that it took part in, of which all ranks were read")
    last_share: float = Field(description="the share of them to which it came last")
    lag_ns: int = Field(description="median over steps of how late it came")
    steps: list[StepLag] = Field(description="each step")
    cause: Figure[LagCause] = Field(ABSENT, description="what it spent more time on than the mean of the others")
    cause_share: Figure[float] = Field(ABSENT, description="how much of its lag that covers")
    more_ns: dict[str, int] = Field(
        default_factory=dict, description="time that it spent more, by class of the account; sums to the lag explained"
    )


DifferenceKind = Literal["function", "range", "operator", "call", "gap", "host", "kernels", "copies"]


class LagDifference(Figures):
    """Something that takes a late rank longer than the others in the same steps. Times are of the median step."""

    kind: DifferenceKind = Field(
        description="a function of the user, a range that the script names, an operator, a call of the runtime, a gap "
        "of the host with nothing of these around it, all operators of the host, kernels, or copies"
    )
    name: str = Field(description="its name; of a gap, of kernels and of the host's operators that with the most of it")
    at: Figure[str] = Field(ABSENT, description="file and line of a function: where it begins")
    within: Figure[str] = Field(ABSENT, description="the innermost range that the script names around it")
    rank_ns: int = Field(description="how long it takes on the late rank, a step")
    others_ns: int = Field(description="how long it takes on the others, the median of them; 0 where none has it")
    detail: Figure[str] = Field(ABSENT, description="what most of the difference is inside of it")
    detail_rank_ns: Figure[int] = Field(ABSENT, description="how long that takes on the late rank, a step")
    detail_others_ns: Figure[int] = Field(ABSENT, description="how long that takes on the others")
    share: float = Field(description="the share of the lag that it explains")


class StragglerFigures(Figures):
    """The rank that the others wait for most: half of all lag or more is its own.

    Of ranks that were not read nothing is known: one of them may be later still.
    """

    rank: int = Field(description="number of the rank")
    lag_ns: int = Field(description="median over steps of how late it came")
    steps_share: float = Field(description="the share of steps in which it came late and no rank later")
    waiting_share: float = Field(description="exposed waiting for the last to come, all ranks, as a share of the step")
    gain_share: Figure[float] = Field(
        ABSENT, description="how much shorter the steps would be if it took as long between collectives as the others"
    )
    differences: list[LagDifference] = Field(
        default_factory=list, description="what takes it longer than the others, the largest share of its lag first"
    )

    @property
    def explained_share(self) -> float:
        """The share of its lag that the differences explain."""
        return min(1.0, sum(one.share for one in self.differences))

    def chance(self, steps: int, ranks: int) -> float:
        """How probable it is that one of so many ranks is last in as many of the steps or more, were all alike."""
        least, one = round(self.steps_share * steps), 1 / ranks
        tail = sum(comb(steps, k) * one**k * (1 - one) ** (steps - k) for k in range(least, steps + 1))
        return min(1.0, ranks * tail)
