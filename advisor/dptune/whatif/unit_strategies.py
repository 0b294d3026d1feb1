"""Strategies whose step the model of CPU steps predicts: units of fully_shard, and DDP in their place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from dptune.knobs import Value
from dptune.measured import Missing
from dptune.predicted import Prediction, Strategy
from dptune.runfile.facts import Facts
from dptune.whatif.cpu.model import StepModel
from dptune.whatif.cpu.unit_changes import sharding_of
from dptune.whatif.cpu.units import element_bytes
from dptune.whatif.strategies import NO_ACTIVATIONS, STATE

Predict = Callable[[Mapping[str, Value]], Prediction]
_FSDP, _HSDP = "FSDP", "HSDP"
_COUNTS = (4, 8, 16)  # units that are tried: what a model of as many blocks, or twice as many, is sharded into


def with_units(alternatives: Sequence[Strategy], model: StepModel, predict: Predict) -> list[Strategy]:
    """The strategies of a replicated model, its units with the step that is predicted for the best number of them.

    With shards within each host, gathers and reductions are among fewer ranks, so they take no longer; each unit's
    shards are then also all-reduced between hosts, by all ranks of a host at once: at most an all-reduce of the unit.
    """
    counts = [count for count in _COUNTS if count <= len(model.gradient_bytes)]
    found = [predict({"wrapper": "fsdp", "fsdp.units": count}) for count in counts]
    known = [prediction for prediction in found if prediction.known("step_ns") is not None]
    if not known:
        return list(alternatives)
    best = min(known, key=lambda prediction: prediction.step_ns)
    units = int(best.changes["fsdp.units"] or 1)
    between_ns = units * model.link.alpha_ns + sum(model.gradient_bytes) / model.link.bytes_per_ns
    times: dict[str, dict[str, str | int]] = {
        _FSDP: {"name": f"{_FSDP}, {units} units", "low_ns": best.low_ns, "high_ns": best.high_ns},
        _HSDP: {"high_ns": round(best.high_ns + between_ns)},
    }
    return [_timed(strategy, times.get(strategy.name)) for strategy in alternatives]


def _timed(strategy: Strategy, times: Mapping[str, str | int] | None) -> Strategy:
    if times is None:
        return strategy
    missing = {name: why for name, why in strategy.missing.items() if name != "high_ns"}
    return strategy.model_copy(update={**times, "missing": missing})


def of_units(model: StepModel, facts: Sequence[Facts], step_ns: float, predict: Predict) -> list[Strategy]:
    """The strategies of a model of units: as they are, kept gathered, and replicated.

    Of N ranks, P bytes of parameters and as many of gradients, O of the optimizer's state, B of DDP's buckets (P), a
    rank holds (2 P + O) / N, P more of gathered units, or 2 P + B + O.
    """
    sharding, ranks = sharding_of(model), len(model.steps)
    if not facts or not facts[0].optimizers or (state := STATE.get(facts[0].optimizers[0].name)) is None:
        raise Missing("the size of the optimizer's state per parameter is unknown")
    sizes = {
        call.unit: call.message_bytes
        for pass_ in next(iter(model.steps.values()))[0].passes
        for call in pass_.calls
        if call.kind == "gather"
    }
    whole = sum(sizes.values()) * element_bytes(None) / element_bytes(sharding.parameter_dtype)
    sharded = (2 + state) * whole / ranks

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
        strategy("FSDP, unchanged", sharded, {}),
        strategy("FSDP, kept gathered", sharded + sum(sizes.values()), {"fsdp.reshard_after_forward": False}),
        strategy("DDP", (3 + state) * whole, {"wrapper": "ddp"}),
    ]
