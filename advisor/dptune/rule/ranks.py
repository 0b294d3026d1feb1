"""What a rule may ask of ranks and devices: which of them is late, and what holds up a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median

from dptune.measured import CommunicationFigures, StragglerFigures
from dptune.rule.recorded import RecordedView

_LAG_SHARE = 0.1  # of the step, from which on a rank is late: on shared machines healthy ones are late by some per cent
_STEADY = 0.5  # of the median lag, in every traced step: then it is no chance, of however few steps
_ENOUGH_LAGS = 10  # untraced steps with a late rank
LEADING = 0.75  # of those: one of two equal ranks is the later one in 15 of 20 with 4 %


@dataclass(frozen=True)
class RanksView(RecordedView):
    """Ranks and devices beside each other."""

    def unstretched(self, share: float) -> float:
        """A share of the traced step as one of the step time, for a ceiling: the profiler need not have stretched it.

        Tracing slows operators, not what the link does: the same milliseconds are then more of the shorter, real step.
        """
        stretch = self.measured.traced_step_ns / self.measured.recorded_step_ns
        return min(1.0, max(0.0, share) * max(1.0, stretch))

    def most_exposed(self, rows: Sequence[CommunicationFigures]) -> float:
        """The share of a step that communication takes with nothing beside it on the rank that pays most, as a ceiling.

        A rank that receives waits for it, one that sends goes on, and waits for the other in the next all-reduce. One
        process was traced, and others exchange more slowly: half of what the timed ones lie apart comes on top. Of
        three draws of the advice benchmark removing all of it gave up to 1.7 % of a step more than was traced, where
        that half was 1, 3 and 5 %.
        """
        return self.most_of_process(sum(row.most_share for row in rows))

    def most_of_process(self, share: float, *, traced: bool = True) -> float:
        """A share of the steps of one rank as a ceiling of what any process saves: see `most_exposed`."""
        return min(1.0, (self.unstretched(share) if traced else share) + self._apart())

    def _apart(self) -> float:
        """Half of the distance between the fastest and the slowest timed process, as a share of the step; 0 of one."""
        step = self.measured.step
        if not step.repeats_ns:
            return 0.0
        processes = [step.unprofiled_median_ns, *step.repeats_ns]
        return (max(processes) - min(processes)) / 2 / step.median_ns

    def busy_ns(self, *, feeding: bool = True) -> dict[int, float] | None:
        """What each rank does in a step without the profiler while it waits for no other rank, ns by rank; medians.

        It is what lies outside of its backward passes, and the time that its thread computes in them; without `feeding`
        less what it waits for its loader. None where devices compute, or not every rank tells.
        """
        steps = self._busy_steps(feeding=feeding)
        return None if steps is None else {rank: median(own) for rank, own in steps.items()}

    def _busy_steps(self, *, feeding: bool) -> dict[int, list[float]] | None:
        """The same of each step."""
        if self.measured.known("device_kind") != "cpu" or {one.rank for one in self.facts} != {
            one.rank for one in self.measured.ranks
        }:
            return None
        own = {}
        for facts in self.facts:
            window = facts.window("unprofiled")
            if window is None or not window.steps or len(window.backward_cpu_ns) != window.steps:
                return None
            waited = [0] * window.steps if feeding else window.loader_wait_ns
            if len(waited) != window.steps:
                return None
            parts = zip(window.durations_ns, window.backward_ns, window.backward_cpu_ns, waited, strict=True)
            own[facts.rank] = [float(took - backward + computed - wait) for took, backward, computed, wait in parts]
        return own

    def untraced_lags(self) -> list[tuple[int, float]]:
        """By step without the profiler the rank that was busy longest, and how much longer than the mean of the others.

        Empty where devices compute, with one rank, or where ranks timed different steps.
        """
        steps = self._busy_steps(feeding=True) or {}
        windows = [one.window("unprofiled") for one in self.facts]
        if len(steps) < 2 or len({(one.first_step, one.steps) for one in windows if one is not None}) > 1:
            return []
        found = []
        for busy in zip(*steps.values(), strict=True):
            of_rank = dict(zip(steps, busy, strict=True))
            latest = max(of_rank, key=lambda rank: of_rank[rank])
            found.append((latest, of_rank[latest] - mean(ns for rank, ns in of_rank.items() if rank != latest)))
        return found

    def late_untraced(self, lag_ns: int = 0) -> list[int]:
        """The late rank of each step without the profiler, where most of those show a lag like the traced `lag_ns`.

        Empty where they do not: a sleep in a backward pass shows in traced steps only.
        """
        untraced = self.untraced_lags()
        far_ns = max(_LAG_SHARE * (self.measured.step.known("median_ns") or 0), _STEADY * lag_ns)
        late = [rank for rank, ns in untraced if ns >= far_ns > 0]
        return late if len(late) >= max(_ENOUGH_LAGS, len(untraced) / 2) else []

    def leads(self, late: StragglerFigures, least_share: float, most_chance: float) -> bool:
        """Whether it is the same rank that the others wait for, and not another in each step.

        Steps without the profiler decide where ranks lie as far apart in most of them: there are more, and nothing
        slows them. Otherwise the traced ones do: equal ranks are rarely late as often (`most_chance`), or it is late in
        every step by much the same.
        """
        untraced = self.late_untraced(late.lag_ns)
        if untraced:
            return untraced.count(late.rank) >= LEADING * len(untraced)
        ranks = {one.rank: one for one in self.measured.ranks}
        lags = [one.lag_ns for one in ranks[late.rank].arrival.steps]
        least_ns = max(_STEADY * late.lag_ns, _LAG_SHARE * self.measured.traced_step_ns)
        steady = min(lags, default=0) >= least_ns
        often = steady or late.chance(len(lags), len(ranks)) <= most_chance
        return late.steps_share >= least_share and often

    def most_share(self, class_ns: str) -> float:
        """The share of a traced step in a class of the account, in each step on the device where it takes longest.

        That is what the class can hold up a step for: the other devices wait for that one.
        """
        by_step: dict[int, int] = {}
        for rank in self.measured.ranks:
            for step in (step for device in rank.devices for step in device.steps):
                by_step[step.number] = max(by_step.get(step.number, 0), getattr(step.account, class_ns))
        return sum(by_step.values()) / max(1, len(by_step)) / self.measured.traced_step_ns

    def idle_share(self) -> float:
        """The share of a step in which no device computes that computes longest in it.

        The profiler slows the host, not what GPUs compute; and no step is shorter than what one of them computes.
        """
        computed_ns = self.most_share("compute_ns") * self.measured.traced_step_ns
        return max(0.0, 1 - computed_ns / self.measured.recorded_step_ns)

    def allocating_share(self) -> float:
        """The share of a step in calls for memory of the device, on the rank with most of them; 0 if not known."""
        told = [one.known("malloc_share") for one in self.measured.known("memory") or []]
        return max((share for share in told if share is not None), default=0.0)
