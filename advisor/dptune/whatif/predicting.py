"""What a report, a rule or `dptune whatif` asks of a run's model: changes, the best of them, other strategies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import compress

from dptune import __version__
from dptune.knobs import Value
from dptune.measure.steps.input_wait import drawn_from
from dptune.measured import Measured, Missing
from dptune.predicted import Prediction, Strategy, WhatIf
from dptune.runfile.facts import Facts
from dptune.trace.run import Run
from dptune.whatif.cpu.changes import PREDICTED as PREDICTED_ON_CPUS
from dptune.whatif.cpu.model import StepModel
from dptune.whatif.gpu.buckets import NO_REDUCER
from dptune.whatif.gpu.changes import PREDICTED as PREDICTED_ON_GPUS
from dptune.whatif.gpu.links import known_link
from dptune.whatif.gpu.program import Program
from dptune.whatif.gpu.recorded import matches_collectives
from dptune.whatif.memory.predicting import predict_memory
from dptune.whatif.run_model import RunModel
from dptune.whatif.searching import best_sets, changes_of_units
from dptune.whatif.strategies import changes_of_strategies, replicated_module, strategies, too_large, with_memory
from dptune.whatif.unit_strategies import of_units, with_units

# What takes the reductions of a program of GPU steps.
_OF_REDUCTIONS = frozenset({"ddp.bucket_cap_mb", "ddp.bucket_cap_mb_list", "ddp.first_bucket_mb", "ddp.comm_hook"})
_WORKERS = 8  # of a loader that has some, it is not known how many
# What is asked of steps that GPUs compute, where nothing else is.
_OF_GPUS: tuple[tuple[str, Value], ...] = (
    ("host.times", 0.0),
    ("syncs.removed", True),
    ("cuda.graphs", True),
    ("compute.times", 0.5),
    ("straggler.removed", True),
    ("loader.num_workers", _WORKERS),
    ("ddp.bucket_cap_mb", 5.0),
    ("ddp.bucket_cap_mb", 100.0),
    ("ddp.no_sync", True),
    ("ddp.comm_hook", "bf16"),
    ("precision.autocast", "bf16"),
    ("optimizer.fused", True),
    ("fsdp.prefetch", True),
    ("fsdp.reshard_after_forward", False),
    ("fsdp.no_sync", True),
    ("fsdp.within_hosts", True),
    ("wrapper", "ddp"),
)


def known_settings(measured: Measured) -> frozenset[str]:
    """The settings that the model of a run predicts or bounds."""
    return PREDICTED_ON_CPUS if measured.known("device_kind") == "cpu" else PREDICTED_ON_GPUS


class Predictor:
    """Predictions for the rules: the ground is laid when the first is asked for. Raises Missing where there is none.

    A model that fails is missing, too: no rule is to fall with it. `failure` says of what.
    """

    def __init__(self, run: Run, measured: Measured) -> None:
        self._run, self._measured = run, measured
        self._ground: RunModel | None = None
        self._lack: Missing | None = None
        self._made: dict[str, Prediction] = {}  # several rules ask for the same changes
        self.failure = ""

    def __call__(self, changes: Mapping[str, Value]) -> Prediction:
        """The step with these changes together."""
        try:
            self._check(changes)
            key = repr(sorted(changes.items()))  # 1 and True are not the same
            if key not in self._made:
                self._made[key] = self._laid().predict(changes)
            return self._made[key]
        except Missing:
            raise
        except Exception as error:
            self.failure = f"{type(error).__name__}: {error}"
            raise Missing(f"the step model failed: {self.failure}") from error

    def _check(self, changes: Mapping[str, Value]) -> None:
        """Raises Missing where no model would predict these changes: that of a large trace takes long to build."""
        if self._measured.known("device_kind") == "cpu":
            return
        if not changes.keys() <= PREDICTED_ON_GPUS:
            raise Missing("not available for this rule on GPU traces")
        if self._ground is None and not _OF_REDUCTIONS.isdisjoint(changes) and not matches_collectives(self._run):
            raise Missing(NO_REDUCER)

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
        return only_memory(lack.reason, run, measured, wanted)
    return _with_memory(ground.result([ground.predict(changes) for changes in wanted]), run, measured)


def only_memory(why: str, run: Run, measured: Measured, wanted: Sequence[Mapping[str, Value]]) -> WhatIf:
    """No prediction of the step, and the reason; the peak memory with each of the wanted sets of changes."""
    return _with_memory(nothing(why, wanted), run, measured)


def _with_memory(what_if: WhatIf, run: Run, measured: Measured) -> WhatIf:
    """The same, with the peak memory of each prediction."""
    facts = list(run.facts.values())
    memory = [predict_memory(measured, facts, prediction.changes) for prediction in what_if.predictions]
    return what_if.model_copy(update={"memory": memory})


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
        alternatives = _alternatives(run, measured, ground)
    except Missing as lack:
        return _memory_of_strategies(lack.reason, run, measured)
    alternatives = [with_memory(strategy, measured, list(run.facts.values())) for strategy in alternatives]
    return ground.result([]).model_copy(
        update={"strategies": alternatives, "too_large": too_large(measured, alternatives)}
    )


def _memory_of_strategies(why: str, run: Run, measured: Measured) -> WhatIf:
    """No steps, and the reason; the peak memory with each strategy, where it is known."""
    facts = list(run.facts.values())
    found = only_memory(why, run, measured, changes_of_strategies(facts))
    known = [peak.known("peak_bytes") is not None for peak in found.memory]
    return found.model_copy(
        update={
            "predictions": list(compress(found.predictions, known)),
            "memory": list(compress(found.memory, known)),
        }
    )


def _alternatives(run: Run, measured: Measured, ground: RunModel) -> list[Strategy]:
    """Raises Missing where they cannot be compared."""
    facts = list(run.facts.values())
    if ground.model.gathers if isinstance(ground.model, Program) else ground.model.sharding is not None:
        passes = round(measured.accumulation.known("backwards_per_step") or 1)
        return of_units(ground.model, facts, ground.step_ns, ground.predict, passes)
    if measured.known("world_size") != 1:
        replicated_module(facts)  # before the link: nobody is to measure one for a run that cannot be compared
    link = known_link(ground.model) if isinstance(ground.model, Program) else replace(ground.model.link, lanes=1)
    floor_ns = ground.at_best_ns()
    if floor_ns is None:
        raise Missing("step time without communication is unknown")
    found = strategies(facts, measured, link, ground.step_ns, floor_ns)
    return found if isinstance(ground.model, Program) else with_units(found, ground.model, ground.predict)


def search(run: Run, measured: Measured) -> WhatIf:
    """The best bucket sizes, and the best sets of changes that leave what is learned as it is.

    Of units of fully_shard: each change of how they communicate. Of steps that GPUs compute: what each of their parts
    is worth, of those that the run has.
    """
    try:
        ground = RunModel.of(run, measured)
    except Missing as lack:
        return nothing(lack.reason)
    if not isinstance(ground.model, StepModel):
        offered = _offered(measured, _more_workers(ground.model, ground.facts))
        found = (ground.predict({name: value}) for name, value in offered if _has(measured, name))
        shown = (each for each in found if _applies(each, ground.step_ns) or _is_of_a_straggler(each, measured))
        return ground.result(list(shown))
    if ground.missed:
        return ground.result([])
    accumulates = all(facts.accumulates() for facts in ground.facts)
    if ground.model.sharding is not None:
        each = map(ground.predict, changes_of_units(ground.model, accumulates))
        return ground.result([prediction for prediction in each if _applies(prediction, ground.step_ns)])
    return ground.result([ground.predict(changes) for changes in best_sets(ground.model, accumulates)], ground.curve())


def _offered(measured: Measured, workers: int) -> Iterator[tuple[str, Value]]:
    """The changes to predict: fp16, not bf16, where the GPU has no bf16 peak, or its kernels leave open if it does; so
    many `workers` of the loader.
    """
    matmul = measured.matmul
    older = matmul.architecture.startswith(("Volta", "Turing")) or ("fp16" in matmul.peaks) > ("bf16" in matmul.peaks)
    for name, value in _OF_GPUS:
        value = workers if name == "loader.num_workers" else value
        yield name, "fp16" if older and name == "precision.autocast" else value


def _more_workers(program: Program, facts: Sequence[Facts]) -> int:
    """More workers than the script has: one if it has none, twice as many, or _WORKERS if their number is unknown."""
    loader = drawn_from(facts)
    now = loader.num_workers if loader else None
    return 2 * now if now else _WORKERS if program.has_workers else 1


def _is_of_a_straggler(prediction: Prediction, measured: Measured) -> bool:
    """Whether it removes the rank that others wait for: what the run has, predicted or not."""
    return "straggler.removed" in prediction.changes and measured.known("straggler") is not None


def _has(measured: Measured, name: str) -> bool:
    """Whether the run may have what a knob is of: settings of FSDP are none where the trace shows no FSDP."""
    inferred = measured.known("inferred")
    shows_none = inferred is not None and "fsdp" in inferred.confidence and not inferred.facts.fsdp
    return not (name.startswith("fsdp.") and shows_none)


def _applies(prediction: Prediction, step_ns: int) -> bool:
    """Whether the run has what is changed: something is known of the change, and it is not exactly no change."""
    ends = prediction.known("low_ns"), prediction.known("high_ns")
    return ends[0] is not None and ends not in ((step_ns, step_ns), (step_ns, None))
