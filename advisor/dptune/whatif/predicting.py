"""Predictions with their intervals, and the replay error that they rest on.

A prediction is the measured step plus what the replay says the changes add or save. Its interval spans that difference
over what the link may be (the low and high of its fit), over what part of the compute does not grow with the batch, and
over either half of the recorded steps, and is widened by what the unchanged replay is off, and by how well the measured
step is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from dptune import __version__
from dptune.knobs import Value
from dptune.measured import Measured, Missing
from dptune.predicted import Prediction, WhatIf
from dptune.trace.run import Run
from dptune.whatif.building import build, link_figures
from dptune.whatif.changes import changed
from dptune.whatif.model import StepModel
from dptune.whatif.replay import step_ns
from dptune.whatif.wire import Link

WORST_ERROR = 0.10  # of the unchanged replay: beyond it nothing is predicted
_NORMAL_90 = 1.645
_IQR_OF_SD = 1.349


def predict(run: Run, measured: Measured, wanted: Sequence[Mapping[str, Value]]) -> WhatIf:
    """Each of the wanted sets of changes. A figure that cannot be told says why under `missing`."""
    try:
        model = build(run, measured)
        step = measured.step.unprofiled_median_ns
    except Missing as lack:
        none = [Prediction.only(lack.reason, changes=dict(changes)) for changes in wanted]
        return WhatIf.only(lack.reason, dptune=__version__, predictions=none)
    replayed = step_ns(model)
    error = abs(replayed - step) / step
    slack_ns = abs(replayed - step) + _unsure_ns(measured)
    basis = link_figures(measured)
    return WhatIf(
        dptune=__version__,
        measured_ns=step,
        replayed_ns=round(replayed),
        error_share=error,
        floor_ns=round(step_ns(replace(model, link=Link(0.0, float("inf"), model.link.lanes)))),
        global_batch=measured.known("samples_per_step"),
        link=f"dptune links ({basis.source})" if basis.basis == "sweep" else "the run's own all-reduces",
        predictions=[_prediction(model, measured, step, error, slack_ns, changes) for changes in wanted],
        missing={} if measured.known("samples_per_step") else {"global_batch": measured.missing["samples_per_step"]},
    )


def _prediction(
    model: StepModel, measured: Measured, step: int, error: float, slack_ns: float, changes: Mapping[str, Value]
) -> Prediction:
    if error > WORST_ERROR:
        why = f"the unchanged replay misses the measured step by {error:.0%}: that is too much to predict from"
        return Prediction.only(why, changes=dict(changes))
    try:
        other = changed(model, changes)
        difference = step_ns(other) - step_ns(model)
        others = [step_ns(changed(one, changes)) - step_ns(one) for one in _variants(model, measured)]
    except Missing as lack:
        return Prediction.only(lack.reason, changes=dict(changes))
    figures = {
        "global_batch": None if other.samples is None else round(other.samples),
        "ns_per_sample": None if other.samples is None else (step + difference) / other.samples,
    }
    return Prediction(
        changes=dict(changes),
        **figures,
        missing={name: measured.missing["samples_per_step"] for name, value in figures.items() if value is None},
        step_ns=round(step + difference),
        low_ns=round(max(0.0, step + min(difference, *others) - slack_ns)),
        high_ns=round(step + max(difference, *others) + slack_ns),
    )


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
    count = min(map(len, model.steps.values()))
    if count > 1:
        for half in (slice(0, count // 2), slice(count // 2, count)):
            yield replace(model, steps={rank: steps[half] for rank, steps in model.steps.items()})


def _unsure_ns(measured: Measured) -> float:
    """How far the median of the measured steps may be from that of another run as long."""
    time = measured.step
    spread = (time.unprofiled_q3_ns - time.unprofiled_q1_ns) / _IQR_OF_SD
    return float(_NORMAL_90 * 1.25 * spread / max(1, time.unprofiled_steps) ** 0.5)
