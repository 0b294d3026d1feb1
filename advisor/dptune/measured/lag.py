"""Which ranks arrive late at collectives, by how much, and what takes them longer than the others."""

from __future__ import annotations

from math import comb
from typing import Literal

from pydantic import Field

from dptune.measured.figure import ABSENT, Figure, Figures, Model, in_ms
from dptune.measured.naming import cut, short_name


class StepLag(Model):
    """How late one rank arrived at the collectives of one step."""

    number: int = Field(description="N of ProfilerStep#N; counted from 0 without step markers")
    lag_ns: int = Field(
        description="how long after the mean of the others; a delay before several collectives counts once"
    )


LagCause = Literal["input", "copies", "slower compute", "more compute", "gc", "host", "communication", "unexplained"]

# What a late rank does while the others wait, in words, by the cause.
LAG_CAUSES: dict[LagCause, str] = {
    "input": "it waits for its data loader",
    "copies": "it spends longer in copies",
    "slower compute": "the same number of operations takes longer",
    "more compute": "it computes more than the others",
    "gc": "Python garbage collection",
    "host": "its device idles while the host runs Python, file I/O, sleeps, blocking calls or launches",
    "communication": "it is busy in other collectives",
    "unexplained": "its device is idle, and the trace does not show why",
}

# The same causes, briefly.
LAG_CLASSES: dict[LagCause, str] = {
    "input": "waiting for its data loader",
    "copies": "copies",
    "slower compute": "slower compute",
    "more compute": "more compute",
    "gc": "garbage collection",
    "host": "its device waits for the host",
    "communication": "other collectives",
    "unexplained": "unexplained idle time",
}


class ArrivalFigures(Figures):
    """How late a rank arrives at symmetric collectives (those that no rank can leave before the last has arrived)."""

    collectives: int = Field(description="those that it took part in, if the traces of all their ranks were read")
    last_share: float = Field(description="share of them at which it arrived last")
    lag_ns: int = Field(description="median lag over steps")
    steps: list[StepLag] = Field(description="each step")
    cause: Figure[LagCause] = Field(ABSENT, description="what it spent more time on than the mean of the others")
    cause_share: Figure[float] = Field(ABSENT, description="share of its lag that this explains")
    more_ns: dict[str, int] = Field(
        default_factory=dict, description="time that it spent more, by class of the account; sums to the lag explained"
    )


_BEFORE = "before "  # starts a detail that is the time up to the next operator

DifferenceKind = Literal["function", "work", "range", "operator", "call", "gap", "host", "kernels", "copies"]


OF_SCRIPT: tuple[DifferenceKind, ...] = ("function", "range", "call", "gap")  # of what is no slower operator
MORE_WORK = 1.05  # times the elements of the others: shapes are exact, and padding to multiples of 8 changes them less
_LEAST_MOVED = 0.3  # of the lag
_SHARED = 0.2  # of its time on the late rank, from which on the others run it too


class LagDifference(Figures):
    """Something that takes a late rank longer than the others in the same steps. Times are of the median step."""

    kind: DifferenceKind = Field(
        description="a user function: its Python time (function) or its operators (work); a range named by the script, "
        "an operator, a runtime call; a gap outside of all these; all CPU operators (host); kernels or copies"
    )
    name: str = Field(
        description="its name; for a gap, the operator after it; for kernels and copies, the largest of them; for "
        "host, the operator that explains most of the difference, else empty"
    )
    at: Figure[str] = Field(ABSENT, description="file and line at which the function starts")
    within: Figure[str] = Field(ABSENT, description="the innermost range named by the script around it")
    rank_ns: int = Field(description="its time per step on the late rank")
    others_ns: int = Field(description="its time per step on the others, the median of them; 0 if none runs it")
    detail: Figure[str] = Field(ABSENT, description="what inside it accounts for most of the difference")
    detail_rank_ns: Figure[int] = Field(ABSENT, description="time per step of that on the late rank")
    detail_others_ns: Figure[int] = Field(ABSENT, description="time per step of that on the others, the median of them")
    share: float = Field(description="share of the lag that it explains")

    @property
    def short(self) -> str:
        """The short name for sentences: of a kernel without its template arguments."""
        return short_name(self.name) if self.kind in ("kernels", "copies") else cut(self.name)

    @property
    def subject(self) -> str:
        """What takes longer, for `explained by ...`."""
        if self.kind == "host" and not self.name:
            return "CPU operators in general"
        return f"{'the time before ' if self.kind == 'gap' else ''}`{self.short}`"

    @property
    def gap_before(self) -> str:
        """The operator before which nothing runs, where that time accounts for most of the difference; else empty."""
        if self.kind == "gap":
            return self.short
        detail = self.known("detail") or ""
        return cut(detail.removeprefix(_BEFORE)) if detail.startswith(_BEFORE) else ""

    def words(self, rank: int) -> str:
        """What takes how long on the late rank and on the others."""
        times = f"{_ms(self.rank_ns)} on rank {rank}, {_ms(self.others_ns)} on the others"
        if self.kind == "gap":
            return f"before `{self.short}`, the host runs no operator for {times}"
        if self.kind == "host":
            mainly = f", mainly `{self.short}`, take" if self.name else " in general take"
            return f"CPU operators{mainly} {times}"
        if self.kind in ("kernels", "copies"):
            return f"{self.kind}, mainly `{self.short}`, take {times}"
        place = f" ({self.at})" if self.known("at") else ""
        within = f" in `{cut(self.within)}`" if self.known("within") else ""
        if not self.others_ns:
            times = f"{_ms(self.rank_ns)} on rank {rank} and does not run on the others"
        said = f"`{self.short}`{place}{within} takes {times}"
        if not self.known("detail") or self.detail_rank_ns == self.rank_ns:
            return said
        spent, usual = _ms(self.detail_rank_ns), f"({_ms(self.detail_others_ns)} on the others)"
        if self.gap_before:
            return f"{said}: no operator runs for {spent} before `{self.gap_before}` {usual}"
        return f"{said}: {spent} in `{cut(self.detail)}` {usual}"


class StragglerFigures(Figures):
    """The rank that the others wait for most: it causes half of all lag or more.

    A rank whose trace was not read may be later still.
    """

    rank: int = Field(description="number of the rank")
    lag_ns: int = Field(
        description="median lag over steps; over the steps in which it is late, if these are a minority"
    )
    late_share: float = Field(
        1.0, description="the share of steps in which it is late, where that is a minority; else 1"
    )
    steps_share: float = Field(description="share of those steps in which it is late and no rank is later")
    waiting_share: float = Field(
        description="exposed waiting for the last rank to arrive, all ranks, as a share of the step"
    )
    gain_share: Figure[float] = Field(
        ABSENT,
        description="share by which steps would be shorter if it took no longer between collectives than the others",
    )
    work_ratio: Figure[float] = Field(
        ABSENT,
        description="elements that its operators read in a step / those of the others (median), by recorded shapes: "
        "above 1 it does more of the same work",
    )
    differences: list[LagDifference] = Field(
        default_factory=list,
        description="what takes longer on it than on the others, the largest share of its lag first",
    )

    @property
    def mean_lag_ns(self) -> float:
        """How late it is, over all steps."""
        return self.lag_ns * self.late_share

    @property
    def when(self) -> str:
        """In which steps it is that late."""
        steps = (
            "the median traced step" if self.late_share == 1 else f"{100 * self.late_share:.0f} % of the traced steps"
        )
        return f"in {steps}"

    @property
    def explained_share(self) -> float:
        """The share of its lag that the differences explain."""
        return min(1.0, sum(difference.share for difference in self.differences))

    @property
    def moves(self) -> bool | None:
        """Whether fixing its delay moves work to the other ranks, since it does more of the same; None where unknown.

        False where it does something that the others do not, or the same work more slowly.
        """
        work = [difference.share for difference in self.differences if difference.kind not in OF_SCRIPT]
        script = [
            script_difference.share
            for script_difference in self.differences
            if script_difference.kind in OF_SCRIPT and not _shared(script_difference)
        ]
        ratio = self.known("work_ratio")
        if sum(script) >= max(_LEAST_MOVED, sum(work)):
            return False
        if ratio is None:
            return None
        return bool(ratio >= MORE_WORK)

    @property
    def does_more(self) -> bool:
        """Whether it does more of the work that all ranks do, and nothing of its own that explains its delay."""
        return bool(self.known("work_ratio") and self.moves) and all(
            _shared(difference) for difference in self.differences
        )

    def chance(self, steps: int, ranks: int) -> float:
        """The probability that one of `ranks` equal ranks is the last in this share of the steps or more."""
        least, probability = round(self.steps_share * steps), 1 / ranks
        tail = sum(comb(steps, k) * probability**k * (1 - probability) ** (steps - k) for k in range(least, steps + 1))
        return min(1.0, ranks * tail)


def _shared(difference: LagDifference) -> bool:
    """Whether the other ranks do the same for a considerable time."""
    return difference.others_ns >= _SHARED * difference.rank_ns


def _ms(duration_ns: int) -> str:
    return f"{in_ms(duration_ns)} ms"
