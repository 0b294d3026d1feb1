"""Strategies whose step the model of CPU steps predicts: units of fully_shard, and DDP in their place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from dptune.knobs import Value
from dptune.measured import Missing
from dptune.predicted import Prediction, Strategy
from dptune.runfile.facts import Facts
from dptune.whatif.cpu.hybrid import WITHIN_HOSTS
from dptune.whatif.cpu.model import StepModel
from dptune.whatif.cpu.unit_changes import sharding_of
from dptune.whatif.cpu.units import element_bytes
from dptune.whatif.memory.model import ranks_of_a_host
from dptune.whatif.strategies import NO_ACTIVATIONS, STATE

Predict = Callable[[Mapping[str, Value]], Prediction]
_FSDP, _HSDP = "FSDP", "HSDP"
_COUNTS = (4, 8, 16)  # units that are tried: what a model of as many blocks, or twice as many, is sharded into


def with_units(alternatives: Sequence[Strategy], model: StepModel, predict: Predict) -> list[Strategy]:
    """The strategies of a replicated model, its units with the step that is predicted for the best number of them."""
    counts = [count for count in _COUNTS if count <= len(model.gradient_bytes)]
    found = [predict({"wrapper": "fsdp", "fsdp.units": count}) for count in counts]
    known = [prediction for prediction in found if prediction.known("step_ns") is not None]
    if not known:
        return list(alternatives)
    best = min(known, key=lambda prediction: prediction.step_ns)
    units = int(best.changes["fsdp.units"] or 1)
    times: dict[str, dict[str, str | int]] = {
        _FSDP: {"name": f"{_FSDP}, {units} units", "low_ns": best.low_ns, "high_ns": best.high_ns}
    }
    hybrid = predict({**best.changes, WITHIN_HOSTS: True})
    if hybrid.known("step_ns") is not None:
        times[_HSDP] = {"low_ns": hybrid.low_ns, "high_ns": hybrid.high_ns}
    return [_timed(strategy, times.get(strategy.name)) for strategy in alternatives]


def _timed(strategy: Strategy, times: Mapping[str, str | int] | None) -> Strategy:
    if times is None:
        return strategy
    missing = {name: why for name, why in strategy.missing.items() if name != "high_ns"}
    return strategy.model_copy(update={**times, "missing": missing})


def of_units(model: StepModel, facts: Sequence[Facts], step_ns: float, predict: Predict) -> list[Strategy]:
    """The strategies of a model of units: as they are, kept gathered, sharded within hosts, and replicated.

    Of N ranks, n of a host, P bytes of parameters and as many of gradients, O of the optimizer's state, B of DDP's
    buckets (P), a rank holds (2 P + O) / N, P more of gathered units, (2 P + O) / n, or 2 P + B + O.
    """
    sharding, ranks = sharding_of(model), len(model.steps)
    hybrid = sharding.hybrid
    if not facts or not facts[0].optimizers or (state := STATE.get(facts[0].optimizers[0].name)) is None:
        raise Missing("the size of the optimizer's state per parameter is unknown")
    sizes = {
        call.unit: call.message_bytes
        for pass_ in next(iter(model.steps.values()))[0].passes
        for call in pass_.calls
        if call.kind == "gather"
    }
    whole = sum(sizes.values()) * element_bytes(None) / element_bytes(sharding.parameter_dtype)
    sharded = (2 + state) * whole / (hybrid.shards if hybrid else ranks)
    now = _HSDP if hybrid else _FSDP
    per_host = None if hybrid else ranks_of_a_host(facts, ranks)

    def strategy(name: str, holds: float, changes: Mapping[str, Value]) -> Strategy:
        prediction = predict(changes) if changes else None
        missing = {"rank_bytes": NO_ACTIVATIONS}
        low_ns, high_ns = (
            (step_ns, step_ns) if prediction is None else (prediction.known("low_ns"), prediction.known("high_ns"))
        )
        if high_ns is None and prediction is not None:
            missing["high_ns"] = prediction.missing["step_ns"]
        return Strategy(
            name=name,
            state_bytes=round(holds),
            low_ns=round(low_ns or 0.0),
            high_ns=None if high_ns is None else round(high_ns),
            missing=missing,
        )

    return [
        strategy(f"{now}, unchanged", sharded, {}),
        strategy(f"{now}, kept gathered", sharded + sum(sizes.values()), {"fsdp.reshard_after_forward": False}),
        *([strategy(_HSDP, (2 + state) * whole / per_host, {WITHIN_HOSTS: True})] if per_host else []),
        strategy("DDP", (3 + state) * whole, {"wrapper": "ddp"}),
    ]
