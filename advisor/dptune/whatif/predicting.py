"""Predictions with their intervals, and the replay error that they rest on.

A prediction is the measured step plus what the replay says the changes add or save. Its interval spans that difference
over what the link may be (the low and high of its fit), what part of the compute does not grow with the batch, backward
passes that no exchange slows, and either half of the recorded steps, and is widened by what the unchanged replay is
off, and by how well the measured step is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import mean, median, stdev

from dptune import __version__
from dptune.knobs import Value
from dptune.measured import Measured, Missing
from dptune.predicted import BucketSize, Prediction, WhatIf
from dptune.runfile.facts import Window
from dptune.trace.run import Run
from dptune.whatif.building import Recorded, link_figures, read, unprofiled
from dptune.whatif.changes import changed
from dptune.whatif.model import StepModel
from dptune.whatif.replay import step_ns
from dptune.whatif.searching import best_sets, curve
from dptune.whatif.wire import Link

WORST_ERROR = 0.10  # of the unchanged replay: beyond it nothing is predicted
_BLOCKS, _STEPS_OF_A_BLOCK = 10, 4
_STUDENT_90 = (6.31, 2.92, 2.35, 2.13, 2.02, 1.94, 1.89, 1.86, 1.83)  # two-sided, 1 to 9 degrees of freedom


@dataclass(frozen=True)
class Ground:
    """What the predictions of a run rest on: its model, others that the data allow, and how far off the replay is.

    `slack_ns` is how far the measured step may be off, and the replay is.
    """

    model: StepModel
    variants: tuple[StepModel, ...]
    step_ns: int
    error_share: float
    held_out_share: float
    slack_ns: float
    measured: Measured

    @classmethod
    def of(cls, run: Run, measured: Measured) -> Ground:
        """Raises Missing where the run does not tell enough."""
        step = measured.step.unprofiled_median_ns
        recorded = read(run, measured)
        model = recorded.model()
        error_ns = abs(step_ns(model) - step)
        return cls(
            model=model,
            variants=tuple(_variants(model, measured)),
            step_ns=step,
            error_share=error_ns / step,
            held_out_share=mean(_missed(recorded, half) for half in (0, 1)),
            slack_ns=error_ns + unsure_ns([unprofiled(facts) for facts in run.facts.values()]),
            measured=measured,
        )

    def predict(self, changes: Mapping[str, Value]) -> Prediction:
        """The step with these changes together. A figure that cannot be told says why under `missing`."""
        error = max(self.error_share, self.held_out_share)
        if error > WORST_ERROR:
            why = f"the unchanged replay misses the measured step by {error:.0%}: that is too much to predict from"
            return Prediction.only(why, changes=dict(changes))
        try:
            other = changed(self.model, changes)
            difference = step_ns(other) - step_ns(self.model)
            others = [step_ns(changed(one, changes)) - step_ns(one) for one in self.variants]
        except Missing as lack:
            return Prediction.only(lack.reason, changes=dict(changes))
        figures = {
            "global_batch": None if other.samples is None else round(other.samples),
            "ns_per_sample": None if other.samples is None else (self.step_ns + difference) / other.samples,
        }
        why_none = self.measured.missing.get("samples_per_step", "")
        return Prediction(
            changes=dict(changes),
            **figures,
            missing={name: why_none for name, value in figures.items() if value is None},
            step_ns=round(self.step_ns + difference),
            low_ns=round(max(0.0, self.step_ns + min(difference, *others) - self.slack_ns)),
            high_ns=round(self.step_ns + max(difference, *others) + self.slack_ns),
        )

    def told(self, predictions: Sequence[Prediction], curve: Sequence[BucketSize] = ()) -> WhatIf:
        """Predictions, with what they rest on."""
        basis = link_figures(self.measured)
        batch = self.measured.known("samples_per_step")
        return WhatIf(
            dptune=__version__,
            measured_ns=self.step_ns,
            replayed_ns=round(step_ns(self.model)),
            error_share=self.error_share,
            held_out_share=self.held_out_share,
            floor_ns=round(step_ns(replace(self.model, link=Link(0.0, float("inf"), self.model.link.lanes)))),
            global_batch=batch,
            link=f"dptune links ({basis.source})" if basis.basis == "sweep" else "the run's own all-reduces",
            predictions=list(predictions),
            curve=list(curve),
            missing={} if batch else {"global_batch": self.measured.missing["samples_per_step"]},
        )


def predict(run: Run, measured: Measured, wanted: Sequence[Mapping[str, Value]]) -> WhatIf:
    """Each of the wanted sets of changes."""
    try:
        ground = Ground.of(run, measured)
    except Missing as lack:
        none = [Prediction.only(lack.reason, changes=dict(changes)) for changes in wanted]
        return WhatIf.only(lack.reason, dptune=__version__, predictions=none)
    return ground.told([ground.predict(changes) for changes in wanted])


def search(run: Run, measured: Measured) -> WhatIf:
    """The best bucket sizes, and the best sets of changes that leave what is learned as it is."""
    try:
        ground = Ground.of(run, measured)
    except Missing as lack:
        return WhatIf.only(lack.reason, dptune=__version__)
    return ground.told([ground.predict(changes) for changes in best_sets(ground.model)], curve(ground.model))


def _missed(recorded: Recorded, half: int) -> float:
    """How far the replay of every second step is from the median of the others, as a share of that."""
    others = [unprofiled(facts).durations_ns[1 - half :: 2] for facts in recorded.facts.values()]
    scored = float(median(median(durations) for durations in others))
    return abs(step_ns(recorded.model(slice(half, None, 2))) - scored) / scored


def _variants(model: StepModel, measured: Measured) -> Iterator[StepModel]:
    """The model with other links that the data allow, and with either half of the steps."""
    link = link_figures(measured)
    factor = link.algbw_gb_per_s / link.busbw_gb_per_s if link.known("busbw_gb_per_s") else 1.0
    if link.known("alpha_low_us") is not None and link.known("busbw_low_gb_per_s"):
        quick = (link.alpha_low_us * 1e3, link.busbw_high_gb_per_s * factor)
        slow = (link.alpha_high_us * 1e3, link.busbw_low_gb_per_s * factor)
        for alpha, rate in (quick, slow):
            yield replace(model, link=Link(alpha, rate, model.link.lanes))
    for share in (0.5, 2.0):
        yield replace(model, fixed_share=min(1.0, share * model.fixed_share))
    if model.slowdown > 1:
        yield replace(model, slowdown=1.0)
    count = min(map(len, model.steps.values()))
    if count > 1:
        for half in (slice(0, count // 2), slice(count // 2, count)):
            yield replace(model, steps={rank: steps[half] for rank, steps in model.steps.items()})


def unsure_ns(windows: Sequence[Window]) -> float:
    """How far the median of the measured steps may be from that of a run that went on: 90 %, from blocks of steps.

    Steps of one process are no independent samples, their medians over blocks of neighbours more nearly so.
    """
    steps: int = min(window.steps for window in windows)
    count = min(_BLOCKS, steps // _STEPS_OF_A_BLOCK)
    if count < 2:
        return 0.0
    borders = [steps * at // count for at in range(count + 1)]
    middles = [
        float(median(median(window.durations_ns[first:last]) for window in windows))
        for first, last in pairwise(borders)
    ]
    spread: float = stdev(middles)
    return float(_STUDENT_90[count - 2] * spread / count**0.5)
