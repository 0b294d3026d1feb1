"""Which of many ranks, hosts, GPUs and links differ from the rest, and what the job would gain without them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dptune.measured.figure import ABSENT, Figure, Figures, Model

PlaceKind = Literal["rank", "host", "hosts", "position"]


class LatePlace(Figures):
    """Ranks that arrive late at collectives by work of their own, and what they have in common."""

    kind: PlaceKind = Field(
        description="a rank; a host; hosts whose names start alike (a rack, a switch); one position in process groups"
    )
    place: str = Field(description="the rank, the host, the start of the names, or dimension and position")
    ranks: list[int] = Field(description="its ranks that are late")
    hosts: list[str] = Field(description="their hosts, where known")
    lag_ns: int = Field(description="how late they are in the mean step, the median of the ranks; waiting excluded")
    late_share: float = Field(description="share of steps in which they are that late, the median of the ranks")
    cause: Figure[str] = Field(ABSENT, description="what takes the latest of them longer than other ranks, in words")


class SlowDevice(Model):
    """A GPU on which the same kernels take longer than on the other ranks."""

    rank: int
    host: str = Field("", description="its host; empty where unknown")
    times: float = Field(description="time of its kernels / median time of the same kernels over the ranks")


class SlowLink(Model):
    """A process group whose collectives transfer longer than the same collectives of other groups like it."""

    ranks: list[int] = Field(description="the ranks of the group")
    hosts: list[str] = Field(description="their hosts, where known")
    kind: str = Field(description="all_reduce, ...")
    message_bytes: int
    transfer_ns: int = Field(description="its median transfer")
    others_ns: int = Field(description="the median over the groups")

    @property
    def times(self) -> float:
        """How many times as long as the other groups its transfer takes."""
        return self.transfer_ns / max(1, self.others_ns)


class UnsteadyHost(Model):
    """A host whose ranks arrive late in some steps only, more than the ranks of other hosts."""

    host: str
    ranks: list[int]
    spread_ns: int = Field(description="90th percentile over steps minus median of the lag, the median of its ranks")


class SlowestGain(Model):
    """How much shorter replayed steps are if the slowest ranks take as long between collectives as the median rank."""

    ranks: list[int] = Field(description="the slowest ranks")
    share: float = Field(description="of the time of the steps")


class HostLag(Model):
    """One host: how late its ranks are."""

    host: str
    ranks: int
    lag_ns: int = Field(description="mean lag over its ranks and steps; waiting excluded")
    latest_ns: int = Field(description="that of its latest rank")


class RankLag(Model):
    """One rank: how late it arrives at collectives, by work of its own."""

    rank: int
    lag_ns: int = Field(description="mean over steps")
    steps_ns: list[int] = Field(description="each step of `OutlierFigures.steps`")
    positions: dict[str, int] = Field(
        default_factory=dict, description="its place in its process group of each known dimension, counted from 0"
    )


class OutlierFigures(Figures):
    """Ranks compared with each other: who is late, and where."""

    steps: list[int] = Field(description="numbers of the steps that were compared")
    threshold_ns: int = Field(description="a rank is late from this mean lag on")
    latest_ns: int = Field(description="lag of the latest rank, the mean over steps")
    latest_ranks: int = Field(description="different ranks that are the latest in a step")
    late: list[LatePlace] = Field(default_factory=list, description="late ranks by what they share, the latest first")
    slow_devices: list[SlowDevice] = Field(default_factory=list, description="the slowest first")
    slow_links: list[SlowLink] = Field(default_factory=list, description="the slowest first")
    slow_link_hosts: list[str] = Field(
        default_factory=list, description="hosts that all slow groups share, and no other group of the kind includes"
    )
    unsteady_hosts: list[UnsteadyHost] = Field(default_factory=list, description="the least steady first")
    gains: list[SlowestGain] = Field(
        default_factory=list, description="without the delays of the slowest 1, 2, 1 % and all late ranks"
    )
    hosts: list[HostLag] = Field(default_factory=list, description="every host of two hosts or more")
    ranks: list[RankLag] = Field(description="every rank that was compared")

    @property
    def take_turns(self) -> bool:
        """Whether some rank is late in the mean step, but none is late more than the others."""
        return not self.late and self.latest_ns >= self.threshold_ns
