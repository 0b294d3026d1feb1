"""Changes of what a step computes on, and how it gets there: the batch, the loader, copies to the device."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from dptune.knobs import Value
from dptune.measured import Missing
from dptune.whatif.gpu.assumed import Assumed, Side
from dptune.whatif.gpu.editing import lasting, times, with_edges, with_new
from dptune.whatif.gpu.graph import COMPUTING, Edge, Kind
from dptune.whatif.gpu.parts import Part
from dptune.whatif.gpu.precision import SMALLEST_NS
from dptune.whatif.gpu.program import Program

NO_BATCH = (
    "the script uses no recorded DataLoader, or several, and the trace does not show the batch size: "
    "batch.times=2 predicts twice the batch"
)
_GROWING = (COMPUTING - {Kind.UPDATE}) | {Kind.COPY}
# Of the time beyond that of the smallest kernel: small batches leave multiprocessors idle that larger ones use. On an
# H200 twice the batch took 0.95 times twice the kernels, four times the batch 0.93.
_GROWTH = Assumed(1.0, 0.95, 0.5)
_DECODING = Assumed(1.15, 1.0, 1.0)  # a worker's time for a batch / the script's
_FETCHING_NS = Assumed(2e6, 0.4e6, 0.0)  # from a worker's queue: a pickled message and shared memory
# Of a wait for a batch from workers: what taking it from their queue takes, which does not grow with the batch.
_TAKING_NS = Assumed(_FETCHING_NS.most, _FETCHING_NS.middle, _FETCHING_NS.least)
# Bytes per ns of a copy from pinned memory: 16 lanes of PCIe 3, 4 and 5 transfer 12, 25 and 50, half of that if two
# devices share them.
_PINNED_RATE = Assumed(6.0, 14.0, 50.0)
_PINNED = Assumed(1.0, 0.4, 0.15)  # such a copy / one from pageable memory, if the trace does not show its bytes


def batch_size(program: Program, value: Value, side: Side) -> Program:
    """A batch of so many samples."""
    if not program.batch:
        raise Missing(NO_BATCH)
    if not int(value or 0):
        raise Missing("a batch has at least one sample")
    return replace(batch_times(program, int(value or 0) / program.batch, side), batch=int(value or 0))


def batch_times(program: Program, value: Value, side: Side) -> Program:
    """Kernels, copies and waits for batches grow with it; the optimizer, calls of the host and collectives do not.

    Where workers prepare batches, the time to take one from their queue stays.
    """
    factor = float(value or 0)
    if not factor:
        raise Missing("a batch has at least one sample")
    if factor == 1:
        return program
    moves = {item for reduction in program.reductions for item in reduction.moves}
    growth = _GROWTH.at(side)

    def of(lag_ns: float) -> float:
        constant_ns = min(lag_ns, SMALLEST_NS) if side != Side.LEAST else 0.0
        return lag_ns + (lag_ns - constant_ns) * growth * (factor - 1)

    grown = lasting(program, _GROWING, of, lambda place: place not in moves)
    samples = None if program.samples is None else program.samples * factor
    taking_ns = _TAKING_NS.at(side) if program.has_workers else 0.0

    def waited(lag_ns: float) -> float:
        return lag_ns + max(0.0, lag_ns - taking_ns) * (factor - 1)

    return replace(lasting(grown, (Kind.INPUT,), waited), samples=samples)


def has_no_workers(program: Program) -> bool:
    """Whether the script itself prepares its batches."""
    return program.workers == 0


def loading_workers(program: Program, value: Value, side: Side) -> Program:
    """Workers prepare batches that the script prepared itself: one comes at most every so often as all make one."""
    workers = int(value or 0)
    if not workers:
        raise Missing("a GPU trace does not show how long steps take with loader.num_workers = 0")
    before: dict[int, int] = {}
    found: dict[int, list[Edge]] = defaultdict(list)
    for place in program.places((Kind.INPUT,)):
        for edge in program.edges[place]:
            if edge.kind != Kind.INPUT:
                continue
            rank = program.ranks[place]
            found[place].append(edge.lasting(min(edge.lag_ns, _FETCHING_NS.at(side))))
            if rank in before:
                found[place].append(Edge(before[rank], edge.lag_ns * _DECODING.at(side) / workers, Kind.INPUT))
            before[rank] = place
    if not found:
        return program
    fed = {
        place: [*(edge for edge in program.edges[place] if edge.kind != Kind.INPUT), *edges]
        for place, edges in found.items()
    }
    return replace(with_new(program, fed), workers=workers)


def no_loader(program: Program) -> Program:
    """The script waits for no batch."""
    return times(program, (Kind.INPUT,), 0.0)


def uploads_beside(program: Program, value: Value, side: Side) -> Program:
    """Copies to the device are from pinned memory, and the script waits for none of them."""
    if not value:
        raise Missing("a GPU trace gives only an upper bound for other values of copies.non_blocking")
    uploaded = _copied(program, Part.UPLOAD)

    def of(place: int, edge: Edge) -> Edge | None:
        if edge.kind == Kind.SYNC:
            return None if edge.item in uploaded else edge
        return edge.lasting(_pinned_ns(program, place, edge.lag_ns, side)) if place in uploaded else edge

    return with_edges(program, (Kind.SYNC, Kind.COPY), of)


def _pinned_ns(program: Program, place: int, pageable_ns: float, side: Side) -> float:
    """How long a copy takes from pinned memory: no longer than from pageable memory, which is staged through pinned."""
    size = program.uploads.get(place)
    if not size:
        return pageable_ns * _PINNED.at(side)
    return min(pageable_ns, SMALLEST_NS + size / _PINNED_RATE.at(side))


def pinned(program: Program) -> Program:
    """Copies take no time and no call waits for one; with workers, a thread takes batches from their queue.

    That thread prepares no batch: one that the script waited for comes as long after the one before it as it did.
    """
    copied = _copied(program, None)
    free = with_edges(program, (Kind.SYNC,), lambda _, edge: None if edge.item in copied else edge)
    free = times(free, (Kind.COPY,), 0.0)
    return free if has_no_workers(program) else _supplied(free, program.run())


def _supplied(program: Program, recorded_ns: Sequence[float]) -> Program:
    """The program without the fetching of batches, whose workers are no faster than at these times of all places."""
    fetching_ns, before = _FETCHING_NS.at(Side.LEAST), dict[int, int]()
    edges: list[Sequence[Edge]] = []
    for place, each in enumerate(program.edges):
        waited_ns = max((edge.lag_ns for edge in each if edge.kind == Kind.INPUT), default=0.0)
        found = [edge.lasting(0.0) if edge.kind == Kind.INPUT else edge for edge in each] if waited_ns else each
        if waited_ns > fetching_ns:
            rank = program.ranks[place]
            if rank in before:
                found = [*found, Edge(before[rank], recorded_ns[place] - recorded_ns[before[rank]], Kind.INPUT)]
            before[rank] = place
        edges.append(found)
    return program.edited(edges) if edges != program.edges else program


def _copied(program: Program, part: Part | None) -> set[int]:
    """The places of begins and ends of copies: all, or those of a part."""
    ends = {
        place: edge.item
        for place in program.places((Kind.COPY,))
        for edge in program.edges[place]
        if edge.kind == Kind.COPY and (part is None or (program.parts and program.parts[place] & part))
    }
    return {*ends, *ends.values()}
