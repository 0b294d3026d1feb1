"""CPUOffloadPolicy in a program: shards are copied to the device before each all-gather, reduced gradients back.

The optimizer then updates the shards on the host's cores. Sources: torch 2.13, distributed/fsdp/_fully_shard/
_fsdp_param.py, `all_gather_inputs`, and _fsdp_collectives.py, `foreach_reduce`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from dptune.knobs import Value
from dptune.measured import Missing
from dptune.whatif.cpu.wrappers import UPDATE_NS
from dptune.whatif.gpu.assumed import Assumed, Side
from dptune.whatif.gpu.editing import with_edges, with_new
from dptune.whatif.gpu.graph import Edge, Kind
from dptune.whatif.gpu.optimizing import UNKNOWN
from dptune.whatif.gpu.program import Program
from dptune.whatif.gpu.sharding import NO_UNITS

# Of pinned memory over PCIe: third generation shared by two GPUs, fourth, fifth. Source: PCI-SIG, 16 lanes.
_BYTES_PER_NS = Assumed(6.0, 22.0, 50.0)
# Cores that update the shards of a rank, as a factor on what one core takes for an element of 4 bytes.
_UPDATE_TIMES = Assumed(2.0, 1 / 4, 1 / 16)
_ELEMENT_BYTES = 4


def offloaded(program: Program, value: Value, side: Side) -> Program:
    """Parameters, gradients and the optimizer's state in the host's memory."""
    if not value:
        raise Missing("a GPU trace does not show how long updates on the device would take")
    if not program.gathers:
        raise Missing(NO_UNITS)
    if not any(edge.kind == Kind.UPDATE for edges in program.edges for edge in edges):
        raise Missing(UNKNOWN)
    shards = _shards(program)
    copies = {place: size / _BYTES_PER_NS.at(side) for place, size in shards.items()}
    updates = _update_times(program, shards, side)

    def of(place: int, edge: Edge) -> Edge:
        if edge.kind == Kind.UPDATE:
            return edge.lasting(edge.lag_ns * updates[program.ranks[place]])
        if program.messages[edge.message].kind != "reduce_scatter":
            return edge
        size = program.messages[edge.message].message_bytes / program.world_size
        return edge.lasting(edge.lag_ns + size / _BYTES_PER_NS.at(side))

    # The begin of an all-gather waits for the copy of its shard.
    begins = {place: [edge.lasting(edge.lag_ns + ns) for edge in program.edges[place]] for place, ns in copies.items()}
    return with_edges(with_new(program, begins), (Kind.COLLECTIVE, Kind.UPDATE), of)


def _shards(program: Program) -> dict[int, float]:
    """Bytes of the shard that each all-gather sends, by the place of its begin."""
    found = {}
    for gather in program.gathers:
        begin, end = gather.operations[-1]
        message = next((edge.message for edge in program.edges[end] if edge.kind == Kind.COLLECTIVE), None)
        if message is None:
            raise Missing("the size of an all-gather is unknown, or not all its ranks were read")
        found[begin] = program.messages[message].message_bytes / program.world_size
    return found


def _update_times(program: Program, shards: Mapping[int, float], side: Side) -> dict[int, float]:
    """By rank how many times as long as its kernels the host takes to update its shards."""
    units: dict[int, dict[str, float]] = defaultdict(dict)
    for gather in program.gathers:
        units[gather.rank][gather.unit] = shards[gather.operations[-1][0]]
    updated_ns: dict[int, float] = defaultdict(float)
    for place, edges in enumerate(program.edges):
        updated_ns[program.ranks[place]] += sum(edge.lag_ns for edge in edges if edge.kind == Kind.UPDATE)
    steps = {rank: sum(step.rank == rank for step in program.steps) for rank in updated_ns}
    found = {}
    for rank, kernels_ns in updated_ns.items():
        elements = sum(units[rank].values()) / _ELEMENT_BYTES
        host_ns = _UPDATE_TIMES.at(side) * UPDATE_NS * elements * steps[rank]
        found[rank] = host_ns / kernels_ns if kernels_ns else 1.0
    return found
