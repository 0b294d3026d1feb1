"""Bandwidth of collectives, as nccl-tests defines it.

algbw = bytes / time, where bytes is the larger of input and output of one rank; busbw = algbw times the share of those
bytes that crosses each rank's link in a ring, so that it can be held against what the link gives. In-switch reduction
may exceed it. Source: https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md.
"""

from __future__ import annotations


def bus_factor(kind: str, ranks: int) -> float | None:
    """busbw / algbw of a collective of so many ranks; None for kinds whose traffic is not known."""
    if ranks < 2:
        return None
    match kind:
        case "all_reduce":
            return 2 * (ranks - 1) / ranks
        case "all_gather" | "reduce_scatter" | "all_to_all":
            return (ranks - 1) / ranks
        case "broadcast" | "reduce" | "p2p":
            return 1.0
    return None
