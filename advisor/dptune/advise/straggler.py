"""The one rank that holds up the others: what it costs, and what takes it longer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from dptune.advice import Advice
from dptune.advise.limits import milliseconds, percent
from dptune.measured import IDLE, LAG_CAUSES, LAG_CLASSES, ArrivalFigures, LagCause, Measured, StragglerFigures

LEAST_SHARE = 0.10  # that the lag is of the traced step, and that the step would gain: less is no bottleneck
LEAST_WAIT_SHARE = 0.05  # that the others wait, from which on a straggler is named beside another bottleneck
LEAST_NAMED_SHARE = 0.1  # of the lag, that a difference explains where it is named
MOST_NAMED = 3
LEAST_STEPS_SHARE = 0.60  # two equal ranks come last in half of the steps each
MOST_CHANCE = 0.1  # where equal ranks are late as often more frequently than that, ranks take turns

_OF_SCRIPT = ("function", "range", "call")  # differences that no other process on the same cores makes
_LEAST_EXPLAINED = 0.5  # of the lag
_LEAST_UNTRACED = 0.2  # of the lag, that is there without the profiler too; see the rule late-rank
_LEAST_GAIN = 0.005
_ALL_OF_IT = 0.995  # a cause may cover more than the lag, where another makes up for it
_KNOBS: dict[LagCause, str] = {"input": "loader."}  # cause -> how the names of the settings begin that mend it


@dataclass(frozen=True)
class Straggler:
    """A rank that comes late in most steps, by a large part of each.

    `own` is what it copies or idles longer than the others, by class, as shares of the account of all ranks.
    """

    figures: StragglerFigures
    arrival: ArrivalFigures
    lag_share: float
    others_wait_share: float
    own: dict[str, float]

    @property
    def share(self) -> float:
        """By how much shorter the step would be without its delays; else what would be gone from the account of all
        ranks, where the steps could not be replayed.
        """
        gain = self.figures.known("gain_share")
        return self.figures.waiting_share + sum(self.own.values()) if gain is None else gain

    @property
    def lag(self) -> str:
        """How late it comes."""
        share = f"{100 * self.lag_share:.0f} % of {'the mean' if self.figures.late_share < 1 else 'a'} step"
        return f"{milliseconds(self.figures.lag_ns)} late {self.figures.when} ({share})"

    def why(self, advice: Sequence[Advice]) -> str:
        """What differs on it, what the others wait, and what a step would gain, where no recommendation predicts it."""
        words = (
            f"{cause(self.figures, self.arrival)} The other ranks spend {percent(self.others_wait_share)} of their "
            f"time waiting"
        )
        gain = self.figures.known("gain_share")
        remedy = self.remedy(advice)
        if gain is None or (remedy and remedy.saves and remedy.saves.basis != "bound"):
            return f"{words}."
        gains = f"{percent(gain)} shorter" if gain >= _LEAST_GAIN else "no shorter"
        return f"{words}; replayed without its delays, a step is {gains}."

    def remedy(self, advice: Sequence[Advice]) -> Advice | None:
        """The first advice on the delays of this rank, if there is one."""
        return next((recommendation for recommendation in advice if self.is_subject_of(recommendation)), None)

    def is_subject_of(self, advice: Advice) -> bool:
        """Whether the advice is on the delays of this rank: it names the rank first, or a setting that mends them."""
        begin = _KNOBS.get(self.arrival.known("cause") or "unexplained")
        mends = begin is not None and any(change.knob.startswith(begin) for change in advice.changes)
        return mends or advice.title.startswith(f"Rank {self.figures.rank} ")


def straggler(measured: Measured, busy_ns: Mapping[int, float] | None = None) -> Straggler | None:
    """The straggler, where it is late in most steps and the others wait for it; raises Missing without an account.

    `busy_ns` is what each rank does in an untraced step while it waits for none, where that is known.
    """
    worst = measured.known("straggler")
    if worst is None or _only_while_traced(worst, busy_ns or {}):
        return None
    window_ns = measured.account.window_ns
    arrival = next(rank.arrival for rank in measured.ranks if rank.rank == worst.rank)
    more = {name: max(0, more_ns) / window_ns for name, more_ns in arrival.more_ns.items()}
    found = Straggler(
        figures=worst,
        arrival=arrival,
        lag_share=worst.mean_lag_ns / measured.traced_step_ns,
        others_wait_share=_others_wait(measured, worst.rank),
        own={
            "copy_ns": more.get("copy_ns", 0.0),
            "input_idle_ns": more.get("input_idle_ns", 0.0),
            "other_idle_ns": sum(more.get(name, 0.0) for name in IDLE if name != "input_idle_ns"),
        },
    )
    costs = max(found.share, worst.waiting_share)
    stable = worst.steps_share >= LEAST_STEPS_SHARE
    return found if stable and found.lag_share >= LEAST_SHARE and costs >= LEAST_WAIT_SHARE else None


def doubtful(measured: Measured, advice: Sequence[Advice]) -> list[Advice]:
    """The findings on the straggler, where all of them have low impact and low confidence; else none."""
    worst = measured.known("straggler")
    findings = [item for item in advice if worst is not None and item.title.startswith(f"Rank {worst.rank} ")]
    return findings if all((item.impact, item.confidence) == ("low", "low") for item in findings) else []


def _only_while_traced(worst: StragglerFigures, busy_ns: Mapping[int, float]) -> bool:
    """Whether the rank does no more than the others without the profiler, and nothing of the script explains its lag: a
    sleep in a backward hook is not seen without the profiler.
    """
    others = [ns for rank, ns in busy_ns.items() if rank != worst.rank]
    of_script = sum(difference.share for difference in worst.differences if difference.kind in _OF_SCRIPT)
    if worst.rank not in busy_ns or not others or of_script >= _LEAST_EXPLAINED:
        return False
    return busy_ns[worst.rank] - median(others) < _LEAST_UNTRACED * worst.mean_lag_ns


def cause(figures: StragglerFigures, arrival: ArrivalFigures) -> str:
    """What the lag consists of, what takes longer on the straggler than on the others, and what is unexplained."""
    found = [difference for difference in figures.differences if difference.share >= LEAST_NAMED_SHARE][:MOST_NAMED]
    if not found:
        return meanwhile(arrival, f"rank {figures.rank}'s")
    words = [
        f"{longer.words(figures.rank)}; this explains {milliseconds(longer.share * figures.lag_ns)} "
        f"({percent(longer.share)}) of its lag"
        for longer in found
    ]
    said = ". ".join(text[:1].upper() + text[1:] for text in words)
    left = 1 - figures.explained_share
    if left < LEAST_NAMED_SHARE:
        return f"{said}."
    known, covers = arrival.known("cause"), arrival.known("cause_share")
    if known in (None, "unexplained") or covers is None or covers < figures.explained_share + LEAST_NAMED_SHARE:
        return f"{said}. {percent(left)} of its lag is unexplained."
    rest = milliseconds(left * figures.lag_ns)
    known_part = f"{percent(min(1.0, covers))} of rank {figures.rank}'s lag: {LAG_CLASSES[known]}."
    return f"{known_part} {said}. What causes the other {rest} was not recorded."


def meanwhile(arrival: ArrivalFigures, whose: str = "its") -> str:
    """What a late rank spends more time on than the others."""
    known = arrival.known("cause")
    if known is None:
        return f"Cause unknown: {arrival.missing['cause']}."
    covers = "All" if arrival.cause_share >= _ALL_OF_IT else f"{100 * arrival.cause_share:.1f} %"
    return f"{covers} of {whose} lag: {LAG_CAUSES[known]}."


def _others_wait(measured: Measured, late: int) -> float:
    """Exposed waiting of the other ranks, as a share of their steps; 0 where these hold no time."""
    accounts = [
        step.account for rank in measured.ranks if rank.rank != late for device in rank.devices for step in device.steps
    ]
    window_ns = sum(account.window_ns for account in accounts)
    return sum(step_account.exposed_waiting_ns for step_account in accounts) / window_ns if window_ns else 0.0
