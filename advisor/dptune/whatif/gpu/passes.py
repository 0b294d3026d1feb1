"""Changes of the passes of a step: their number, and forward and backward as CUDA graphs."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from dptune.knobs import Value
from dptune.measured import Missing
from dptune.whatif.gpu.assumed import Assumed, Side
from dptune.whatif.gpu.buckets import without_reductions
from dptune.whatif.gpu.editing import requeued, times, with_edges, with_room, without, without_part
from dptune.whatif.gpu.graph import COMPUTING, Edge, Kind
from dptune.whatif.gpu.parts import OUTSIDE, Part, having
from dptune.whatif.gpu.program import Program
from dptune.whatif.gpu.unit_passes import ADDED, ADDING_NS

NO_PASSES = "the trace does not show the backward passes of each step"
_OF_PASSES = (*(COMPUTING - {Kind.UPDATE}), Kind.HOST, Kind.COPY, Kind.INPUT, Kind.WAIT, Kind.UNSIZED)
_LEFT = Assumed(0.25, 0.0, 0.0)  # of the time between the calls of a pass: what no graph holds
_LAUNCH_NS = Assumed(100e3, 20e3, 5e3)  # one cudaGraphLaunch, for graphs of a hundred to a thousand kernels


def micro_batches(program: Program, value: Value, *, no_sync: bool = False) -> Program:
    """So many micro-batches per step: the last ones of those recorded, or each for as much longer as there are more.

    If only the last one reduces gradients, the others are more: the same if a single one was recorded, with `no_sync`.
    """
    wanted, recorded = int(value or 1), _recorded(program)
    if wanted == recorded:
        return program
    samples = None if program.samples is None else program.samples * wanted / recorded
    if wanted > recorded:
        return replace(_longer(program, wanted, recorded, no_sync=no_sync), samples=samples)
    numbers = range(recorded - wanted)
    fewer = without_reductions(_not_added(program, recorded - wanted), numbers.__contains__)
    gone = {place for place, number in enumerate(fewer.micro_batches) if number in numbers}
    return replace(without(requeued(fewer, gone), gone), samples=samples)


def _not_added(program: Program, number: int) -> Program:
    """The program in which a micro-batch sets gradients instead of adding to them, as the first one does."""
    adding = having(program.parts, Part.ADDING)
    numbers = program.micro_batches
    if any(numbers[place] == 0 for place in adding):  # zeroed gradients, not None
        return program
    spent_ns = _of_pass(program, Part.ADDING, number)
    setting_ns, adding_ns = sum(_of_pass(program, Part.SETTING, 0).values()), sum(spent_ns.values())
    less = max(0.0, 1 - setting_ns / adding_ns) if adding_ns else 1.0
    kept = {place: less * spent for place, spent in spent_ns.items()}
    added = {place for place in adding if numbers[place] == number}
    return without_part(replace(program, spent_ns={**program.spent_ns, Part.ADDING: kept}), added, Part.ADDING)


def _of_pass(program: Program, part: Part, number: int) -> dict[int, float]:
    """By place what hosts spend on a part in the micro-batches of this number."""
    numbers = program.micro_batches
    return {place: spent for place, spent in program.spent_ns.get(part, {}).items() if numbers[place] == number}


def _recorded(program: Program) -> int:
    """How many micro-batches a step has. Raises Missing where that is not known, or steps differ."""
    steps = {(step.rank, step.number): 0 for step in program.steps}
    most: dict[int, int] = defaultdict(int)
    for rank, number in zip(program.ranks, program.micro_batches, strict=False):
        most[rank] = max(most[rank], number + 1)
    counts = {most[rank] for rank, _ in steps}
    if len(counts) != 1 or counts == {0}:
        raise Missing(NO_PASSES)
    return counts.pop()


def _longer(program: Program, wanted: int, recorded: int, *, no_sync: bool) -> Program:
    """Every pass so many times as long, and its collectives where each pass has some.

    If only the last pass reduces gradients, it stays as it is, or is longer by what it takes beside that if it is the
    only one.
    """
    numbers, last = program.micro_batches, recorded - 1
    if recorded > 1 and {numbers[unit.call] for unit in program.unit_reductions} == {last}:
        return _beside_reducing(program, wanted - recorded, (wanted - 1) / (recorded - 1), last)
    communicating = {
        numbers[place]
        for place in program.places((Kind.COLLECTIVE,))
        for edge in program.edges[place]
        if edge.kind == Kind.COLLECTIVE and numbers[place] != OUTSIDE
    }
    if recorded > 1 and communicating == {last} and program.reductions:
        factor = (wanted - 1) / (recorded - 1)
        return times(program, _OF_PASSES, factor, lambda place: numbers[place] not in (OUTSIDE, last))
    factor = wanted / recorded
    if recorded == 1 and no_sync:
        return _beside_reducing(program, wanted - recorded, factor)
    longer = times(program, _OF_PASSES, factor, lambda place: numbers[place] != OUTSIDE)
    if len(communicating) < recorded:
        return longer
    return times(longer, (Kind.COLLECTIVE,), factor, lambda place: numbers[place] != OUTSIDE)


def _beside_reducing(program: Program, more: int, factor: float, stays: int = OUTSIDE) -> Program:
    """The passes so many times as long but for what reduces gradients: copies, collectives, and the host's time.

    `stays`: the number of a pass that is as long as before. So many `more` passes add gradients of units to those of
    earlier ones, which is counted where these are copied in; `reduced_once` counted it once where a pass stays.
    """
    numbers, units = program.micro_batches, program.unit_reductions
    spent_ns = {**program.spent_ns.get(Part.REDUCING, {}), **program.spent_ns.get(Part.UNIT_REDUCING, {})}
    kept = {item for reduction in program.reductions for item in reduction.moves}
    kept |= {end for unit in units for _, end in unit.operations}
    copies = {end for unit in units for _, end in unit.operations[: unit.collective]}
    added = more * ADDED.middle / (1.0 if stays == OUTSIDE else 1 + ADDED.middle)
    adding_ns = {unit.call: more * len(unit.ready) * program.added_times * ADDING_NS.middle for unit in units}
    gathers = {gather.operations[-1][1] for gather in program.gathers}

    def of(place: int, edge: Edge) -> Edge:
        if place in copies:
            return edge.lasting((1 + added) * edge.lag_ns)
        also_ns = adding_ns.get(place, 0.0) if edge.kind == Kind.HOST else 0.0
        is_reduction = place in kept or (edge.kind == Kind.COLLECTIVE and place not in gathers)
        if numbers[place] in (OUTSIDE, stays) or is_reduction:
            return edge.lasting(edge.lag_ns + also_ns) if also_ns else edge
        reducing = min(edge.lag_ns, spent_ns.get(place, 0.0)) if edge.kind == Kind.HOST else 0.0
        return edge.lasting(reducing + factor * (edge.lag_ns - reducing) + also_ns)

    return with_edges(program, (*_OF_PASSES, Kind.COLLECTIVE), of)


def as_graphs(program: Program, value: Value, side: Side) -> Program:
    """Each micro-batch's forward and backward launched by one call; the loader and the optimizer stay as they are."""
    if not value:
        return program
    numbers = program.micro_batches
    if all(number == OUTSIDE for number in numbers):
        raise Missing(NO_PASSES)
    before: dict[int, int] = {}
    first: set[int] = set()
    for place in program.places((Kind.HOST, Kind.UPDATING)):
        if any(edge.kind in (Kind.HOST, Kind.UPDATING) for edge in program.edges[place]):
            rank = program.ranks[place]
            if numbers[place] != before.get(rank, OUTSIDE):
                first.add(place)
            before[rank] = numbers[place]

    def of(place: int, edge: Edge) -> Edge:
        if numbers[place] == OUTSIDE or not edge.lag_ns:
            return edge
        if place in first:
            return edge.lasting(min(edge.lag_ns, _LAUNCH_NS.at(side)))
        return edge.lasting(edge.lag_ns * _LEFT.at(side))

    return with_room(with_edges(program, (Kind.HOST,), of))
