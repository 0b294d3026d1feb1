"""What a rule can ask about a change: what it saves, and on what basis."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Protocol

from dptune.advice import Advice, Change, Saving
from dptune.knobs import Value
from dptune.measured import Missing
from dptune.measured.figure import decimals
from dptune.predicted import Prediction
from dptune.rule.declared import Rule
from dptune.rule.removing import RemovedView
from dptune.runfile.hot_lines import part_at, passes, sampled_by_rank
from dptune.runfile.removed import Share
from dptune.runfile.repeated_forward import FrozenFeatureFacts, RepeatedForwardFacts
from dptune.runfile.same_results import SameResultFacts, shares_again
from dptune.runfile.slow_steps import SlowSteps, share_of

_BACKWARD_PART = (0.5, 1.5)  # of a part of the backward pass that is estimated by the forward pass
# Calls on rows that repeat: the part of the time of all but one of each that fewer rows saved. CPU time in turn,
# forward and backward: of networks that took 8 ms or more 82 to 97 %, of 1 to 5 ms between nothing and 89 %.
_OF_ROWS = (0.6, 0.9, 1.0)
_LONG_CALL_NS = 3_000_000  # of the forward pass
_LOADER_LIMITS = 0.1  # of a step: devices that wait so long for batches mostly wait longer if they compute faster
_HOST_LIMITS = 0.05  # of a step that devices idle because of the host
UNVALIDATED = "; GPU predictions have been checked against measured steps on one H200 only"


@dataclass(frozen=True)
class RunView(RemovedView):
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

    def without_repeated(self, found: RepeatedForwardFacts) -> Saving | None:
        """What a CPU run saves without the calls that repeat a forward pass, by their times in warm-up steps.

        A call that is left out takes its whole time with it, and its part of the backward pass, which is estimated; of
        repeated rows the part that fewer rows saved in measurements. None where prefixes grow or short calls repeat
        rows, because the time of what is left is not known then; where fewer than two steps were watched, where times
        do not hold, and where the saving may be zero.
        """
        if found.prefixes or (found.rows_repeat > 1 and _call_ns(found) < _LONG_CALL_NS):
            return None
        least, likely, most = _OF_ROWS if found.rows_repeat > 1 else (1.0, 1.0, 1.0)
        spent = {}
        for facts in self.facts:
            same = (each for each in facts.repeated_forward if each.kind == found.kind)
            own, window = next(same, None), facts.window("untraced")
            shares = [] if own is None else own.step_shares
            if own is None or window is None or len(shares) < 2 or not sum(window.durations_ns):
                continue
            again = own.backward_part * sum(window.backward_ns) / sum(window.durations_ns) if any(own.graph_ns) else 0.0
            backward_least, backward_most = _BACKWARD_PART
            spent[facts.rank] = Share(
                least * (min(shares) + backward_least * again),
                min(1.0, likely * (median(shares) + again)),
                min(1.0, most * (max(shares) + backward_most * again)),
            )
        steps = len(found.step_ns)
        how = f"the time of these calls in {steps} warm-up steps; the interval includes its variation"
        return self.removed(spent, how, timed=True) if spent and self.times_hold else None

    def without_fixed(self, found: FrozenFeatureFacts) -> Saving | None:
        """What a CPU run saves without the calls of a frozen module on fixed inputs, by their times in warm-up steps.

        None where times do not hold, and where the saving may be zero.
        """
        spent = {}
        for facts in self.facts:
            same = next((each for each in facts.frozen_features if each.module == found.module), None)
            shares = [] if same is None else same.step_shares
            if same is not None and len(shares) > 1 and same.same_inputs:
                spent[facts.rank] = Share(min(shares), median(shares), max(shares))
        how = f"the time of these calls in {len(found.step_ns)} warm-up steps; the interval includes its variation"
        return self.removed(spent, how, timed=True) if spent and self.times_hold else None

    def without_same(self, found: Sequence[SameResultFacts], most: float) -> Saving | None:
        """What a CPU run saves without operators whose results are known or not read, by their times in warm-up steps.

        `found`: of one or more functions; `most` is the upper end that is known otherwise. None where fewer than two
        steps were compared, where times do not hold, and where the saving may be zero.
        """
        spent = {}
        for facts in self.facts:
            known = (*facts.same_results, *facts.unread_results)
            same = [result for result in known if any(result.kind == each.kind for each in found)]
            shares = shares_again(same)
            if len(shares) > 1:
                spent[facts.rank] = Share(min(shares), median(shares), max(most, *shares))
        steps = len(found[0].step_ns)
        how = f"the time of these operators in {steps} warm-up steps; the interval includes its variation"
        return self.removed(spent, how, timed=True) if spent and self.times_hold else None

    def narrowed(
        self, saves: Saving, low_share: float, likely_share: float | None, high_share: float, why: str
    ) -> Saving:
        """A prediction with other shares of the step, no likely one of a range; `why` is appended to its sentence."""
        narrow = self._saving(low_share, high_share, saves.basis, f"{saves.how}, {why}", likely_share)
        return narrow.model_copy(update={"samples_times": saves.samples_times, "settings": saves.settings})

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
        low, high = (_saved(ns, grown * step_ns) for ns in (prediction.high_ns, prediction.low_ns))
        likely = None if prediction.is_range else _saved(prediction.step_ns, grown * step_ns)
        how = f"replayed with the change, {_taken(prediction, step_ns)}"
        how += f", with {grown:.3g}x the samples" if grown != 1 else ""
        how += f": {prediction.missing['step_ns']}" if prediction.is_range else ""
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
        low = _saved(prediction.high_ns, step_ns)
        likely = None if prediction.is_range else _saved(prediction.step_ns, step_ns)
        high = max(low if likely is None else likely, bound.high_share)
        how = f"{how}, {_taken(prediction, step_ns)}"
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
        ends = f"{100 * found.low_share:.0f} to {100 * found.high_share:.1f} %"
        likely = found.predicted_share
        saved = f"{ends} of a step" if likely is None else f"{100 * likely:.1f} % of a step ({ends})"
        how = f"{bound.how}; at most what the replay saves, {saved}, plus idle time that the host causes"
        return self.bound(0.0, most, f"{how}; the rest becomes waiting for the data loader" if waits else how)


def _call_ns(found: RepeatedForwardFacts) -> float:
    """How long a call on rows that repeat takes, with all of them."""
    spared = median(found.again_ns) if found.again_ns else 0.0
    return spared / max(1, found.calls) * found.rows_repeat / (found.rows_repeat - 1)


def _saved(after_ns: float, before_ns: float) -> float:
    return min(1.0, max(0.0, 1 - after_ns / before_ns))


def _taken(prediction: Prediction, step_ns: int) -> str:
    """`a step takes 36.1 ms instead of 52.0`; of a range `24.0 to 50.0 ms`."""
    before = decimals(step_ns / 1e6)
    if not prediction.is_range:
        return f"a step takes {decimals(prediction.step_ns / 1e6)} ms instead of {before}"
    between = f"{decimals(prediction.low_ns / 1e6)} to {decimals(prediction.high_ns / 1e6)} ms"
    return f"a step takes {between} instead of {before}"


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
