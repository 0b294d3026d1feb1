"""Other implementations of an optimizer's step: one kernel for all parameters, or one for lists of them."""

from __future__ import annotations

import re
from collections.abc import Set as AbstractSet
from dataclasses import replace

from dptune.knobs import Value
from dptune.measure.device.kernel_kinds import kernel_kind
from dptune.measured import Missing
from dptune.whatif.gpu.assumed import Assumed, Side
from dptune.whatif.gpu.editing import lasting, times, with_room
from dptune.whatif.gpu.graph import Kind
from dptune.whatif.gpu.program import Program

UNKNOWN = "the trace does not show kernels of an optimizer that updates element by element"
# Bytes that a fused step moves / those of its foreach operations. AdamW in fp32: 28 of 84 per parameter (torch
# `_multi_tensor_adamw` and `fused_adam_utils.cuh`); other optimizers have fewer operations.
_FUSED_KERNELS = Assumed(0.6, 1 / 3, 0.25)
_FUSED_CALLS = Assumed(0.7, 0.35, 0.15)  # one call instead of eight, which groups tensors as those do
# Calls of foreach / of a loop over parameters, about ten of 10 us for each.
_LISTED_CALLS = Assumed(0.3, 0.12, 0.04)
_LISTED_KERNELS = 0.05  # the number of kernels: each takes hundreds of tensors
_SMALLEST_NS = Assumed(1_000.0, 1_800.0, 2_500.0)  # the part of a kernel's time that does not depend on its tensor
_WAITS = (Kind.LAUNCH, Kind.ORDER)
_FUSED = re.compile(r"Fused\w*(?:Functor|Metadata)|AdamFunctor")
_MULTIPLY = frozenset({"matrix product", "convolution", "attention"})


def implementation_of(names: AbstractSet[str]) -> str:
    """How an optimizer updates, by the names of its kernels; empty where it multiplies matrices or was compiled.

    Muon and Shampoo multiply, and have no fused implementation in torch.
    """
    if not names or any(kernel_kind(name) in _MULTIPLY or name.startswith("triton_") for name in names):
        return ""
    lists = [name for name in names if "multi_tensor_apply" in name]
    if not lists:
        return "loop"
    return "fused" if any(map(_FUSED.search, lists)) else "foreach"


def fused(program: Program, value: Value, side: Side) -> Program:
    """`fused=True`."""
    implementation = _known(program, value)
    if implementation == "fused":
        return program
    listed = program if implementation == "foreach" else _listed(program, side)
    kernels = times(listed, (Kind.UPDATE,), _FUSED_KERNELS.at(side))
    return replace(times(kernels, (Kind.UPDATING,), _FUSED_CALLS.at(side)), optimizer="fused")


def foreach(program: Program, value: Value, side: Side) -> Program:
    """`foreach=True`, which is torch's default on GPUs."""
    implementation = _known(program, value)
    if implementation == "fused":
        raise Missing("the optimizer is fused, which foreach excludes")
    return program if implementation == "foreach" else _listed(program, side)


def _known(program: Program, value: Value) -> str:
    if not program.optimizer:
        raise Missing(UNKNOWN)
    if not value:
        raise Missing("a GPU trace does not show how long an update of one parameter at a time takes")
    return program.optimizer


def _listed(program: Program, side: Side) -> Program:
    """Of a loop over parameters: the same bytes in fewer kernels and calls."""
    smallest_ns = _SMALLEST_NS.at(side)

    def of(lag_ns: float) -> float:
        constant_ns = min(lag_ns, smallest_ns)
        return lag_ns - constant_ns + _LISTED_KERNELS * constant_ns

    kernels = lasting(program, (Kind.UPDATE,), of)
    calls = times(kernels, (Kind.UPDATING,), _LISTED_CALLS.at(side))
    updates = update_begins(program)
    return with_room(times(calls, _WAITS, _LISTED_KERNELS, updates.__contains__))


def no_time(program: Program) -> Program:
    """The optimizer's kernels and calls take no time, nothing is between them, and they fill no launch queue."""
    updates = update_begins(program)
    if not updates:
        raise Missing(UNKNOWN)
    free = times(program, (Kind.UPDATE, Kind.UPDATING), 0.0)
    return with_room(times(free, _WAITS, 0.0, updates.__contains__))


def update_begins(program: Program) -> set[int]:
    """The places of the begins of the optimizer's kernels."""
    places, edges = program.places((Kind.UPDATE,)), program.edges
    return {edge.item for place in places for edge in edges[place] if edge.kind == Kind.UPDATE}
