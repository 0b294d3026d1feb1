"""Strategies whose step a model predicts: units of fully_shard, and DDP in their place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dptune.knobs import Value
from dptune.measured import Missing
from dptune.predicted import Prediction, Strategy
from dptune.runfile.facts import Facts
from dptune.whatif.cpu.hybrid import WITHIN_HOSTS
from dptune.whatif.cpu.model import StepModel
from dptune.whatif.cpu.unit_changes import sharding_of
from dptune.whatif.cpu.units import element_bytes
from dptune.whatif.gpu.merging import sizes_of_units
from dptune.whatif.gpu.program import Program
from dptune.whatif.gpu.replicating import WHOLE
from dptune.whatif.memory.model import ranks_of_a_host
from dptune.whatif.strategies import NO_ACTIVATIONS, STATE

Predict = Callable[[Mapping[str, Value]], Prediction]
_FSDP, _HSDP = "FSDP", "HSDP"
_OF_STEP = ("step_ns", "low_ns", "high_ns")
_NO_STATE = "the size of the optimizer's state per parameter is unknown"
_COUNTS = (4, 8, 16)  # units that are tried: what a model of as many blocks, or twice as many, is sharded into


def with_units(alternatives: Sequence[Strategy], model: StepModel, predict: Predict) -> list[Strategy]:
    """The strategies of a replicated model, its units with the step that is predicted for the best number of them."""
    counts = [count for count in _COUNTS if count <= len(model.gradient_bytes)]
    found = [predict({"wrapper": "fsdp", "fsdp.units": count}) for count in counts]
    known = [(central_ns, prediction) for prediction in found if (central_ns := prediction.central_ns) is not None]
    if not known:
        return list(alternatives)
    _, best = min(known, key=lambda each: each[0])
    units = int(best.changes["fsdp.units"] or 1)
    times: dict[str, dict[str, Any]] = {_FSDP: {"name": f"{_FSDP}, {units} units", **_step(best)}}
    hybrid = predict({**best.changes, WITHIN_HOSTS: True})
    if hybrid.central_ns is not None:
        times[_HSDP] = {**_step(hybrid)}
    return [_timed(strategy, times.get(strategy.name)) for strategy in alternatives]


def _step(prediction: Prediction) -> dict[str, Any]:
    """Its step and ends; of a range why there is no step."""
    known = {name: prediction.known(name) for name in _OF_STEP}
    return {**known, "missing": {name: prediction.missing[name] for name, ns in known.items() if ns is None}}


def _timed(strategy: Strategy, times: Mapping[str, Any] | None) -> Strategy:
    if times is None:
        return strategy
    missing = {name: why for name, why in strategy.missing.items() if name not in _OF_STEP}
    return strategy.model_copy(update={**times, "missing": {**missing, **times["missing"]}})


@dataclass(frozen=True)
class _Units:
    """Bytes of the parameters, and what units gather of them; among so many ranks, of which some share a shard.

    Where the sizes are unknown, `why` says so.
    """

    whole: float
    gathered: float
    ranks: int
    shards: int
    why: str = ""

    @classmethod
    def of(cls, model: StepModel | Program) -> _Units:
        if isinstance(model, Program):
            sent = [message for message in model.messages if message.kind == "all_gather"]
            element = 2 if any(message.dtype not in WHOLE for message in sent) else element_bytes(None)
            shards = max((message.ranks for message in sent), default=0) or model.world_size
            try:
                units = sizes_of_units(model)
            except Missing as lack:
                return cls(0.0, 0.0, model.world_size, shards, lack.reason)
            gathered = float(sum(units.values()))
            return cls(gathered * element_bytes(None) / element, gathered, model.world_size, shards)
        sharding, ranks = sharding_of(model), len(model.steps)
        sizes = {
            call.unit: call.message_bytes
            for pass_ in next(iter(model.steps.values()))[0].passes
            for call in pass_.calls
            if call.kind == "gather"
        }
        gathered, element = sum(sizes.values()), element_bytes(sharding.parameter_dtype)
        shards = sharding.hybrid.shards if sharding.hybrid else ranks
        return cls(gathered * element_bytes(None) / element, gathered, ranks, shards)


def of_units(
    model: StepModel | Program, facts: Sequence[Facts], step_ns: float, predict: Predict, passes: int = 1
) -> list[Strategy]:
    """The strategies of a model of units: as they are, kept gathered, sharded within hosts, and replicated.

    With several backward passes in a step, also those that reduce gradients in the last one only.

    Of N ranks, n of a host, P bytes of parameters and as many of gradients, O of the optimizer's state, B of DDP's
    buckets (P), a rank holds (2 P + O) / N, P more of gathered units, (2 P + O) / n, P more of whole gradients, or
    2 P + B + O.
    """
    units = _Units.of(model)
    optimizers = facts[0].optimizers if facts else []
    state = STATE.get(optimizers[0].name) if optimizers else None
    if state is None and not isinstance(model, Program):
        raise Missing(_NO_STATE)
    whole, no_state = units.whole, _NO_STATE if state is None else units.why
    is_hybrid = units.shards < units.ranks
    now = _HSDP if is_hybrid else _FSDP
    per_host = None if is_hybrid else ranks_of_a_host(facts, units.ranks)

    def strategy(name: str, parts: int, more: float, changes: Mapping[str, Value]) -> Strategy:
        prediction = predict(changes) if changes else None
        missing = {"rank_bytes": NO_ACTIVATIONS}
        step: dict[str, int | None] = dict.fromkeys(_OF_STEP, round(step_ns))
        if prediction is not None:
            step = {name: prediction.known(name) for name in _OF_STEP}
            missing |= {name: prediction.missing["step_ns"] for name, ns in step.items() if ns is None}
        if no_state:
            missing["state_bytes"] = no_state
        state_bytes = None if no_state or state is None else round((2 + state) * whole / parts + more)
        return Strategy(name=name, state_bytes=state_bytes, missing=missing, **step)

    return [
        strategy(f"{now}, unchanged", units.shards, 0, {}),
        strategy(f"{now}, kept gathered", units.shards, units.gathered, {"fsdp.reshard_after_forward": False}),
        *([strategy(f"{now}, reduced once", units.shards, whole, {"fsdp.no_sync": True})] if passes > 1 else []),
        *([strategy(_HSDP, per_host, 0, {WITHIN_HOSTS: True})] if per_host else []),
        strategy("DDP", 1, whole, {"wrapper": "ddp"}),
    ]
