"""Collectives of fully_shard units over gloo, each of which blocks the thread that issues it.

On a CPU, streams are no-ops and all-gathers are synchronous (torch 2.13, `_fsdp_collectives.foreach_all_gather`), so a
gather that is prefetched blocks earlier and hides nothing. Only `set_unshard_async_op` lets one run beside compute.
gloo runs a reduce-scatter as an all-reduce of the whole unit (`ProcessGroupGloo::_reduce_scatter_base`). A ring
all-gather takes half of that: half of its hops, half of its bytes.

Two ranks send each other both halves of their shards over one connection (gloo/allgather.cc). A rank that arrives after
the other's requests have arrived sends its data at once, before it requests its own, so its requests wait behind that
data: it ends half of the transfer later, and the other one hop earlier. (Two recordings over 200 Mbit/s and 1 ms, units
of 0.7 to 4.5 MB: 16.1, 35.1 and 93.0 ms on the rank that came first, 24.2, 46 to 52 and 138.7 on the other.)
Of a reduction such a rank ends a hop later, the other one a hop earlier: of 496 reductions in four recordings over that
network the late rank ended last in 495, by 2.0 ms in the median; two hops of their link are 2.25 ms. So ranks start the
next pass apart, and are late for its gathers. Over 1 Gbit/s and 0.1 ms, where two hops are 0.44 ms, the late rank ended
last in 50 of 112 only, within 0.2 ms of the other: there the rule is not confirmed, and changes a step by 0.3 %.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Literal

from dptune.whatif.cpu.shared_link import Link

Kind = Literal["gather", "reduce"]
Direction = Literal["forward", "backward"]
_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
# What the hooks of a unit take for each of its collectives, whatever its size (torch 2.13, where calling an operator
# takes `building.USUAL_CALL_NS`): 1.1 ms around one of two tensors and 0.02 MB, and 0.3 ms in other hooks.
CALL_NS = 1.4e6
_HOPS = 4  # of an all-reduce between two ranks
_LATE_SHARE = 0.5  # of the transfer: what a rank that arrives late ends later, of two


@dataclass(frozen=True)
class UnitCall:
    """A collective of one unit in a pass.

    `at_ns` is the compute before it, counted from the start of the forward or backward pass that it is in; `around_ns`
    what its hook takes besides, with copies into and out of flat buffers: part of that compute. `unit` is the place of
    its unit in the order of forward passes; `message_bytes` are of the whole unit.
    """

    at_ns: float
    kind: Kind
    direction: Direction
    unit: int
    message_bytes: float
    around_ns: float = 0.0

    def scaled(self, times: float) -> UnitCall:
        """The call in a pass that computes so many times as long."""
        return replace(self, at_ns=self.at_ns * times, around_ns=self.around_ns * times)


@dataclass(frozen=True)
class Hybrid:
    """HSDP: each `shards` neighbouring ranks shard the units, and all-reduce their shards with those of other groups.

    `within` is the link of all-reduces among the ranks of a group, `between` that of the shards of a whole unit, all
    ranks of a group at once: by the bytes of the unit. `others` are pairs of these that the recording allows as well.
    """

    shards: int
    within: Link
    between: Link
    others: tuple[tuple[Link, Link], ...] = ()

    def without_transfers(self) -> Hybrid:
        """The same groups, whose collectives take no time."""
        return Hybrid(self.shards, Link(0.0, inf), Link(0.0, inf))


@dataclass(frozen=True)
class Sharding:
    """How units are sharded, the same for all. `names` are their paths, in the order of forward passes.

    `parameter_dtype` and `reduce_dtype` are those of the policy, None where units keep the dtype of their parameters.
    `tensors` are the parameters that the optimizer updates, `hooks_ns` what hooks of modules take in a forward and in a
    backward pass beside collectives and what is around those. `hybrid` is None where all ranks shard each unit.
    """

    names: tuple[str, ...]
    parameter_dtype: str | None = None
    reduce_dtype: str | None = None
    tensors: int = 0
    hooks_ns: tuple[float, float] = (0.0, 0.0)
    hybrid: Hybrid | None = None


def element_bytes(dtype: str | None) -> int:
    """Bytes of an element of a dtype, by torch's name for it; None is that of parameters, taken to be float32."""
    return _BYTES.get(dtype or "float32", 4)


def ended(
    call: UnitCall, issued_ns: Mapping[int, float], link: Link, times: float, hybrid: Hybrid | None = None
) -> dict[int, float]:
    """When each rank has a collective, from when each issues it. `link` is that of all-reduces among all of them.

    `times`: how many times as long a collective takes as the link predicts. With HSDP a reduction is that in the groups
    and then that between them, for each rank of a group with its like. How far apart ranks leave those is not known.
    """
    if hybrid is None:
        return _ended(call, issued_ns, link, times)
    reached: dict[int, float] = {}
    for group in {rank // hybrid.shards for rank in issued_ns}:
        members = {rank: ns for rank, ns in issued_ns.items() if rank // hybrid.shards == group}
        reached.update(_ended(call, members, hybrid.within, times, together=True))
    if call.kind == "gather":
        return {rank: reached[rank] for rank in issued_ns}
    between_ns = times * hybrid.between.alone_ns(call.message_bytes)
    last: dict[int, float] = {}
    for rank, ns in reached.items():
        last[rank % hybrid.shards] = max(ns, last.get(rank % hybrid.shards, 0.0))
    return {rank: last[rank % hybrid.shards] + between_ns for rank in issued_ns}


def _ended(
    call: UnitCall, issued_ns: Mapping[int, float], link: Link, times: float, together: bool = False
) -> dict[int, float]:
    """The same among ranks of which each has a shard. `together`: all ranks end a reduction at the same time."""
    first, last = min(issued_ns.values()), max(issued_ns.values())
    alpha_ns, moving_ns = times * link.alpha_ns, times * call.message_bytes / link.bytes_per_ns
    hop_ns = later_ns = alpha_ns / _HOPS
    if call.kind == "gather":
        alpha_ns, moving_ns = alpha_ns / 2, moving_ns / 2
        later_ns = _LATE_SHARE * moving_ns
    end_ns = last + alpha_ns + moving_ns
    if len(issued_ns) != 2 or last - first <= hop_ns or (together and call.kind == "reduce"):
        return dict.fromkeys(issued_ns, end_ns)
    return {rank: end_ns + later_ns if issued == last else end_ns - hop_ns for rank, issued in issued_ns.items()}
