"""How long an all-reduce takes where its ranks are more, lie in several nodes, or reduce in another way.

Of n ranks, S bytes, a hop of latency a and rate b, from one rank to the next:

| algorithm | latency | bytes over each link |
|---|---|---|
| ring | 2 (n - 1) a | 2 (n - 1) / n S |
| tree | 2 log2(n) a, rounded up | 2 S |
| hierarchical, within each node of l ranks | 2 (l - 1) a | 2 (l - 1) / l S |
| and between m nodes | 2 (m - 1) a | 2 (m - 1) / m S, of all ranks of a node |

What was measured is taken for a ring, and gives the hop: that within a node, or, where the ranks of the recording were
on several hosts, that between nodes, on which such a ring waits. A ring or tree over several nodes is as quick as its
slowest hop.

Sources: for the ring Patarasuk & Yuan, "Bandwidth optimal all-reduce algorithms", J. Parallel Distrib. Comput. 69
(2009); for the tree Sanders, Speck & Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan",
Parallel Computing 35 (2009); for a reduce-scatter within nodes, an all-reduce between them and an all-gather within
Thakur, Rabenseifner & Gropp, "Optimization of collective communication operations in MPICH", Int. J. High Perform.
Comput. Appl. 19 (2005).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from dptune.knobs import Value
from dptune.measured import Missing
from dptune.whatif.cpu.shared_link import Link

ALONE = "a single rank does not communicate"
MOST_TIMES = 8  # more ranks than were recorded: beyond, other links carry most of it
RING, TREE, HIERARCHICAL = ALGORITHMS = ("ring", "tree", "hierarchical")
# The settings that are one change together.
TOPOLOGY = ("world_size", "nodes", "allreduce.algorithm", "link.between_alpha_us", "link.between_gb_per_s")
UNKNOWN_NETWORK = (
    "the network between nodes was not measured (set link.between_gb_per_s): only an upper bound of the saving is known"
)


@dataclass(frozen=True)
class Hop:
    """What a message from one rank to the next takes: `alpha_ns`, and its bytes at `bytes_per_ns`."""

    alpha_ns: float
    bytes_per_ns: float

    def or_slower(self, other: Hop) -> Hop:
        """The slower one's latency, and the slower one's rate."""
        return Hop(max(self.alpha_ns, other.alpha_ns), min(self.bytes_per_ns, other.bytes_per_ns))


def ranks_asked(settings: Mapping[str, Value], before: int) -> int:
    """How many ranks there are to be, of `before`. Raises Missing where that number cannot be predicted."""
    ranks = int(settings.get("world_size") or before)
    if before < 2:
        raise Missing(ALONE)
    if not 2 <= ranks <= MOST_TIMES * before:
        raise Missing(f"the model covers 2 to {MOST_TIMES * before} ranks, {MOST_TIMES} times the recorded number")
    return ranks


def lacks_network(hosts: int, settings: Mapping[str, Value]) -> bool:
    """Whether ranks of one host are to be spread over nodes, and nothing is known of the network between these."""
    return hosts == 1 and int(settings.get("nodes") or 1) > 1 and settings.get("link.between_gb_per_s") is None


def relinked(link: Link, before: int, hosts: int, settings: Mapping[str, Value], latency: float = 1.0) -> Link:
    """The all-reduce over a topology, from the one that was measured of so many ranks on so many hosts.

    Where no `nodes` are asked for, they are as many as the hosts were, or one for each rank where those do not hold as
    many ranks each. `latency`: how many times the fitted value the link's is, and so another link's is, too.
    Raises Missing where it cannot be predicted.
    """
    ranks = ranks_asked(settings, before)
    nodes = int(settings.get("nodes") or (ranks if ranks % hosts else hosts))
    algorithm = settings.get("allreduce.algorithm") or RING
    if ranks % nodes:
        raise Missing(f"{ranks} ranks cannot be spread evenly over {nodes} nodes")
    measured = Hop(link.alpha_ns / (2 * (before - 1)), link.bytes_per_ns * 2 * (before - 1) / before)
    if nodes == 1 and not settings.keys().isdisjoint(TOPOLOGY[-2:]):
        raise Missing("a single node has no link to others: set `nodes` too")
    if hosts > 1 and (nodes == 1 or (algorithm == HIERARCHICAL and nodes < ranks)):
        raise Missing(f"the measured link is that between {hosts} hosts; the link within a host is unknown")
    alpha_us, rate = (settings.get(f"link.between_{name}") for name in ("alpha_us", "gb_per_s"))
    between = Hop(
        measured.alpha_ns if alpha_us is None else float(alpha_us) * 1e3 * latency,
        measured.bytes_per_ns if rate is None else float(rate),
    )
    if algorithm == HIERARCHICAL:
        per_node = ranks // nodes
        alpha = 2 * (per_node - 1) * measured.alpha_ns + 2 * (nodes - 1) * between.alpha_ns
        per_byte = (
            2 * (per_node - 1) / per_node / measured.bytes_per_ns + 2 * (nodes - 1) / nodes / between.bytes_per_ns
        )
        return replace(link, alpha_ns=alpha, bytes_per_ns=1 / per_byte if per_byte else float("inf"))
    hop = measured if nodes == 1 else between
    if 1 < nodes < ranks and hosts == 1:
        hop = measured.or_slower(between)
    if algorithm == TREE:
        depth = (ranks - 1).bit_length()
        return replace(link, alpha_ns=2 * depth * hop.alpha_ns, bytes_per_ns=hop.bytes_per_ns / 2)
    share = 2 * (ranks - 1) / ranks
    return replace(link, alpha_ns=2 * (ranks - 1) * hop.alpha_ns, bytes_per_ns=hop.bytes_per_ns / share)
