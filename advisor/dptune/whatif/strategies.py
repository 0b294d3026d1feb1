"""Other ways to share a training among the same ranks: what each rank holds then, and between which times a step lies.

Of N ranks, P bytes of parameters that are trained and as many of gradients, B those of the buckets (P; none where
gradients are views into them), O of the optimizer's state; T(x) an all-reduce of x bytes over the link as it was
measured, a its latency, t the tensors that P is of; S the step as it was measured, C the same if communicating took no
time, A what the optimizer computes, m the backward passes of a step, n the ranks of a node:

| strategy | a rank holds | a step takes |
|---|---|---|
| DDP, unchanged | 2 P + B + O | S |
| DDP, all-reducing once in k such steps | 2 P + B + O | S + (k - 1) (C - A) to S + (k - 1) C, of k times the samples |
| ZeRO-1, the optimizer sharded | 2 P + B + O / N | S + T(P) / 2 - A (1 - 1 / N) to S + T(P) + (t - 1) a |
| FSDP, all sharded | (2 P + O) / N, and layers | at least the longer of C - A (1 - 1 / N) and 3/2 m T(P) |
| HSDP, all sharded in each of several nodes | (2 P + O) / n, and layers | at least C - A (1 - 1 / n) |

An all-gather and a reduce-scatter each move half of what an all-reduce does. What was updated is sent as broadcasts in
turn at worst, one for each tensor: all of it, not half. How long FSDP takes at most is not predicted here: each unit
that is gathered has its own latencies and its own work for the host, and how many there are the script says. (Over
gloo, with each layer a unit, a step took 165 ms where the latencies of one unit give 21.) `unit_strategies` predicts
it on CPUs, and HSDP there, too. Parameters that are
not trained come on top everywhere, and what activations take, where the peak of memory shows it.

Sources: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", SC 2020, sections 5
and 7; Zhao et al., "PyTorch FSDP", VLDB 2023, section 3; for the halves Thakur, Rabenseifner & Gropp, Int. J. High
Perform. Comput. Appl. 19 (2005).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from dptune.knobs import Value
from dptune.measured import Measured, Missing
from dptune.predicted import Strategy
from dptune.runfile.communication import DdpFacts
from dptune.runfile.facts import Facts
from dptune.whatif.cpu.shared_link import Link
from dptune.whatif.memory.model import ranks_of_a_host
from dptune.whatif.memory.predicting import predict_memory

UNCHANGED = "DDP, unchanged"
LESS_OFTEN = {2: "DDP, 1/2 as often", 4: "DDP, 1/4 as often"}
_CHANGES: dict[str, dict[str, Value]] = {
    UNCHANGED: {},
    **{name: {} for name in LESS_OFTEN.values()},
    "ZeRO-1": {"optimizer.sharded": True},
    "FSDP": {"wrapper": "fsdp"},
    "FSDP, unchanged": {},
    "FSDP, kept gathered": {"fsdp.reshard_after_forward": False},
    "FSDP, reduced once": {"fsdp.no_sync": True},
    "HSDP, unchanged": {},
    "HSDP, reduced once": {"fsdp.no_sync": True},
    "HSDP, kept gathered": {"fsdp.reshard_after_forward": False},
    "DDP": {"wrapper": "ddp"},
    "HSDP": {"wrapper": "fsdp", "fsdp.within_hosts": True},
}
_OF_SHARDED, _OF_REPLICATED = ("FSDP, kept gathered", "DDP"), ("ZeRO-1", "FSDP", "HSDP")
_UNITS = re.compile(r"FSDP, (\d+) units")
FULL_SHARE = 0.9  # of a device's memory, that may be taken
NO_ACTIVATIONS = "the allocations of a step were not recorded: record a detailed window (--detailed 2)"
_BOUNDED = "only bounds of its step are known"
_BY_UNITS = Missing("the cost of gathering each unit is known only after running it")
# Values that an optimizer keeps for each parameter, in its type, at most.
STATE = {"Adam": 2, "AdamW": 2, "NAdam": 2, "RAdam": 2, "Adamax": 2, "Adagrad": 1, "RMSprop": 1, "SGD": 1}


def strategies(
    facts: Sequence[Facts], measured: Measured, link: Link, step_ns: float, floor_ns: float
) -> list[Strategy]:
    """What is known of each. Raises Missing where the run is not one of DistributedDataParallel."""
    module, optimizer = replicated_module(facts)
    ranks, per_rank = measured.world_size, module.gradient_bytes or 0
    state = STATE.get(optimizer)
    if state is None:
        raise Missing(f"the size of {optimizer}'s state per parameter is unknown")
    optimizer_bytes = state * per_rank
    replicated = per_rank * (2 if module.gradient_as_bucket_view else 3)
    kept = _activations(measured, replicated + optimizer_bytes)
    optimizing_ns = _optimizer_ns(measured)
    whole_ns, half_ns = link.alone_ns(per_rank), link.alone_ns(per_rank) / 2
    passes = measured.accumulation.known("backwards_per_step") or 1
    gathered_ns = 3 * half_ns * passes
    tensors = module.parameter_tensors
    sent_ns = None if not tensors else whole_ns + (tensors - 1) * link.alpha_ns
    in_node = ranks_of_a_host(facts, ranks)

    def one(name: str, holds: float, low_ns: float, high_ns: float | Missing, times: int = 1) -> Strategy:
        missing = {"rank_bytes": NO_ACTIVATIONS} if kept is None else {}
        if isinstance(high_ns, Missing):
            missing["high_ns"] = high_ns.reason
        if name != UNCHANGED:
            missing["step_ns"] = _BOUNDED
        return Strategy(
            name=name,
            state_bytes=round(holds),
            rank_bytes=None if kept is None else round(holds + kept),
            step_ns=round(step_ns) if name == UNCHANGED else None,
            low_ns=round(max(low_ns, 0.0)),
            high_ns=None if isinstance(high_ns, Missing) else round(max(high_ns, low_ns, 0.0)),
            samples_times=times,
            missing=missing,
        )

    def strategies() -> Iterator[Strategy]:
        yield one(UNCHANGED, replicated + optimizer_bytes, step_ns, step_ns)
        for count, name in LESS_OFTEN.items():
            more = (count - 1) * floor_ns
            yield one(
                name, replicated + optimizer_bytes, step_ns + more - (count - 1) * optimizing_ns, step_ns + more, count
            )
        spared = optimizing_ns * (1 - 1 / ranks)
        most = Missing("the number of tensors was not recorded") if sent_ns is None else step_ns + sent_ns
        yield one("ZeRO-1", replicated + optimizer_bytes / ranks, step_ns + half_ns - spared, most)
        yield one("FSDP", (2 * per_rank + optimizer_bytes) / ranks, max(floor_ns - spared, gathered_ns), _BY_UNITS)
        if in_node is not None:
            spared = optimizing_ns * (1 - 1 / in_node)
            yield one("HSDP", (2 * per_rank + optimizer_bytes) / in_node, floor_ns - spared, _BY_UNITS)

    return list(strategies())


def with_memory(strategy: Strategy, measured: Measured, facts: Sequence[Facts]) -> Strategy:
    """The same, with the predicted peak of a rank where the memory model has it, else with the sum of its parts."""
    changes = _CHANGES.get(strategy.name)
    if units := _UNITS.fullmatch(strategy.name):
        changes = {"wrapper": "fsdp", "fsdp.units": int(units[1])}
    if changes is None:
        return strategy
    memory = predict_memory(measured, facts, changes)
    peak = memory.known("peak_bytes")
    if peak is None and strategy.known("rank_bytes") is not None:
        return strategy
    if peak is None:
        return strategy.model_copy(update={"missing": {**strategy.missing, "rank_bytes": memory.missing["peak_bytes"]}})
    missing = {name: why for name, why in strategy.missing.items() if name != "rank_bytes"}
    return strategy.model_copy(update={"rank_bytes": peak, "fits": memory.fits, "missing": missing})


def changes_of_strategies(facts: Sequence[Facts]) -> list[dict[str, Value]]:
    """The changes of settings that are other strategies than the run's, each once."""
    sharded = any(rank_facts.fsdp for rank_facts in facts)
    names = _OF_SHARDED if sharded else _OF_REPLICATED
    return [_CHANGES[name] for name in names] + ([{"fsdp.within_hosts": True}] if sharded else [])


def too_large(measured: Measured, alternatives: Sequence[Strategy]) -> bool:
    """Whether a rank's part is too large even where all is sharded over all ranks."""
    capacity = min((figures.known("capacity_bytes") or 0 for figures in measured.known("memory") or []), default=0)
    least = min((strategy.known("rank_bytes") or 0 for strategy in alternatives), default=0)
    return bool(capacity) and least > FULL_SHARE * capacity


def replicated_module(facts: Sequence[Facts]) -> tuple[DdpFacts, str]:
    """The module that is replicated and the name of its optimizer. Raises Missing where the run has none, or not all of
    it was recorded.
    """
    if not facts or not facts[0].ddp or facts[0].fsdp or facts[0].engine:
        raise Missing("--strategies needs a recording of a DistributedDataParallel module")
    if not facts[0].optimizers or facts[0].optimizers[0].name == "ZeroRedundancyOptimizer":
        raise Missing("--strategies needs an optimizer that is not sharded")
    module = max(facts[0].ddp, key=lambda ddp: ddp.gradient_bytes or 0)
    if not module.gradient_bytes:
        raise Missing("gradient sizes were not recorded")
    return module, facts[0].optimizers[0].name


def _activations(measured: Measured, state_bytes: int) -> float | None:
    """What the fullest device held beside parameters, gradients and the optimizer's state."""
    whole_run = [figures for figures in measured.known("memory") or [] if figures.basis == "run"]
    peaks = [figures.known("peak_allocated_bytes") for figures in whole_run]
    most = max((peak for peak in peaks if peak is not None), default=None)
    return None if most is None else max(0.0, most - state_bytes)


def _optimizer_ns(measured: Measured) -> float:
    """Compute of the optimizer in a step, in time without the profiler; 0 where it is not known."""
    phases = {phase.phase: phase.compute_ns for phase in measured.known("phases") or []}
    steps = sum(len(device.steps) for rank in measured.ranks for device in rank.devices)
    if not steps or "optimizer" not in phases:
        return 0.0
    return float(phases["optimizer"] / steps * measured.step.time_ns / measured.traced_step_ns)
