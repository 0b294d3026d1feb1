"""What each unit of FSDP sends in each pass, and what could overlap it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dptune.measured.figure import ABSENT, Figure, Figures, Model

NOT_SHARDED = "the trace has no ranges of fully_shard or FullyShardedDataParallel around collectives"
SHARDED = "the script shards its model, but"  # how the reason begins where a recording says so

Pass = Literal["forward", "backward"]


class UnitFigures(Figures):
    """Collectives of one kind that one unit issues in one pass. `ShardUnits.rank_steps` divides the sums.

    A unit is what one call of fully_shard groups, or a module wrapped by FullyShardedDataParallel.
    """

    unit: str = Field(description="path of the unit in the model; empty for the root; `#N` where units are numbered")
    direction: Pass = Field(description="the pass that needs the parameters or computed the gradients")
    kind: str = Field(description="all_gather, reduce_scatter, or all_reduce between replicas")
    message_bytes: Figure[int] = Field(ABSENT, description="of one call: the whole unit, gathered or to be reduced")
    calls_per_step: float = Field(description="per rank and step")
    median_ns: int = Field(description="median duration of one call on one rank, waiting included")
    shortest_ns: int = Field(description="shortest duration over calls and ranks: the least waiting")
    hidden_ns: int = Field(description="overlapped by compute; sum over ranks and steps")
    exposed_ns: int = Field(description="not overlapped by compute; sum over ranks and steps")
    waiting_ns: Figure[int] = Field(ABSENT, description="the part of exposed_ns that waits for a late rank")
    neighbour_compute_ns: Figure[int] = Field(
        ABSENT,
        description="compute that could overlap it, sum over ranks and steps: of the unit before it for an all-gather, "
        "as prefetching one unit would, of the unit after it for other collectives",
    )
    prefetched_share: Figure[float] = Field(
        ABSENT, description="all-gathers issued before the unit before them had started / all-gathers of this row"
    )
    waited_for: Figure[int] = Field(ABSENT, description="the rank that arrives last most often")

    @property
    def hideable_ns(self) -> int:
        """Sent time that is no longer than the neighbouring unit's compute. Raises Missing where that is unknown."""
        return min(self.neighbour_compute_ns, self.sending_ns)

    @property
    def sending_ns(self) -> int:
        """Exposed time without waiting; with it where it is not known how long ranks wait."""
        return self.exposed_ns - (self.known("waiting_ns") or 0)


class FlatPolicy(Model):
    """Arguments that only FullyShardedDataParallel has."""

    sharding_strategy: str | None = Field(description="FULL_SHARD, SHARD_GRAD_OP, HYBRID_SHARD, ...")
    backward_prefetch: str | None = Field(description="BACKWARD_PRE or BACKWARD_POST; null for none")
    forward_prefetch: bool = Field(description="whether each unit's hook gathers the next one in forward passes")
    limit_all_gathers: bool = Field(description="whether the host waits before it gathers more than two units ahead")


class ShardPolicy(Model):
    """Units that one line of the script shards alike, as they were recorded."""

    where: str | None = Field(description="the line that calls fully_shard or FullyShardedDataParallel")
    units: int = Field(description="calls of it that group parameters")
    modules: list[str] = Field(description="classes of the sharded modules")
    largest_bytes: int = Field(description="of its largest unit, gathered; 0 where sizes were not recorded")
    mesh: list[int] = Field(description="shape of the device mesh; with two dimensions: replicas, shards")
    reshard_after_forward: bool | int | None = Field(
        description="whether units are freed after forward passes; a number: resharded to groups of N ranks"
    )
    parameter_dtype: str | None = Field(description="dtype in which units are gathered; null for that of parameters")
    reduce_dtype: str | None = Field(description="dtype in which gradients are reduced; null for the gathered one")
    offload: str | None = Field(description="the class of the offload policy; null for none")
    forward_prefetch: int = Field(description="units that a unit was set to prefetch in forward passes")
    backward_prefetch: int = Field(description="the same in backward passes; 0 for torch's default, the next one")
    flat: FlatPolicy | None = Field(None, description="of FullyShardedDataParallel (FSDP1); null for fully_shard")


class UnitGroup(Figures):
    """A process group in which units communicate, and who is waited for in it."""

    name: str = Field(description="name of the group; empty where the trace names none")
    ranks: list[int] = Field(description="its ranks")
    kinds: list[str] = Field(description="the collectives of units in it")
    waiting_ns: int = Field(description="exposed time that waits for a late rank, per rank and step")
    waited_for: Figure[int] = Field(ABSENT, description="the rank that most of its waiting is for")
    waited_share: Figure[float] = Field(ABSENT, description="waiting for that rank / waiting in the group")


class ShardUnits(Figures):
    """The units of FSDP in the order in which they run, the forward pass first."""

    rows: list[UnitFigures] = Field(description="by unit, pass and kind")
    ranks: list[int] = Field(default_factory=list, description="the ranks whose traces show units")
    rank_steps: int = Field(0, description="steps of the ranks whose traces show units, summed over those ranks")
    unseen: list[str] = Field(
        default_factory=list, description="what the traces do not show of the units; usually empty"
    )
    numbered: bool = Field(
        False, description="neither trace nor facts name the units: #N is the Nth that runs in forward passes"
    )
    policies: list[ShardPolicy] = Field(default_factory=list, description="how they are sharded; empty without facts")
    groups: list[UnitGroup] = Field(
        default_factory=list, description="groups whose collectives were matched on all ranks, by rank"
    )
    forward_depth: int = Field(description="the most units that a forward pass gathers ahead of the one that runs")
    backward_depth: int = Field(description="the same of a backward pass")
    forward_compute_ns: int = Field(0, description="compute of units in forward passes, sum over ranks and steps")
    backward_compute_ns: int = Field(0, description="the same in backward passes")
    held_bytes: Figure[int] = Field(
        ABSENT, description="gathered parameters that a rank holds at once, at most, padding left out"
    )
    whole_bytes: Figure[int] = Field(ABSENT, description="parameters of all units, gathered")
