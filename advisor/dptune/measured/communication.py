"""Communication between ranks: collectives, the links they use, and their overlap with compute."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dptune.measured.device import Phase
from dptune.measured.figure import ABSENT, Figure, Figures, Model
from dptune.measured.place import Place

MatchBasis = Literal["sequence", "order", "shift"]  # the most certain first
Purpose = Literal["gradients", "sharding", "other"]
ParallelDimension = Literal["data", "shard", "replicate", "tensor", "pipeline", "expert", "context", "sequence"]
DelayCause = Literal["after_backward", "waited_for_in_backward", "not_prefetched"]


class CollectiveFigures(Figures):
    """All collectives of one kind, group, type and size, over the steps of every rank."""

    kind: str = Field(description="all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, p2p, ...; or unknown")
    group: Figure[str] = Field(ABSENT, description="name of the process group")
    group_size: Figure[int] = Field(ABSENT, description="ranks in the process group")
    dtype: Figure[str] = Field(ABSENT, description="type of the elements sent")
    message_bytes: Figure[int] = Field(
        ABSENT,
        description="max(input, output) of one call, bytes; for an uneven call, that of the rank that sends most",
    )
    calls: int = Field(description="calls inside steps, all ranks together")
    calls_per_step: float = Field(description="per rank of the run and step, also of ranks outside the group")
    calls_per_member: Figure[float] = Field(ABSENT, description="per rank of the group and step")
    median_ns: int = Field(description="median duration of one call on one rank, waiting included")
    shortest_ns: int = Field(description="shortest duration over calls and ranks: the least waiting")
    total_ns: int = Field(description="sum of durations, all ranks")
    matched: Figure[MatchBasis] = Field(
        ABSENT,
        description="how calls of the ranks were matched to one collective: by its number, by their order, or, where "
        "ranks lack calls, by shifted order or by time; the least certain that was needed",
    )
    transfer_ns: Figure[int] = Field(
        ABSENT, description="median over calls of the shortest duration over the ranks: that of the last rank to arrive"
    )
    waiting_ns: Figure[int] = Field(
        ABSENT, description="time that ranks waited for the last one to arrive, summed over ranks"
    )
    algbw_gb_per_s: Figure[float] = Field(ABSENT, description="message / transfer")
    busbw_gb_per_s: Figure[float] = Field(
        ABSENT, description="algbw times the traffic factor of a link, as in nccl-tests"
    )


class ProcessGroupFigures(Figures):
    """A process group of at least two ranks, and what it is for."""

    name: str = Field(description="as `group` of the collectives")
    size: int = Field(description="its ranks")
    description: Figure[str] = Field(ABSENT, description="what the script or a library calls it")
    ranks: Figure[list[int]] = Field(ABSENT, description="its ranks in the run, ascending")
    dimensions: Figure[list[ParallelDimension]] = Field(
        ABSENT,
        description="what is split over its ranks: data (whole model on each), shard and replicate (FSDP), tensor, "
        "pipeline, expert, context, sequence; several where the group spans them",
    )
    confidence: Figure[Literal["low", "medium", "high"]] = Field(ABSENT, description="confidence in the dimensions")
    basis: Figure[str] = Field(ABSENT, description="what shows the dimensions")

    @property
    def holds_replicas(self) -> bool | None:
        """Whether its ranks compute gradients of the same parameters, of other samples; None where not known."""
        dimensions = self.known("dimensions")
        return None if dimensions is None else bool({"data", "shard", "replicate", "context"} & set(dimensions))


class LinkSize(Model):
    """The calls of one message size among some ranks, without waiting."""

    message_bytes: int = Field(description="max(input, output) of one call, bytes")
    calls: int = Field(description="how many were timed")
    median_ns: int = Field(description="median time of one call")
    q1_ns: int = Field(description="first quartile")
    q3_ns: int = Field(description="third quartile")


class LinkFigures(Figures):
    """The links between some ranks, as one kind of collective sees them: time = alpha + bytes / beta, fitted robustly.

    `low` and `high` are the extremes over fits with any size left out, and at the first and third quartiles.
    """

    kind: str = Field(description="all_reduce, all_gather, reduce_scatter, all_to_all, p2p")
    group: Figure[str] = Field(ABSENT, description="name of the process group")
    ranks: list[int] = Field(description="the ranks that communicate")
    scope: Literal["intra-node", "inter-node", "unknown"] = Field(description="whether they share a host")
    scope_inferred: bool = Field(
        False, description="same host, inferred: consecutive ranks on consecutive GPUs, no faster than its links"
    )
    basis: Literal["trace", "sweep"] = Field(description="from the run's own collectives, or from `dptune links`")
    source: str = Field("", description="the file of the sweep; or what an all-reduce was derived from")
    measured: str = Field("", description="when the sweep was made")
    sizes: list[LinkSize] = Field(description="what was fitted, ascending by size")
    queued: list[LinkSize] = Field(
        default_factory=list,
        description="per call, when many are queued back to back as DDP buckets are, ascending by size",
    )
    calls: int = Field(description="calls that were fitted")
    shared_calls: int = Field(0, description="calls excluded: they overlapped another collective of these ranks")
    alpha_us: Figure[float] = Field(ABSENT, description="latency: time of a call of zero bytes")
    alpha_low_us: Figure[float] = Field(ABSENT, description="lower end over the fits")
    alpha_high_us: Figure[float] = Field(ABSENT, description="upper end over the fits")
    algbw_gb_per_s: Figure[float] = Field(ABSENT, description="beta: bandwidth, message bytes per time")
    busbw_gb_per_s: Figure[float] = Field(
        ABSENT, description="beta times the traffic factor of a link, as in nccl-tests"
    )
    busbw_low_gb_per_s: Figure[float] = Field(ABSENT, description="lower end over the fits")
    busbw_high_gb_per_s: Figure[float] = Field(ABSENT, description="upper end over the fits")
    residual_share: Figure[float] = Field(ABSENT, description="median over sizes of |measured - fitted| / measured")
    confidence: Figure[Literal["high", "medium", "low"]] = Field(
        ABSENT, description="high: 5 sizes that span 64 times, residual 10 %; medium: residual 25 %"
    )
    peak_gb_per_s: Figure[float] = Field(ABSENT, description="peak bandwidth of one GPU's links, per direction")


class CommunicationFigures(Figures):
    """Communication of one kind, process group, phase and purpose, over the steps of every rank.

    Where several collectives are in flight, the time counts for the one that started first: the rows sum to the
    communication of the account.
    """

    kind: str = Field(description="all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, p2p, ...; or unknown")
    group: Figure[str] = Field(ABSENT, description="name of the process group")
    phase: Figure[Phase] = Field(ABSENT, description="the phase in which it was issued")
    purpose: Figure[Purpose] = Field(
        ABSENT,
        description="gradients: issued as a gradient is accumulated, as DDP's buckets are; sharding: issued by FSDP's "
        "hooks; other: by the script or a library",
    )
    calls: int = Field(description="calls inside steps, all ranks together")
    communication_ns: int = Field(description="hidden + exposed")
    hidden_ns: int = Field(description="overlapped by compute")
    exposed_ns: int = Field(description="not overlapped by compute")
    exposed_transfer_ns: int = Field(
        0, description="the part of the exposed time that is not known to be waiting for a late rank"
    )
    exposed_unsplit_ns: int = Field(
        0, description="the part of exposed_transfer_ns that may be waiting: not all ranks were read"
    )
    most_share: float = Field(description="exposed time / steps, on the device where this share is largest")
    longest: Figure[Place] = Field(
        ABSENT, description="the longest exposed transfer, without waiting; where all exposed time is waiting, of that"
    )


class OverlapFigures(Figures):
    """How compute and communication share the steps, over every rank."""

    rows: list[CommunicationFigures] = Field(description="by kind, group and phase, the most exposed first")
    compute_per_communication: Figure[float] = Field(ABSENT, description="compute / communication of the account")
    slowdown: Figure[float] = Field(
        ABSENT,
        description="time of the same compute, at one place in the step, with overlapping communication / without",
    )
    slowdown_pairs: int = Field(
        0, description="places in the step where an operation ran both with and without overlapping communication"
    )


class DelayedFigures(Figures):
    """Collectives that compute of the same step could overlap and does not, of one cause, in the steps of every rank.

    Compute that could overlap: after_backward, the backward pass after its first gradient; waited_for_in_backward, the
    backward pass after the first such collective; not_prefetched, the compute of the pass between gathers.
    """

    cause: DelayCause = Field(
        description="after_backward: gradients are sent after the backward pass that computed them; "
        "waited_for_in_backward: the pass waits for each; not_prefetched: FSDP gathers a unit when it needs it"
    )
    kinds: list[str] = Field(description="all_reduce, reduce_scatter, all_gather, ...")
    group: Figure[str] = Field(ABSENT, description="name of the process group, where all have the same")
    streams: list[int] = Field(description="streams of the device, empty on a CPU")
    on_compute_stream: bool = Field(description="whether all ran on the stream that computes most")
    calls_per_step: float = Field(description="collectives per rank and step")
    bytes_per_step: Figure[float] = Field(ABSENT, description="their message bytes per rank and step")
    exposed_ns: int = Field(description="their exposed time that is not known to be waiting for a late rank")
    could_hide_ns: int = Field(description="the part of it that the compute is long enough to overlap")
    most_share: float = Field(
        description="their exposed time, waiting included, that the compute could overlap / steps, on the device where "
        "this share is largest"
    )
    most_transfer_share: float = Field(description="the same without waiting for a late rank")
    longest: Figure[Place] = Field(ABSENT, description="the longest stretch of the exposed time")


class BucketCopyFigures(Figures):
    """Copies of averaged gradients out of DDP's buckets, over the steps of every rank."""

    copies_per_step: float = Field(description="copies per rank and step")
    host_share: float = Field(description="host time of these copies / steps (mean over ranks)")
    device_share: float = Field(description="time of these copies on a GPU / steps (mean over ranks); 0 on a CPU")
    longest: Figure[Place] = Field(ABSENT, description="the longest of these copies on the host")


class ShardingFigures(Model):
    """Time that FSDP takes in the steps of every rank: an upper bound of the saving without it."""

    hooks_ns: int = Field(description="host time in FSDP's hooks")
    communication_ns: int = Field(description="collectives issued by the hooks")
    most_share: float = Field(
        description="(collectives, copies and host time of the hooks, and the optimizer) / steps, on the device where "
        "this share is largest; on a GPU without collectives overlapped by compute"
    )
    units_most_share: float = Field(
        0.0,
        description="the same without the optimizer: the part that depends on how parameters are split into units",
    )
    again_most_share: float = Field(
        description="gathering parameters again in backward passes, overlapped or not / steps, on the device where "
        "this share is largest"
    )
    reduced_most_share: float = Field(
        0.0,
        description="(reductions of gradients, overlapped or not, with their copies and hooks) / steps, on the device "
        "where this share is largest",
    )
