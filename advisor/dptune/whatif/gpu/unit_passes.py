"""Units of fully_shard whose gradients are reduced in the last backward pass of a step only.

The other passes keep whole gradients: each adds its own to those of the pass before it, which takes a kernel and a call
for each of them, and a pass whose gradients are reduced in another dtype casts them.
Source: torch 2.13, distributed/fsdp/_fully_shard/_fsdp_param_group.py, `post_backward`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from dptune.knobs import Value
from dptune.measured import Missing
from dptune.whatif.gpu.assumed import Assumed, Side
from dptune.whatif.gpu.graph import OF_HOST
from dptune.whatif.gpu.parts import OUTSIDE, Part
from dptune.whatif.gpu.program import Program
from dptune.whatif.gpu.unit_editing import NO_REDUCTIONS, HostTimes, UnitEdit
from dptune.whatif.gpu.unit_reductions import UnitReduction

# What adding a unit's gradients takes / copying them in. Adding reads two and writes one where a copy reads and writes
# one: 12 of 8 bytes in fp32, and one kernel for each gradient.
ADDED = Assumed(3.0, 1.5, 1.0)
ADDING_NS = Assumed(40e3, 20e3, 5e3)  # of the host, for each gradient, with the profiler


def reduced_once(program: Program, value: Value, side: Side) -> Program:
    """Gradients of units are reduced in the last backward pass of each step."""
    if not value:
        raise Missing("a GPU trace does not show how long reducing gradients in every backward pass would take")
    if not program.unit_reductions:
        raise Missing(NO_REDUCTIONS)
    edit, kept = UnitEdit.of(program), list[UnitReduction]()
    reducing = HostTimes(program, Part.UNIT_REDUCING)
    spared: dict[int, float] = {}
    for of_step in _passes(program).values():
        *silent, last = (of_step[number] for number in sorted(of_step))
        kept += last
        for number, units in enumerate(silent):
            spared |= reducing.around(unit.calls for unit in units)
            for unit in units:
                edit.without_reduction(unit)
                _keep(edit, unit, side, adding=number > 0, spared=spared)
        if silent:
            _not_added(edit, silent[0], last, reducing, spared)
            for unit in last:
                _keep(edit, unit, side, adding=True, spared=spared, also=1.0)
    if len(kept) == len(program.unit_reductions):
        return program
    edit.spending(spared)
    return edit.program(unit_reductions=sorted(kept, key=lambda unit: unit.call))


def _passes(program: Program) -> Mapping[tuple[int, int], dict[int, list[UnitReduction]]]:
    """By rank and step the reductions of each backward pass."""
    found: dict[tuple[int, int], dict[int, list[UnitReduction]]] = defaultdict(lambda: defaultdict(list))
    for unit in program.unit_reductions:
        number = program.micro_batches[unit.call] if program.micro_batches else OUTSIDE
        if number == OUTSIDE:
            raise Missing("the trace does not show the backward passes of each step")
        found[unit.rank, unit.step][number].append(unit)
    return found


def _keep(
    edit: UnitEdit, unit: UnitReduction, side: Side, *, adding: bool, spared: dict[int, float], also: float = 0.0
) -> None:
    """The unit's gradients stay whole: they are added to earlier ones, or cast where they are reduced in another dtype.

    Either takes the place of the copy that is gone. `also`: how much of that copy stays.
    """
    program = edit.before
    sent = {kind: {each.dtype for each in program.messages if each.kind == kind} for kind in _KINDS}
    if not adding and sent["all_gather"] == sent["reduce_scatter"]:
        return
    for _, end in unit.operations[: unit.collective]:
        edit.lasting(end, edit.took_ns(end) * (also + (ADDED.at(side) if adding else 1.0)))
    host = next((place for place in unit.calls if any(edge.kind in OF_HOST for edge in program.edges[place])), None)
    if host is not None:
        spared[host] = spared.get(host, 0.0) - len(unit.ready) * program.added_times * ADDING_NS.at(side)


def _not_added(
    edit: UnitEdit,
    first: Sequence[UnitReduction],
    last: Sequence[UnitReduction],
    reducing: HostTimes,
    spared: dict[int, float],
) -> None:
    """The last pass adds no shards to those of earlier ones: after its collectives it does what the first one did."""
    before = {unit.unit: unit for unit in first}
    for unit in last:
        alike = before.get(unit.unit)
        if alike is None or alike.collective != unit.collective or len(unit.calls) <= len(alike.calls):
            continue
        for begin, end in unit.operations[len(alike.operations) :]:
            edit.edges[begin] = [edge.lasting(0.0) for edge in edit.edges[begin]]
            edit.edges[end] = [edge.lasting(0.0) for edge in edit.edges[end]]
        now = reducing.around([unit.calls])
        then = sum(reducing.around([alike.calls]).values())
        less = max(0.0, 1 - then / total) if (total := sum(now.values())) else 0.0
        spared.update({place: less * spent for place, spent in now.items()})


_KINDS = ("all_gather", "reduce_scatter")
