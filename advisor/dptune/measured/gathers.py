"""How large the collectives of sharded parameters are, and whether their start-up takes longer than their transfer."""

from __future__ import annotations

from dataclasses import dataclass

from dptune.measured.collectives import COLLECTIVES
from dptune.measured.communication import CollectiveFigures, LinkFigures
from dptune.measured.figure import Missing
from dptune.measured.run import Measured

KINDS = tuple(sorted(kind_row.kind for kind_row in COLLECTIVES if kind_row.shards))

SPAN = 8  # times the smallest message that the largest one is, at least: as for a fit of links


@dataclass(frozen=True)
class ShardMessages:
    """FSDP's collectives of one kind. `startup_us` and `transfer_us` are of the mean message over the link between the
    ranks; None where the link is not known. `estimated`: they are from the shortest calls of the run, not from a fit.
    """

    kind: str
    per_step: float
    mean_bytes: float
    startup_us: float | None = None
    transfer_us: float | None = None
    estimated: bool = False

    def latency_bound(self, small_bytes: float) -> bool:
        """Whether start-up takes longer than transfer; with unknown links whether messages are below a size."""
        if self.startup_us is None or self.transfer_us is None:
            return self.mean_bytes < small_bytes
        return self.transfer_us < self.startup_us


def shard_messages(measured: Measured) -> ShardMessages:
    """The all-gathers of FSDP's hooks; its reduce-scatters where the script gathers in the same process group.

    Raises Missing where their sizes are not known.
    """
    for kind in KINDS:
        rows = [row for row in measured.overlap.rows if row.kind == kind]
        groups = {row.known("group") for row in rows if row.known("purpose") == "sharding"}
        others = {row.known("group") for row in rows if row.known("purpose") != "sharding"}
        sent = [
            collective
            for collective in measured.collectives
            if collective.kind == kind
            and collective.known("group") in groups
            and collective.known("message_bytes") is not None
        ]
        if sent and not groups & others:
            return _of(measured, kind, sent)
    raise Missing("the message sizes of FSDP's collectives are not known")


def _of(measured: Measured, kind: str, sent: list[CollectiveFigures]) -> ShardMessages:
    per_step = sum(collective.calls_per_step for collective in sent)
    mean_bytes = sum(collective.message_bytes * collective.calls_per_step for collective in sent) / per_step
    link = _link(measured, kind, sent)
    if link is None:
        line = _shortest_calls(measured, kind, {collective.known("group") for collective in sent})
        if line is None:
            return ShardMessages(kind, per_step, mean_bytes)
        startup_us, us_per_byte = line
        return ShardMessages(kind, per_step, mean_bytes, startup_us, mean_bytes * us_per_byte, estimated=True)
    return ShardMessages(kind, per_step, mean_bytes, link.alpha_us, mean_bytes / link.algbw_gb_per_s / 1e3)


def _shortest_calls(measured: Measured, kind: str, groups: set[str | None]) -> tuple[float, float] | None:
    """Start-up, us, and us per byte, by the shortest call of the smallest and of the largest message of a group.

    None where sizes are too close to each other, or where the larger one is not slower.
    """
    shortest_ns: dict[int, int] = {}
    for collective in measured.collectives:
        size = collective.known("message_bytes")
        if collective.kind == kind and collective.known("group") in groups and size:
            shortest_ns[size] = min(collective.shortest_ns, shortest_ns.get(size, collective.shortest_ns))
    small, large = min(shortest_ns, default=0), max(shortest_ns, default=0)
    if not small or large < SPAN * small or shortest_ns[large] <= shortest_ns[small]:
        return None
    ns_per_byte = (shortest_ns[large] - shortest_ns[small]) / (large - small)
    startup_ns = shortest_ns[small] - small * ns_per_byte
    return (startup_ns / 1e3, ns_per_byte / 1e3) if startup_ns > 0 else None


def _link(measured: Measured, kind: str, sent: list[CollectiveFigures]) -> LinkFigures | None:
    """The fitted link for these collectives: the run's own first, then a sweep among the same number of ranks."""
    groups, ranks = (
        {collective.known("group") for collective in sent},
        {collective.known("group_size") for collective in sent},
    )
    fitted = [
        link
        for link in measured.known("links") or []
        if link.kind == kind and link.known("alpha_us") is not None and link.known("algbw_gb_per_s")
    ]
    sure = [link for link in fitted if link.known("confidence") in ("high", "medium")]
    of_run = [link for link in sure if link.basis == "trace" and link.known("group") in groups]
    swept = [link for link in sure if link.basis == "sweep" and len(link.ranks) in ranks]
    return next(iter([*of_run, *swept]), None)
