"""What a rule declares and what it may ask.

A rule is a module with `RULE = Rule(...)` and `check(run: RunView) -> Iterator[Advice]`. A pack is a package whose
modules are rules, registered under the entry point `dptune.rules`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isclose, isfinite
from statistics import mean, median
from typing import Protocol

from dptune.advice import Advice, Basis, Change, Impact, Kind, Saving, impact_of
from dptune.knobs import Value
from dptune.measured import CommunicationFigures, Measured, Missing, StragglerFigures, digits
from dptune.predicted import Prediction
from dptune.runfile.dealt_batches import DealtBatches, dealt_batches
from dptune.runfile.dense_tables import DenseTableFacts
from dptune.runfile.epochs import EpochStarts, enough_steps, epoch_starts, epoch_steps, restarted
from dptune.runfile.facts import Facts
from dptune.runfile.hot_lines import SampledShare, found_share, hottest_line, sampled_phase, sampled_share
from dptune.runfile.loader_lines import HotFunction, hottest_in_loader, least_wait_share
from dptune.runfile.memory_growth import MemoryGrowth, memory_growth
from dptune.runfile.removed import Share, spared, spared_of_steps
from dptune.runfile.slow_steps import SlowSteps, share_of, slow_steps
from dptune.runfile.work_between import HostWork, work_between
from dptune.runfile.work_kinds import kind_of

_ROUNDING = 1e-9  # of sums in 64 bits: equal weights agree to the last bit, or nearly so on other processors
_LAG_SHARE = 0.1  # of the step, from which on a rank is late: on shared machines healthy ones are late by some per cent
_STEADY = 0.5  # of the median lag, in every traced step: then it is no chance, of however few steps
_ENOUGH_LAGS = 10  # untraced steps with a late rank
_GONE, _GAINED = 0.8, 1.1
LEADING = 0.75  # of those: one of two equal ranks is the later one in 15 of 20 with 4 %

UNVALIDATED = "; GPU predictions have been checked against measured steps for batch sizes only, on one H200"

Predictor = Callable[[Mapping[str, Value]], Prediction]

__all__ = [
    "LEADING",
    "DenseTableFacts",
    "MemoryGrowth",
    "Missing",
    "Rule",
    "RuleModule",
    "RunView",
    "Share",
    "SlowSteps",
    "Threshold",
]


@dataclass(frozen=True)
class Threshold:
    """A number a rule decides by: its name in `[tool.dptune.rules.<code>]`, its default, and the reason for it."""

    name: str
    default: float
    reason: str


@dataclass(frozen=True)
class Rule:
    """What a rule declares. `code` is the family and a number; `since` the version it appeared in.

    A `preview` rule runs with `preview = true`, or when its whole code is selected. One that comes `last` is asked
    after all others, and sees their advice in `RunView.advised`. One that is `asked_when_busy` is also asked where the
    step times are no basis for advice; `RunView.times_hold` then is False.
    """

    code: str
    name: str
    family: str
    kind: Kind
    summary: str
    since: str
    thresholds: tuple[Threshold, ...] = ()
    preview: bool = False
    last: bool = False
    asked_when_busy: bool = False


@dataclass(frozen=True)
class RunView:
    """What a rule may ask: the figures, the facts of each rank, its own thresholds, and what a change would do.

    `times_hold`: whether the step times are a basis for advice. They are none on a machine that other processes keep
    busy. Reading a figure or a fact that is not there raises `Missing`; the engine then reports the rule as skipped.
    """

    measured: Measured
    facts: Sequence[Facts]
    limits: Mapping[str, float] = field(default_factory=dict)
    predictor: Predictor | None = None
    advised: Sequence[Advice] = ()
    times_hold: bool = True

    def limit(self, threshold: Threshold) -> float:
        """The threshold's value: the user's, else its default."""
        return self.limits.get(threshold.name, threshold.default)

    def impact(self, share: float, least: Threshold) -> Impact | None:
        """Impact of something that takes a share of the step; None below `least`, and where it takes nothing.

        A user who sets that below what a note is wants to hear of less: it is a note, too.
        """
        return None if share <= 0 or share < self.limit(least) else impact_of(share) or "low"

    def any_facts(self) -> Facts:
        """The facts of the lowest recorded rank; raises Missing for a trace that dptune did not record."""
        if not self.facts:
            raise Missing("the run has no facts: it was not recorded by `dptune profile`")
        return self.facts[0]

    def explained(self, *names: str) -> bool:
        """Whether advice of another rule on time names one of these: a function, or a file and line.

        Only a rule that comes `last` sees the advice of the others.
        """
        words = [re.compile(rf"(?<![\w.]){re.escape(name)}(?=`| \(| at |[,;)]|$)") for name in names if name]
        texts = (text for one in self.advised if one.kind == "time" for text in _texts(one))
        return any(word.search(text) for text in texts for word in words)

    def weights_agree(self) -> bool | None:
        """Whether all ranks held the same weights after the last window that all have; None where it is not known."""
        for own in reversed(self.facts[0].windows) if len(self.facts) > 1 else ():
            windows = [one.window(own.name) for one in self.facts]
            whole = [one for one in windows if one is not None and one.complete and one.parameter_sums]
            shapes = {(one.first_step, one.steps, len(one.parameter_sums)) for one in whole}
            if len(whole) != len(self.facts) or len(shapes) > 1:
                continue
            if not all(isfinite(total) for one in whole for total in one.parameter_sums):
                return None
            pairs = [pair for one in whole for pair in zip(own.parameter_sums, one.parameter_sums, strict=True)]
            return all(isclose(a, b, rel_tol=_ROUNDING, abs_tol=_ROUNDING) for a, b in pairs)
        return None

    def epoch_starts(self) -> EpochStarts:
        """Recorded steps that begin an epoch of the loader whose workers start anew for each, on the lowest rank.

        Raises Missing where there is no such loader, and where no step was recorded that begins one, with how many
        steps that takes.
        """
        facts, ranks = self.any_facts(), self.measured.world_size
        if restarted(facts) is None:
            raise Missing("no loader restarts its workers for each epoch")
        steps = epoch_steps(facts, ranks)
        if steps is None:
            raise Missing("how many batches an epoch has was not recorded")
        found = epoch_starts(facts, ranks)
        if found is None:
            enough = enough_steps(steps)
            raise Missing(
                f"no recorded step starts an epoch of {digits(steps)} steps: record {enough:,} without the "
                f"profiler (--unprofiled {enough} --window-time 0)"
            )
        return found

    def slow_steps(self, times: float) -> list[SlowSteps]:
        """What the script does in steps that take `times` the median or more, most time first.

        Raises Missing where no steps were timed without the profiler, as in a run that dptune did not record.
        """
        self.any_facts()
        if not any((window := one.window("unprofiled")) and window.steps for one in self.facts):
            raise Missing("no steps were timed without the profiler")
        return slow_steps(self.facts, times)

    def without_slow_steps(self, cause: SlowSteps, durations_ns: Sequence[int]) -> Saving | None:
        """What a mean step saves without what makes some steps slow, from how long these steps took, in ns each.

        None where nothing was found that they do, and where it may be nothing.
        """
        found = share_of(cause, durations_ns)
        if not cause.where or found.least <= 0:
            return None
        how = f"the extra time of {len(cause.steps)} slow steps; the interval includes how much they differ"
        return self.timed(found.least, found.likely, found.most, how, durations_ns)

    def work_between(self) -> list[HostWork]:
        """Logging, metrics, plotting and saving in the usual steps, by function and line, most time first.

        Raises Missing where the training thread was not looked at while steps were timed.
        """
        self.any_facts()
        if not any((window := one.window("unprofiled")) and window.sampled for one in self.facts):
            raise Missing(
                "the script's stack was not sampled in untraced steps: record again, with more (--unprofiled)"
            )
        return work_between(self.facts)

    def memory_growth(self) -> list[MemoryGrowth]:
        """The ranks that hold more after each step, by tensors counted between windows, or a GPU's allocator.

        Empty where it does not grow, or nothing was recorded of it.
        """
        return memory_growth(self.facts)

    def collects_experience(self, name: str) -> bool:
        """Whether a function of that name collects what reinforcement learning trains on: `rollout`, `play_episode`."""
        return kind_of(name) == "experience"

    def reports(self, name: str) -> bool:
        """Whether a function of that name logs, computes metrics, plots, evaluates or saves."""
        return kind_of(name) not in ("", "experience")

    def hottest_line(self, name: str, at: str, calling: str = "") -> str | None:
        """`file:line` in the function of that name and file where the script was found most; None if it rarely was.

        `calling`: only while that line itself calls a library's function of this name.
        """
        return hottest_line(self.facts, name, at.rpartition(":")[0] or at, calling)

    def hottest_in_loader(self) -> HotFunction | None:
        """The function of the script in which batches are prepared most of the time; None where it was not seen."""
        return hottest_in_loader(self.facts)

    def least_loader_wait(self) -> float:
        """The least share of any window on any rank that a loader without workers is waited for; 0 where one has some.

        Workers may wait for cores that other processes took.
        """
        return least_wait_share(self.facts)

    def ranks_here(self) -> int:
        """Ranks on the host of the first recorded one, as far as is known."""
        local = [1 + (one.local_rank or 0) for one in self.facts if one.host == self.facts[0].host]
        return max(len(local), *local)

    def dealt_batches(self, rank: int) -> DealtBatches | None:
        """What the loader deals this rank beside the others; None where they train no replicas, or it is not known."""
        return dealt_batches(self.facts, rank)

    def backward_share(self, spent_ns: int) -> float:
        """The share of a step that backward passes take, which ran on the host for `spent_ns` in the unprofiled window.

        On a GPU it is their part of the compute of all backward passes. Raises Missing where that is not known.
        """
        window = self.any_facts().window("unprofiled")
        if window is None or not window.steps:
            raise Missing("no steps were timed without the profiler")
        if self.measured.device_kind == "cpu":
            return min(1.0, spent_ns / sum(window.durations_ns))
        phases = {one.phase: one for one in self.measured.phases}
        if "backward" not in phases or not any(window.backward_ns):
            raise Missing("the traces do not separate the backward pass from the rest")
        part = min(1.0, spent_ns / sum(window.backward_ns))
        share: float = part * phases["backward"].compute_ns / self.measured.account.window_ns
        return share

    def gpu(self) -> tuple[str, str]:
        """Compute capability and name of the first GPU, "" where it is not known; raises Missing without either."""
        device = self.facts[0].device if self.facts else None
        names = (rank.known("device_name") for rank in self.measured.ranks)
        capability, name = device.capability if device else "", next(filter(None, names), "")
        if not capability and not name:
            raise Missing("the traces do not name the GPU, so what its tensor cores compute in is not known")
        return capability, name

    def bound(self, low_share: float, high_share: float, how: str, *, in_few_steps: bool = False) -> Saving:
        """A saving between two shares of the step that is a bound: more cannot be saved.

        `in_few_steps`: most steps do not have what is saved, so ms are of the mean step.
        """
        step = self.measured.step
        mean_ns = (step.unprofiled_mean_ns or step.median_ns) if in_few_steps else None
        return self._saving(low_share, high_share, "bound", how, mean_ns=mean_ns)

    def bound_of_all(self, high_share: float, how: str, durations_ns: Sequence[float]) -> Saving:
        """A bound that is a share of the time of all steps, such as some that are slow: ms of the mean step.

        `durations_ns` are those steps. Their mean is told on the level of the step time, as all ms of a report are.
        """
        times = mean(durations_ns) / median(durations_ns)
        return self._saving(0.0, high_share, "bound", how, mean_ns=times * self.measured.step.median_ns)

    def agreed_share(self, share: float, rank: int, name: str, at: str) -> float:
        """A function's share of the few steps of the detailed window, but no more than stack samples of many find."""
        found = self.found_share(rank, name, at)
        return share if found is None else min(share, found[1])

    def found_share(self, rank: int, name: str, at: str) -> tuple[float, float] | None:
        """The share of a rank's steps without the profiler in which a function is on the stack, and at most.

        With all that it calls. None where the stack was sampled too rarely.
        """
        return found_share(self.facts, rank, name, at.rpartition(":")[0] or at)

    def sampled_share(self, name: str, at: str, calling: str = "", *, training: bool = False) -> SampledShare | None:
        """The share of the steps without the profiler in which a function runs on each rank, by stack samples.

        `calling`: only while its line calls a library's function of this name; `training`: in forward passes and the
        like as well. None where it was found too rarely.
        """
        return sampled_share(self.facts, name, at.rpartition(":")[0] or at, calling, training=training)

    def sampled_phase(self, phase: str) -> SampledShare | None:
        """The same of a phase: `forward`, `backward`, `optimizer`, `loader` or `collective`."""
        return sampled_phase(self.facts, phase)

    def without_function(self, name: str, at: str, calling: str = "") -> Saving | None:
        """What a CPU run saves without a function of the script that runs beside training.

        None where stack samples do not tell: too few, or of some ranks only. A GPU may hide such time.
        """
        found = self.sampled_share(name, at, calling)
        if found is None:
            return None
        named = f"`{calling}` in `{name}`" if calling else f"`{name}`"
        return self.removed(found.by_rank, f"{named} is in {found.looks} stack samples")

    def removed(
        self, spent: Mapping[int, Share], how: str, gone: tuple[float, float] = (_GONE, _GAINED)
    ) -> Saving | None:
        """What a CPU run saves without work that takes these shares of the steps of each rank, by stack samples.

        Ranks that are not named do none of it; `gone` is the part of it that goes away, at least and at most. None
        where devices compute, which may hide it, where not all ranks were recorded, and where it may be nothing: then a
        bound is all that is known.
        """
        if not self._every_rank():
            return None
        ranks = self.measured.known("world_size") or len(self.facts)
        left = spared(spent, self._busy_steps(feeding=True), self.measured.step.median_ns, ranks)
        alone = [rank for rank, one in spent.items() if one.likely]
        by_rank = "" if len(alone) == ranks else f" of rank {', '.join(map(str, alone))}"
        how = f"{how}{by_rank}; the interval includes the sampling error"
        return self.sampled(left.least, left.likely, left.most, how, gone) if left.least > 0 else None

    def removed_of_steps(
        self, spent_ns: Mapping[int, Sequence[int]], how: str, *, in_turn: bool = False
    ) -> Saving | None:
        """The same of work that was timed in each step without the profiler, as a share of the mean step.

        `in_turn`: ranks may do it one after another, and each may hold up all others.
        """
        windows = {one.rank: one.window("unprofiled") for one in self.facts}
        durations_ns = {rank: window.durations_ns for rank, window in windows.items() if window is not None}
        numbers = {(window.first_step, window.steps) for window in windows.values() if window is not None}
        if not self._every_rank() or set(spent_ns) != set(durations_ns) or len(numbers) != 1:
            return None
        left = spared_of_steps(spent_ns, durations_ns, self._busy_steps(feeding=True), in_turn=in_turn)
        all_ns = [mean(own) for own in zip(*durations_ns.values(), strict=True)]
        return self.timed(left.least, left.likely, left.most, how, all_ns) if left.least > 0 else None

    def _every_rank(self) -> bool:
        """Whether CPUs compute, and all ranks of the run have facts."""
        ranks = self.measured.known("world_size") or len(self.facts)
        return self.measured.known("device_kind") == "cpu" and len(self.facts) == ranks

    def sampled(
        self,
        low_share: float,
        likely_share: float,
        high_share: float,
        how: str,
        gone: tuple[float, float] = (_GONE, _GAINED),
    ) -> Saving:
        """A saving that is the time of something which goes away, by stack samples of steps without the profiler.

        `gone` is the part of it that does, at least and at most. By default at least four fifths: what takes its place,
        every so many steps, is left. And a tenth more: with other ranks on the same cores these gain, too.
        """
        most = min(1.0, gone[1] * high_share)
        low = min(most, gone[0] * low_share)
        return self._saving(low, most, "sampled", how, min(most, max(low, likely_share)))

    def timed(
        self,
        low_share: float,
        likely_share: float,
        high_share: float,
        how: str,
        durations_ns: Sequence[float] | None = None,
        gone: tuple[float, float] = (_GONE, _GAINED),
    ) -> Saving:
        """The same of something that was timed in steps without the profiler.

        With `durations_ns`, of those steps, the shares are of their mean, else of the step time.
        """
        times = 1.0 if durations_ns is None else mean(durations_ns) / median(durations_ns)
        mean_ns = None if durations_ns is None else times * self.measured.step.median_ns
        most = min(1.0, gone[1] * high_share)
        low = min(most, gone[0] * low_share)
        return self._saving(low, most, "timed", how, min(most, max(low, likely_share)), mean_ns)

    def narrowed(self, saves: Saving, low_share: float, likely_share: float, high_share: float, why: str) -> Saving:
        """A prediction between other shares of the step, for a reason that its text then ends with."""
        narrow = self._saving(low_share, high_share, saves.basis, f"{saves.how}, {why}", likely_share)
        return narrow.model_copy(update={"samples_times": saves.samples_times})

    def _saving(
        self,
        low_share: float,
        high_share: float,
        basis: Basis,
        how: str,
        predicted_share: float | None = None,
        mean_ns: float | None = None,
    ) -> Saving:
        """The shares are of the mean step where that is given or the step time is a mean of uneven steps."""
        step = self.measured.step
        mean_ns = step.median_ns if mean_ns is None and step.uneven else mean_ns
        step_ns = step.median_ns if mean_ns is None else mean_ns
        batch = self.measured.known("samples_per_step")
        per_sample_us = step_ns / batch / 1e3 if batch else None
        return Saving(
            low_ms=low_share * step_ns / 1e6,
            high_ms=high_share * step_ns / 1e6,
            low_share=low_share,
            high_share=high_share,
            low_us_per_sample=None if per_sample_us is None else low_share * per_sample_us,
            high_us_per_sample=None if per_sample_us is None else high_share * per_sample_us,
            mean_step_ms=None if mean_ns is None else mean_ns / 1e6,
            global_batch=batch,
            predicted_share=predicted_share,
            basis=basis,
            how=how,
        )

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

    def predict(self, changes: Sequence[Change] | Mapping[str, Value]) -> Saving:
        """What the changes together would save, by replaying the recorded steps with them.

        They are changes of knobs, or settings of anything that `dptune whatif --set` takes, by name: what no script can
        set, too. Where they change the batch, of the time that the samples of a step take. Raises Missing where the run
        has no step model, or that tells nothing of a change.
        """
        settings = changes if isinstance(changes, Mapping) else _settings(changes)
        if self.predictor is None:
            raise Missing(f"no step model to predict {', '.join(settings)} with")
        told = self.predictor(settings)
        step_ns = self.measured.step.median_ns
        before, after = self.measured.known("samples_per_step"), told.known("global_batch")
        grown = after / before if before and after else 1.0
        times = (told.high_ns, told.step_ns, told.low_ns)
        low, likely, high = (min(1.0, max(0.0, 1 - ns / grown / step_ns)) for ns in times)
        how = (
            f"replayed with the change, a step takes {digits(told.step_ns / 1e6)} ms instead of {digits(step_ns / 1e6)}"
        )
        how += f", with {grown:.3g} times the samples" if grown != 1 else ""
        how += UNVALIDATED if self.measured.known("device_kind") not in ("cpu", None) else ""
        return self._saving(low, high, "replayed", how, likely).model_copy(update={"samples_times": grown})

    def ceiling(self, changes: Sequence[Change] | Mapping[str, Value]) -> Saving:
        """What the changes together would save at most, where the step model misses too much to tell how much.

        A bound, with the reason why it is no prediction. Raises Missing where there is no model, or no bound of it.
        """
        settings = changes if isinstance(changes, Mapping) else _settings(changes)
        if self.predictor is None:
            raise Missing(f"no step model to predict {', '.join(settings)} with")
        told = self.predictor(settings)
        before, after = self.measured.known("samples_per_step"), told.known("global_batch")
        grown = after / before if before and after else 1.0
        step_ns, least_ns = self.measured.step.median_ns, told.low_ns
        if settings.keys() == {"loader.batch_size"} and grown > 1:
            least_ns = max(least_ns, step_ns)  # more samples make no step shorter
        most = min(1.0, max(0.0, 1 - least_ns / grown / step_ns))
        bound = self.bound(0.0, most, "no more than a replay with the change can save, which misses the recorded steps")
        why = told.missing.get("step_ns", "")
        return bound.without_prediction(why).model_copy(update={"samples_times": grown})

    def saving(self, changes: Sequence[Change] | Mapping[str, Value], bound: Saving) -> Saving:
        """What the changes would save: as replayed, or the bound where the run has no model that tells."""
        try:
            return self.predict(changes)
        except Missing as lack:
            return bound.without_prediction(lack.reason)


def _texts(advice: Advice) -> Iterator[str]:
    """What an advice names its cause in: its title, its evidence, and where its changes are made."""
    yield advice.title
    for evidence in advice.evidence:
        yield evidence.label
        yield str(evidence.value)
    for change in advice.changes:
        yield str(change.at or "")


def _settings(changes: Sequence[Change]) -> dict[str, Value]:
    settings = {change.knob: change.then for change in changes}
    if any(settings[change.knob] != change.then for change in changes):
        raise Missing("one setting gets several values, at several places: the model has one for all")
    return settings


class RuleModule(Protocol):
    """The shape of a rule file."""

    RULE: Rule

    def check(self, run: RunView) -> Iterator[Advice]:
        """Yield advice, or nothing on a run where there is nothing to say."""
        ...
