"""HSDP in a program: units sharded within each host, whose reduced shards are all-reduced between hosts.

Collectives of units then are among the ranks of a host, and take as much of what they took as rings of fewer ranks with
shorter hops do. What a hop within a host takes was not measured: a ring over all ranks waits for those between hosts.
The all-reduce runs on a stream of its own, of all ranks of a host at once, which share its links or have one each.

Source: torch 2.13, distributed/fsdp/_fully_shard/_fsdp_collectives.py, `foreach_reduce`.
"""

from __future__ import annotations

from dptune.knobs import Value
from dptune.measured import Missing
from dptune.whatif.cpu.hybrid import ring
from dptune.whatif.cpu.shared_link import Link
from dptune.whatif.cpu.topology import Hop
from dptune.whatif.gpu.assumed import Assumed, Side
from dptune.whatif.gpu.editing import with_edges, with_new
from dptune.whatif.gpu.graph import Edge, Kind
from dptune.whatif.gpu.program import Program

# How many times as long as between hosts a hop within a host takes. Between GPUs of a host NVLink moves 50 to 450 GB/s
# each way, and PCIe 25 to 50; networks 3 to 50 for each GPU. Source: NVIDIA's data sheets of DGX A100 and H100.
_WITHIN = Assumed(1.0, 0.25, 0.0)
_UNITS = ("all_gather", "reduce_scatter")


def within_hosts(program: Program, value: Value, side: Side, link: Link) -> Program:
    """Shards within each host of the recording. `link` is that of all-reduces among all ranks, as recorded."""
    if not value:
        raise Missing("a GPU trace does not show how long collectives among all ranks would take")
    ranks, hosts = program.world_size, program.hosts
    if hosts == 1 or ranks % hosts or ranks == hosts:
        raise Missing("HSDP needs several hosts with the same number of ranks, two or more, all recorded")
    if not any(message.kind in _UNITS for message in program.messages):
        raise Missing("no all-gather or reduce-scatter of known size was found on all its ranks")
    per_host = ranks // hosts
    hop = Hop(link.alpha_ns / (2 * (ranks - 1)), link.bytes_per_ns * 2 * (ranks - 1) / ranks)
    times = _WITHIN.at(side)
    inside = ring(Hop(times * hop.alpha_ns, hop.bytes_per_ns / times if times else float("inf")), per_host)
    at_once = Assumed(1.0, (1 + 1 / per_host) / 2, 1 / per_host).at(side)
    between = ring(hop, hosts)
    lags = []
    for message in program.messages:
        size = message.message_bytes
        shorter = inside.alone_ns(size) / link.alone_ns(size)
        lags.append((shorter, between.alone_ns(size * at_once) if message.kind == "reduce_scatter" else 0.0))

    program = _each_begin(program)

    def of(place: int, edge: Edge) -> Edge | None:
        if program.messages[edge.message].kind not in _UNITS:
            return edge
        if edge.lag_ns and program.messages[edge.message].kind == "all_gather" and apart(place, edge):
            return None
        shorter, more_ns = lags[edge.message]
        reduced_ns = edge.lag_ns * shorter
        # At best the all-reduce of a unit runs beside the reduce-scatter of the next one.
        return edge.lasting(max(reduced_ns, more_ns) if side == Side.MOST else reduced_ns + more_ns)

    def apart(place: int, edge: Edge) -> bool:
        """Whether the rank that is waited for is on another host."""
        return bool(program.ranks) and program.ranks[place] // per_host != program.ranks[edge.item] // per_host

    return with_edges(program, (Kind.COLLECTIVE,), of)


def _each_begin(program: Program) -> Program:
    """The program whose all-gathers wait for the begin of each rank, not for an item that stands for all."""
    new = {}
    for place in program.places((Kind.COLLECTIVE,)):
        edges = program.edges[place]
        if program.messages[edges[0].message].kind == "all_gather" and len(begins := program.begins(place)) > len(
            edges
        ):
            new[place] = [Edge(begin, edges[0].lag_ns, Kind.COLLECTIVE, edges[0].message) for begin in begins]
    return with_new(program, new)
