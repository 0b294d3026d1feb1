"""What logs of NCCL Inspector show: how long collectives take and how fast they are, and who arrives last."""

from __future__ import annotations

from pydantic import Field

from dptune.measured.figure import Model

SCHEMA_VERSION = "0.1"


class InspectedCalls(Model):
    """Collectives of one kind and size in one communicator, matched over ranks by their number."""

    communicator: str
    name: str = Field(description="what the application calls the communicator; empty if it does not")
    kind: str
    message_bytes: int
    ranks: int = Field(description="ranks that logged it")
    of_ranks: int = Field(description="ranks of the communicator")
    nodes: int
    calls: int
    exec_us: float = Field(description="longest time over the ranks, with waiting, the median of the calls")
    transfer_us: float = Field(
        description="shortest time over the ranks, that of the last to arrive, the median of the calls"
    )
    busbw_gb_per_s: float = Field(description="bus bandwidth of the transfer, the median of the calls")


class LastRank(Model):
    """The rank of a communicator that most often arrives last: its collectives take the shortest time."""

    communicator: str
    name: str
    rank: int = Field(description="rank in the communicator")
    host: str
    pid: int
    share: float = Field(description="share of the calls at which it is last")
    waiting_us: float = Field(description="how long the median other rank waits for it, the median of those calls")
    of_ranks: int


class InspectorFigures(Model):
    """The logs of one job."""

    schema_version: str = SCHEMA_VERSION
    processes: int
    calls: int = Field(description="collectives in all logs, each rank's counted")
    unread: int = Field(description="objects that could not be read")
    collectives: list[InspectedCalls] = Field(default_factory=list, description="the longest in all first")
    last_ranks: list[LastRank] = Field(default_factory=list, description="by communicator, the longest waiting first")
    findings: list[str] = Field(default_factory=list, description="what limits the reading")
