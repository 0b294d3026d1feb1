"""Changes of fully_shard: when units are gathered, whether again for the backward pass, and in which dtype."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from dptune.knobs import Value
from dptune.measured import Missing
from dptune.whatif.cpu.shared_link import Link
from dptune.whatif.cpu.unit_changes import TO_GROUPS
from dptune.whatif.gpu.assumed import Side
from dptune.whatif.gpu.editing import requeued, times, with_edges, without_part
from dptune.whatif.gpu.gathers import Gather
from dptune.whatif.gpu.graph import Edge, Kind
from dptune.whatif.gpu.parts import Part, having
from dptune.whatif.gpu.precision import half_precision
from dptune.whatif.gpu.program import Program

NO_UNITS = "the trace has no fully_shard (FSDP2) ranges around all-gathers; FSDP1 does not write them"
TAKING_TURNS = "because their kernels and collectives take turns on it"
_HALVED = ("float", "float32", "fp32")


def kept_whole(program: Program, value: Value) -> Program:
    """With `reshard_after_forward=False` the backward pass gathers nothing; FSDP1 calls that SHARD_GRAD_OP."""
    if not having(program.parts, Part.REGATHER):
        _needs_units(program)
    if not isinstance(value, bool | None):
        raise Missing(TO_GROUPS)
    if value is not False:
        raise Missing("a GPU trace does not show how long gathering units for backward passes would take")
    gone = having(program.parts, Part.REGATHER)
    return without_part(requeued(program, gone), gone, Part.REGATHER)


def prefetched_forward(program: Program, value: Value) -> Program:
    """Each unit gathered so many units ahead in forward passes."""
    return _prefetched(program, int(value or 0), backward=False)


def prefetched_backward(program: Program, value: Value) -> Program:
    """Each unit gathered so many units ahead in backward passes."""
    return _prefetched(program, int(value or 1), backward=True)


def prefetched(program: Program, value: Value) -> Program:
    """Each unit gathered one unit ahead in both passes."""
    return prefetched_backward(prefetched_forward(program, 1), 1) if value else program


def gathered_in_no_time(program: Program) -> Program:
    """All-gathers take no time, nor do collectives that were not matched or have no known size: those may be such.

    Raises Missing where there is neither.
    """
    gathers = [message.kind == "all_gather" for message in program.messages]
    if not any(gathers) and not program.places((Kind.WAIT, Kind.UNSIZED)):
        raise Missing("the trace shows no all-gather")

    def of(_: int, edge: Edge) -> Edge:
        return edge.lasting(0.0) if gathers[edge.message] else edge

    return times(with_edges(program, (Kind.COLLECTIVE,), of), (Kind.WAIT, Kind.UNSIZED), 0.0)


def parameters_in(program: Program, value: Value, side: Side, link: Link) -> Program:
    """Units gathered and computed in 16 bits."""
    _needs_units(program)
    if value in (None, "fp32"):
        if _is_wide(program, "all_gather"):
            return program
        raise Missing("a GPU trace does not show how long 16-bit kernels would take in fp32")
    return _halved(half_precision(program, side, str(value)), "all_gather", link)


def gradients_in(program: Program, value: Value, link: Link) -> Program:
    """Gradients reduced in 16 bits."""
    _needs_units(program)
    if value in (None, "fp32"):
        if _is_wide(program, "reduce_scatter"):
            return program
        raise Missing("a GPU trace does not show how long reducing gradients in fp32 would take")
    return _halved(program, "reduce_scatter", link)


def _needs_units(program: Program) -> None:
    if not program.gathers:
        raise Missing(NO_UNITS)


def _is_wide(program: Program, kind: str) -> bool:
    """Whether all collectives of a kind send 32-bit floats already."""
    dtypes = {message.dtype for message in program.messages if message.kind == kind}
    return bool(dtypes) and all(dtype in _HALVED for dtype in dtypes)


def _halved(program: Program, kind: str, link: Link) -> Program:
    """Collectives of a kind that send 32-bit floats send half."""
    factors = [
        link.alone_ns(message.message_bytes / 2) / link.alone_ns(message.message_bytes)
        if message.kind == kind and message.dtype in _HALVED
        else 1.0
        for message in program.messages
    ]

    def of(_: int, edge: Edge) -> Edge:
        factor = factors[edge.message]
        return edge if factor == 1 else edge.lasting(edge.lag_ns * factor)

    return with_edges(program, (Kind.COLLECTIVE,), of)


def _prefetched(program: Program, ahead: int, *, backward: bool) -> Program:
    """Gathers issued when the unit that comes so many units before has been copied out."""
    _needs_units(program)
    passes: dict[tuple[int, int, int], list[Gather]] = defaultdict(list)
    for gather in sorted(program.gathers, key=lambda gather: gather.call):
        if gather.backward == backward:
            passes[gather.rank, gather.step, program.micro_batches[gather.call]].append(gather)
    edges: dict[int, list[Edge]] = {}
    for gathers in passes.values():
        edges.update(_issued_ahead(program, gathers, ahead))
    if not edges:
        return program
    if backward and program.shared:  # on the one card where it was measured, the step was faster, not slower
        raise Missing(f"deeper backward prefetching is not predicted when ranks share a GPU, {TAKING_TURNS}")
    return replace(program, edges=[edges.get(place, each) for place, each in enumerate(program.edges)])


def _issued_ahead(program: Program, gathers: Sequence[Gather], ahead: int) -> dict[int, list[Edge]]:
    """The edges of the begins of what gathers launch. Those already issued as early stay as they are.

    A gather still waits for what it waited for, if that is launched before it: the copies out of earlier units, and
    collectives of the same communicator.
    """
    found: dict[int, list[Edge]] = {}
    for number in range(1, len(gathers)):
        gather, waited = gathers[number], gathers[max(0, number - ahead)]
        if not ahead or _depth(gathers, number) >= min(ahead, number):
            continue
        freed = gathers[number - ahead - 1].used_end if number > ahead else None
        before = gathers[number - 1]
        issued = max([waited.used_call, *(_call(program, end) for _, end in waited.copies)])
        for place, (begin, _) in enumerate(gather.operations):
            edges = [Edge(waited.used_call, _latency_ns(program, begin), Kind.LAUNCH)]
            if place:
                edges.append(Edge(gather.operations[place - 1][1], 0.0, Kind.ORDER))
            if len(before.operations) == len(gather.operations):
                edges.append(Edge(before.operations[place][1], 0.0, Kind.ORDER))
            if freed is not None:
                edges.append(Edge(freed, 0.0, Kind.ORDER))
            edges += [
                edge for edge in program.edges[begin] if edge.kind == Kind.ORDER and _call(program, edge.item) <= issued
            ]
            found[begin] = [edge for edge in edges if edge.item < begin]
    return found


def _depth(gathers: Sequence[Gather], number: int) -> int:
    """How many units ahead a gather was issued: those before it that had not been copied out, and who prefetched it."""
    gather = gathers[number]
    return sum(other.used_call >= gather.call for other in gathers[:number]) + gather.prefetched


def _call(program: Program, end: int) -> int:
    """The call that launches the operation of a rank that ends there; the end itself, where no call is known."""
    begins = [edge.item for edge in program.edges[end] if program.ranks[edge.item] == program.ranks[end]]
    return max(
        (edge.item for begin in begins for edge in program.edges[begin] if edge.kind == Kind.LAUNCH), default=end
    )


def _latency_ns(program: Program, begin: int) -> float:
    """From the call to the begin of an operation, where it was launched on an idle device."""
    return max((edge.lag_ns for edge in program.edges[begin] if edge.kind == Kind.LAUNCH), default=0.0)
