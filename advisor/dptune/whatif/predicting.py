"""What a report, a rule or `dptune whatif` asks of a run's model: changes, the best of them, other strategies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from dptune import __version__
from dptune.knobs import Value
from dptune.measured import Measured, Missing
from dptune.predicted import Prediction, WhatIf
from dptune.trace.run import Run
from dptune.whatif.cpu.model import StepModel
from dptune.whatif.cpu.wire import Link
from dptune.whatif.gpu.changes import PREDICTED as PREDICTED_ON_GPUS
from dptune.whatif.link import link_figures
from dptune.whatif.run_model import RunModel
from dptune.whatif.searching import best_sets
from dptune.whatif.strategies import strategies, too_large

# What is asked of steps that GPUs compute, where nothing else is.
_OF_GPUS: tuple[tuple[str, Value], ...] = (
    ("host.times", 0.0),
    ("syncs.removed", True),
    ("compute.times", 0.5),
    ("loader.num_workers", 1),
    ("ddp.comm_hook", "bf16"),
    ("precision.autocast", "bf16"),
)


class Predictor:
    """Predictions for the rules: the ground is laid when the first is asked for. Raises Missing where there is none.

    A model that fails is missing, too: no rule is to fall with it. `failure` says of what.
    """

    def __init__(self, run: Run, measured: Measured) -> None:
        self._run, self._measured = run, measured
        self._ground: RunModel | None = None
        self._lack: Missing | None = None
        self.failure = ""

    def __call__(self, changes: Mapping[str, Value]) -> Prediction:
        """The step with these changes together."""
        if self._measured.known("device_kind") != "cpu" and not changes.keys() <= PREDICTED_ON_GPUS:
            raise Missing(
                "not available for this rule on GPU traces"
            )  # and is not built for nothing: a large trace takes long
        try:
            return self._laid().predict(changes)
        except Missing:
            raise
        except Exception as error:
            self.failure = f"{type(error).__name__}: {error}"
            raise Missing(f"the step model failed: {self.failure}") from error

    def _laid(self) -> RunModel:
        if self._lack is not None:
            raise self._lack
        if self._ground is None:
            try:
                self._ground = RunModel.of(self._run, self._measured)
            except Missing as lack:
                self._lack = lack
                raise
        return self._ground


def predict(run: Run, measured: Measured, wanted: Sequence[Mapping[str, Value]]) -> WhatIf:
    """Each of the wanted sets of changes."""
    try:
        ground = RunModel.of(run, measured)
    except Missing as lack:
        return nothing(lack.reason, wanted)
    return ground.result([ground.predict(changes) for changes in wanted])


def nothing(why: str, wanted: Sequence[Mapping[str, Value]] = ()) -> WhatIf:
    """No prediction of any of the wanted sets of changes, and the reason."""
    none = [Prediction.only(why, changes=dict(changes)) for changes in wanted]
    return WhatIf.only(why, dptune=__version__, predictions=none)


def compare(run: Run, measured: Measured) -> WhatIf:
    """Other ways to share the work among the same ranks."""
    try:
        ground = RunModel.of(run, measured)
        if ground.missed:
            raise Missing(ground.missed)
        basis, floor_ns = link_figures(measured), ground.at_best_ns()
        if floor_ns is None:
            raise Missing("step time without communication is unknown")
        link = Link(basis.alpha_us * 1e3, basis.algbw_gb_per_s)
        if isinstance(ground.model, StepModel):
            link = replace(ground.model.link, lanes=1)
        alternatives = strategies(list(run.facts.values()), measured, link, ground.step_ns, floor_ns)
    except Missing as lack:
        return nothing(lack.reason)
    return ground.result([]).model_copy(
        update={"strategies": alternatives, "too_large": too_large(measured, alternatives)}
    )


def search(run: Run, measured: Measured) -> WhatIf:
    """The best bucket sizes, and the best sets of changes that leave what is learned as it is.

    Of steps that GPUs compute: what each of their parts is worth, for the model of those has no buckets.
    """
    try:
        ground = RunModel.of(run, measured)
    except Missing as lack:
        return nothing(lack.reason)
    if not isinstance(ground.model, StepModel):
        asked = [setting for setting in _OF_GPUS if _applies(setting[0], measured)]
        return ground.result([ground.predict({name: value}) for name, value in asked])
    if ground.missed:
        return ground.result([])
    accumulates = all(facts.accumulates() for facts in ground.facts)
    return ground.result([ground.predict(changes) for changes in best_sets(ground.model, accumulates)], ground.curve())


def _applies(knob: str, measured: Measured) -> bool:
    """Whether the run has what the knob sets: a DataLoader that steps draw from, all-reduces between ranks."""
    if knob.startswith("loader."):
        return measured.input.known("wait_share") is not None
    if knob.startswith("ddp."):
        return any(collective.kind == "all_reduce" for collective in measured.known("collectives") or ())
    return True
