"""What a rule can ask about a change: what it saves, and on what basis."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Protocol

from dptune.advice import Advice, Basis, Change, Saving
from dptune.knobs import Value
from dptune.measured import Missing
from dptune.measured.figure import decimals
from dptune.rule.declared import Rule
from dptune.rule.ranks import RanksView
from dptune.runfile.hot_lines import part_at, passes, sampled_by_rank
from dptune.runfile.removed import Share, saved_share, saved_share_of_steps
from dptune.runfile.repeated_forward import FrozenFeatureFacts, RepeatedForwardFacts
from dptune.runfile.same_results import SameResultFacts, shares_again
from dptune.runfile.slow_steps import SlowSteps, share_of

_SAVED_PART = (0.8, 1.1)  # of the time of removed work: lower and upper end
_SAMPLED_PART = (0.8, 1.3)  # the same for sampled work: most measured savings exceeded the sampled time
_BACKWARD_PART = (0.5, 1.5)  # of a part of the backward pass that is estimated by the forward pass
_LOADER_LIMITS = 0.1  # of a step: devices that wait so long for batches mostly wait longer if they compute faster
_HOST_LIMITS = 0.05  # of a step that devices idle because of the host
UNVALIDATED = "; GPU predictions have been checked against measured steps on one H200 only"


@dataclass(frozen=True)
class RunView(RanksView):
    """What a rule can ask: the figures, the facts of each rank, its thresholds, and what a change would save.

    `times_hold`: whether step times are reliable enough for advice; they are not on a machine that other processes keep
    busy. Reading a missing figure or fact raises `Missing`; the engine then reports the rule as skipped.
    """

    def without_slow_steps(self, cause: SlowSteps, durations_ns: Sequence[int]) -> Saving | None:
        """The saving of the mean step without the cause of slow steps; `durations_ns` are all timed steps.

        None where the cause was not sampled, or where the saving may be zero.
        """
        found = share_of(cause, durations_ns)
        if not cause.where or found.least <= 0:
            return None
        how = f"the extra time of {len(cause.steps)} slow steps; the interval includes their variation"
        return self.timed(found.least, found.likely, found.most, how, durations_ns)

    def line_share(self, where: str) -> float | None:
        """The share of the untraced steps that a line of the script and what it calls take, most of any rank.

        None where stack samples are too few.
        """
        found = sampled_by_rank(self.facts, lambda sample: passes(sample, where))
        return None if found is None else max(share.likely for share in found.by_rank.values())

    def part_at(self, name: str, at: str, where: str) -> float | None:
        """The part of a function's time in which a line is on the stack; None where the function was not sampled."""
        return part_at(self.facts, name, at, where)

    def bound(self, low_share: float, high_share: float, how: str, *, in_few_steps: bool = False) -> Saving:
        """A saving between two shares of the step that is an upper bound.

        `in_few_steps`: most steps do not contain the time that is saved, so milliseconds refer to the mean step.
        """
        step = self.measured.step
        mean_ns = (step.untraced_mean_ns or step.time_ns) if in_few_steps else None
        return self._saving(low_share, high_share, "bound", how, mean_ns=mean_ns)

    def bound_of_all(self, high_share: float, how: str, durations_ns: Sequence[float]) -> Saving:
        """An upper bound as a share of the time of all steps, for example of slow ones: milliseconds of the mean step.

        `durations_ns` are all these steps. Their mean is scaled to the step time, like all milliseconds of a report.
        """
        times = mean(durations_ns) / median(durations_ns)
        return self._saving(0.0, high_share, "bound", how, mean_ns=times * self.measured.step.time_ns)

    def without_function(self, name: str, at: str, calling: str = "") -> Saving | None:
        """What a CPU run saves without a function of the script that is not part of training.

        None where stack samples are too few or not from every rank, and on a GPU, which may hide the time.
        """
        found = self.sampled_share(name, at, calling)
        if found is None:
            return None
        named = f"`{calling}` in `{name}`" if calling else f"`{name}`"
        return self.removed(found.by_rank, f"{named} is in {found.samples} stack samples")

    def removed(
        self,
        spent: Mapping[int, Share],
        how: str,
        saved_part: tuple[float, float] = _SAMPLED_PART,
        *,
        timed: bool = False,
    ) -> Saving | None:
        """What a CPU run saves without work that takes these shares of the steps of each rank.

        They are known from stack samples, or, if `timed`, from times measured in untraced steps.

        Ranks that are not in `spent` do none of the work; `saved_part` is the least and the largest part of it that is
        saved. None where devices compute, which may hide the work, where not all ranks were recorded, and where the
        saving may be zero: use a bound then.
        """
        if not self._every_rank():
            return None
        ranks = self.measured.known("world_size") or len(self.facts)
        share = saved_share(spent, self._busy_steps(with_input=True), self.measured.step.time_ns, ranks)
        alone = [rank for rank, spent_share in spent.items() if spent_share.likely]
        by_rank = "" if len(alone) == ranks else f" of rank {', '.join(map(str, alone))}"
        if share.least <= 0:
            return None
        if timed:
            return self.timed(share.least, share.likely, share.most, f"{how}{by_rank}", saved_part=saved_part)
        how = f"{how}{by_rank}; the interval includes the sampling error"
        return self.sampled(share.least, share.likely, share.most, how, saved_part)

    def removed_of_steps(
        self, spent_ns: Mapping[int, Sequence[int]], how: str, *, in_turn: bool = False
    ) -> Saving | None:
        """What a CPU run saves without work that was timed in each step without the profiler, of the mean step.

        `in_turn`: ranks may do the work one after another, and each may hold up all others.
        """
        windows = {facts.rank: facts.window("untraced") for facts in self.facts}
        durations_ns = {rank: window.durations_ns for rank, window in windows.items() if window is not None}
        numbers = {(window.first_step, window.steps) for window in windows.values() if window is not None}
        if not self._every_rank() or set(spent_ns) != set(durations_ns) or len(numbers) != 1:
            return None
        share = saved_share_of_steps(spent_ns, durations_ns, self._busy_steps(with_input=True), in_turn=in_turn)
        all_ns = [mean(step_durations_ns) for step_durations_ns in zip(*durations_ns.values(), strict=True)]
        return self.timed(share.least, share.likely, share.most, how, all_ns) if share.least > 0 else None

    def _every_rank(self) -> bool:
        """Whether CPUs compute, and all ranks of the run have facts."""
        ranks = self.measured.known("world_size") or len(self.facts)
        return self.measured.known("device_kind") == "cpu" and len(self.facts) == ranks

    def without_repeated(self, found: RepeatedForwardFacts) -> Saving | None:
        """What a CPU run saves without the calls that repeat a forward pass, by their times in warm-up steps.

        A call that is left out takes its whole time with it, and its part of the backward pass, which is estimated.
        None where rows repeat or prefixes grow, because the time of what is left is not known then; where fewer than
        two steps were watched, where times do not hold, and where the saving may be zero.
        """
        if found.prefixes or found.rows_repeat > 1:
            return None
        spent = {}
        for facts in self.facts:
            same = (each for each in facts.repeated_forward if each.kind == found.kind)
            own, window = next(same, None), facts.window("untraced")
            if own is None or window is None or len(own.step_ns) < 2 or not sum(window.durations_ns):
                continue
            shares = [min(1.0, again / step) for again, step in zip(own.again_ns, own.step_ns, strict=True)]
            again = own.backward_part * sum(window.backward_ns) / sum(window.durations_ns) if any(own.graph_ns) else 0.0
            ends = (min(shares), _BACKWARD_PART[0]), (median(shares), 1.0), (max(shares), _BACKWARD_PART[1])
            spent[facts.rank] = Share(*(min(1.0, share + part * again) for share, part in ends))
        steps = len(found.step_ns)
        how = f"the time of these calls in {steps} warm-up steps; the interval includes how it varies"
        return self.removed(spent, how, timed=True) if spent and self.times_hold else None

    def without_fixed(self, found: FrozenFeatureFacts) -> Saving | None:
        """What a CPU run saves without the calls of a frozen module on fixed inputs, by their times in warm-up steps.

        None where times do not hold, and where the saving may be zero.
        """
        spent = {}
        for facts in self.facts:
            same = next((each for each in facts.frozen_features if each.module == found.module), None)
            if same is not None and len(same.step_ns) > 1 and same.same_inputs:
                shares = [min(1.0, ns / step) for ns, step in zip(same.spent_ns, same.step_ns, strict=True)]
                spent[facts.rank] = Share(min(shares), median(shares), max(shares))
        how = f"the time of these calls in {len(found.step_ns)} warm-up steps; the interval includes how it varies"
        return self.removed(spent, how, timed=True) if spent and self.times_hold else None

    def without_same(self, found: Sequence[SameResultFacts], most: float) -> Saving | None:
        """What a CPU run saves without operators that compute the same again, by their times in warm-up steps.

        `found`: of one or more functions; `most` is the upper end that is known otherwise. None where fewer than two
        steps were compared, where times do not hold, and where the saving may be zero.
        """
        spent = {}
        for facts in self.facts:
            same = [result for result in facts.same_results if any(result.kind == each.kind for each in found)]
            shares = shares_again(same)
            if len(shares) > 1:
                spent[facts.rank] = Share(min(shares), median(shares), max(most, *shares))
        steps = len(found[0].step_ns)
        how = f"the time of these operators in {steps} warm-up steps; the interval includes how it varies"
        return self.removed(spent, how, timed=True) if spent and self.times_hold else None

    def sampled(
        self,
        low_share: float,
        likely_share: float,
        high_share: float,
        how: str,
        saved_part: tuple[float, float] = _SAMPLED_PART,
    ) -> Saving:
        """The saving from removing work whose time is known from stack samples of untraced steps.

        `saved_part` is the least and the largest part of this time that is saved. The default starts at four fifths,
        because some work usually remains every N steps, and ends three tenths above the time, because other ranks on
        the same cores and the code that runs next are also faster.
        """
        most = min(1.0, saved_part[1] * high_share)
        low = min(most, saved_part[0] * low_share)
        return self._saving(low, most, "sampled", how, min(most, max(low, likely_share)))

    def timed(
        self,
        low_share: float,
        likely_share: float,
        high_share: float,
        how: str,
        durations_ns: Sequence[float] | None = None,
        saved_part: tuple[float, float] = _SAVED_PART,
    ) -> Saving:
        """The saving from removing work that was timed in untraced steps.

        `saved_part` is the least and the largest part of its time that is saved.

        With `durations_ns` of these steps, the shares refer to their mean, else to the step time.
        """
        times = 1.0 if durations_ns is None else mean(durations_ns) / median(durations_ns)
        mean_ns = None if durations_ns is None else times * self.measured.step.time_ns
        most = min(1.0, saved_part[1] * high_share)
        low = min(most, saved_part[0] * low_share)
        return self._saving(low, most, "timed", how, min(most, max(low, likely_share)), mean_ns)

    def of_pass(self, share: float, least: float, likely: float, most: float, how: str) -> Saving | None:
        """What a CPU run saves without a part of backward passes that take this share of the step, by their operators.

        Of several ranks the lower end counts the time in which passes compute: in the rest they may wait for
        collectives. None on a GPU, and where the saving may be zero.
        """
        window = self.facts[0].window("untraced") if self.facts else None
        if self.measured.known("device_kind") != "cpu" or window is None or not sum(window.backward_cpu_ns):
            return None
        alone = self.measured.known("world_size") == 1
        computing = 1.0 if alone else min(1.0, sum(window.backward_cpu_ns) / max(1, sum(window.backward_ns)))
        least *= share * computing
        return self.timed(least, max(least, share * likely), share * most, how) if least > 0 else None

    def narrowed(self, saves: Saving, low_share: float, likely_share: float, high_share: float, why: str) -> Saving:
        """A prediction with other shares of the step; `why` is appended to its explanation."""
        narrow = self._saving(low_share, high_share, saves.basis, f"{saves.how}, {why}", likely_share)
        return narrow.model_copy(update={"samples_times": saves.samples_times, "settings": saves.settings})

    def _saving(
        self,
        low_share: float,
        high_share: float,
        basis: Basis,
        how: str,
        predicted_share: float | None = None,
        mean_ns: float | None = None,
    ) -> Saving:
        """The shares refer to the mean step if it is given, or if the step time is the mean of uneven steps."""
        step = self.measured.step
        mean_ns = step.time_ns if mean_ns is None and step.uneven else mean_ns
        step_ns = step.time_ns if mean_ns is None else mean_ns
        batch = None if self.measured.samples_inferred else self.measured.known("samples_per_step")
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

    def predict(self, changes: Sequence[Change] | Mapping[str, Value]) -> Saving:
        """What the changes together would save, by replaying the recorded steps with them.

        Pass changes of knobs, or a mapping of any settings that `dptune whatif --set` accepts, including those that no
        script can set. If they change the batch, the saving is in time per sample. Raises Missing where the run has no
        step model, or the model cannot predict a change.
        """
        settings = dict(changes) if isinstance(changes, Mapping) else _settings(changes)
        if self.predictor is None:
            raise Missing(f"no step model can predict {', '.join(settings)}")
        prediction = self.predictor(settings)
        step_ns = self.measured.step.time_ns
        before, after = self.measured.known("samples_per_step"), prediction.known("global_batch")
        grown = after / before if before and after else 1.0
        times = (prediction.high_ns, prediction.step_ns, prediction.low_ns)
        low, likely, high = (min(1.0, max(0.0, 1 - ns / grown / step_ns)) for ns in times)
        how = (
            f"replayed with the change, a step takes {decimals(prediction.step_ns / 1e6)} ms instead of "
            f"{decimals(step_ns / 1e6)}"
        )
        how += f", with {grown:.3g}x the samples" if grown != 1 else ""
        how += UNVALIDATED if self.measured.known("device_kind") not in ("cpu", None) else ""
        found = self._saving(low, high, "replayed", how, likely)
        return found.model_copy(update={"samples_times": grown, "settings": settings})

    def predict_of_less(self, samples: int, bound: Saving, how: str) -> Saving:
        """What a step saves whose passes compute as on so many samples of the loader, in the same number of samples.

        The interval ends at `bound`, of what may shrink by more than that. Raises Missing as `predict` does.
        """
        if self.predictor is None:
            raise Missing("no step model can predict shorter passes")
        prediction = self.predictor({"loader.batch_size": samples})
        step_ns = self.measured.step.time_ns
        low, likely = (max(0.0, 1 - ns / step_ns) for ns in (prediction.high_ns, prediction.step_ns))
        high = max(likely, bound.high_share)
        how = f"{how}, a step takes {decimals(prediction.step_ns / 1e6)} ms instead of {decimals(step_ns / 1e6)}"
        return self._saving(low, high, "replayed", f"{how}; upper end: {bound.how}", likely)

    def ceiling(self, changes: Sequence[Change] | Mapping[str, Value]) -> Saving:
        """An upper bound of what the changes together would save, where the step model is too inaccurate to predict.

        The bound includes the reason why it is not a prediction. Raises Missing where the model gives no bound.
        """
        settings = dict(changes) if isinstance(changes, Mapping) else _settings(changes)
        if self.predictor is None:
            raise Missing(f"no step model can predict {', '.join(settings)}")
        prediction = self.predictor(settings)
        before, after = self.measured.known("samples_per_step"), prediction.known("global_batch")
        grown = after / before if before and after else 1.0
        step_ns, least_ns = self.measured.step.time_ns, prediction.low_ns
        if settings.keys() == {"loader.batch_size"} and grown > 1:
            least_ns = max(least_ns, step_ns)  # more samples make no step shorter
        most = min(1.0, max(0.0, 1 - least_ns / grown / step_ns))
        how = "upper bound by replay; the replay does not match the recorded steps"
        bound = self.bound(0.0, most, how)
        why = prediction.missing.get("step_ns", "")
        return bound.without_prediction(why).model_copy(update={"samples_times": grown, "settings": settings})

    def saving(self, changes: Sequence[Change] | Mapping[str, Value], bound: Saving) -> Saving:
        """What the changes would save: predicted by replay, or `bound` if the model cannot predict it.

        The steps of a GPU trace without untraced steps have a host that the profiler slows. It hides what the device
        would save: a prediction that includes zero only limits the bound there, if devices hardly wait for the host.
        """
        try:
            found = self.predict(changes)
        except Missing as lack:
            return bound.without_prediction(lack.reason)
        on_gpus = self.measured.known("device_kind") not in ("cpu", None)
        if found.may_be_nothing and on_gpus and self.measured.step.basis != "untraced":
            why = "in the replay, profiler overhead on the host may hide the saving"
            limited = self._limited(bound, found).without_prediction(why)
            return limited.model_copy(update={"settings": found.settings})
        return found

    def _limited(self, bound: Saving, found: Saving) -> Saving:
        """A bound limited to the most that a replay saves, where devices wait for compute or the loader, not the host.

        The profiler slows neither. All idle time that the host causes is counted to the saving.
        """
        host = self.host_caused_idle_share()
        most = found.high_share + host
        if not found.high_share or host >= _HOST_LIMITS or most >= bound.high_share:
            return bound
        waits = self.measured.share("input_idle_ns") >= _LOADER_LIMITS
        how = f"{bound.how}; limited by replay, which saves {100 * (found.predicted_share or 0):.1f} % of a step"
        how += f" ({100 * found.low_share:.0f} to {100 * found.high_share:.1f} %) and idle time of the host"
        return self.bound(0.0, most, f"{how}: the rest becomes waiting for the data loader" if waits else how)


def _settings(changes: Sequence[Change]) -> dict[str, Value]:
    settings = {change.knob: change.then for change in changes}
    if any(settings[change.knob] != change.then for change in changes):
        raise Missing("one setting has different values in several places; the step model supports only one value")
    return settings


class RuleModule(Protocol):
    """The shape of a rule file."""

    RULE: Rule

    def check(self, run: RunView) -> Iterator[Advice]:
        """Yield advice, or nothing if the run has no such problem."""
        ...
