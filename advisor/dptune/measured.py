"""Every figure a rule may read; a figure that could not be measured says why.

A model here derives from `Figures`. A field typed `Figure[int]` reads as an `int`; where the figure could not be
measured, reading it raises `Missing` with the reason, so that no rule computes with a hole. In JSON the hole is `null`
and the reason stands under `missing`.

Units are in the names: `_ns` nanoseconds, `_bytes` bytes, `_share` a fraction of the step between 0 and 1,
`_gb_per_s` 1e9 bytes per second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, computed_field, model_validator

T = TypeVar("T")

if TYPE_CHECKING:
    Figure = Annotated[T, "may be missing"]
else:
    Figure = Optional

ABSENT: Any = None  # the default of a Figure: a hole, which needs a reason in `missing`


class Missing(Exception):  # noqa: N818 - the word of the design: a reason, not an error
    """A figure that could not be measured, with the reason as its message."""

    @property
    def reason(self) -> str:
        """Why the figure is not there."""
        return str(self.args[0])


class Model(BaseModel):
    """A frozen record; unknown fields are ignored when an older or newer report is read back."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Figures(Model):
    """A record of figures in which any `Figure` field may be missing, with a reason in `missing`."""

    missing: dict[str, str] = Field(default_factory=dict, description="figure name -> why it could not be measured")

    @model_validator(mode="after")
    def _every_hole_has_a_reason(self, info: ValidationInfo) -> Figures:
        if info.mode == "json":  # an older report knows fewer figures
            absent = type(self).model_fields.keys() - self.model_fields_set
            self.missing.update(
                {n: "the report was written by another version" for n in absent if self.known(n) is None}
            )
        holes = {name for name, value in self.__dict__.items() if value is None}
        if holes != set(self.missing):
            unexplained, phantom = sorted(holes - set(self.missing)), sorted(set(self.missing) - holes)
            raise ValueError(f"missing figures without a reason: {unexplained}; reasons for figures there: {phantom}")
        return self

    @classmethod
    def only(cls, why: str, **known: Any) -> Self:
        """A record in which every figure that is not given is missing, for the one reason `why`."""
        figures = {name for name, field in cls.model_fields.items() if field.default is ABSENT and name != "missing"}
        there = {name for name, value in known.items() if value is not None}
        return cls(**known, missing=dict.fromkeys(sorted(figures - there), why))

    if not TYPE_CHECKING:

        def __getattribute__(self, name: str) -> Any:
            value = super().__getattribute__(name)
            if value is None:
                reasons = super().__getattribute__("__dict__").get("missing", {})
                if name in reasons:
                    raise Missing(reasons[name])
            return value

    def known(self, name: str) -> Any | None:
        """The figure called `name`, or None where it is missing."""
        return self.__dict__[name]


class Account(Model):
    """Where the nanoseconds of a window went: exclusive classes, in int64 ns, that sum to the window exactly.

    Each nanosecond belongs to the highest class active then: compute > communication > copy > memset > idle. Exposed
    communication is split where all ranks of the group are known, idle by what the script's threads did meanwhile.
    """

    window_ns: int = Field(description="length of the window")
    compute_ns: int = Field(0, description="union of compute, whatever runs beside it")
    exposed_transfer_ns: int = Field(0, description="exposed communication once the last rank had come: data moves")
    exposed_waiting_ns: int = Field(0, description="exposed communication before the last rank had come")
    exposed_unsplit_ns: int = Field(0, description="exposed communication of which it is not known")
    copy_ns: int = Field(0, description="copies with neither compute nor communication beside them")
    memset_ns: int = Field(0, description="memsets with nothing above them beside them")
    input_idle_ns: int = Field(0, description="idle while the script waits for its data loader")
    gc_idle_ns: int = Field(0, description="idle while Python collects garbage")
    sync_idle_ns: int = Field(
        0, description="idle while the script is held by a call that waits for the device, or launches anew after it"
    )
    launch_idle_ns: int = Field(0, description="idle while the host prepares and launches the next operation")
    dependency_idle_ns: int = Field(0, description="idle although the next operation was launched before: it waits")
    host_idle_ns: int = Field(0, description="idle while the script runs no operator: Python, files, sleep")
    unexplained_idle_ns: int = Field(0, description="idle with no cause found")
    communication_ns: int = Field(0, description="union of communication: hidden + exposed; not part of the sum")
    hidden_communication_ns: int = Field(0, description="communication with compute beside it; not part of the sum")

    @computed_field(description="communication with no compute beside it")  # type: ignore[prop-decorator]
    @property
    def exposed_communication_ns(self) -> int:
        """Nanoseconds of communication with no compute beside it."""
        return self.exposed_transfer_ns + self.exposed_waiting_ns + self.exposed_unsplit_ns

    @computed_field(description="nothing runs, whatever the cause")  # type: ignore[prop-decorator]
    @property
    def idle_ns(self) -> int:
        """Nanoseconds in which the device ran nothing."""
        return sum(getattr(self, name) for name in IDLE)

    @property
    def exchange_ns(self) -> int:
        """Exposed communication that is not known to be waiting for a late rank."""
        return self.exposed_transfer_ns + self.exposed_unsplit_ns

    @property
    def other_idle_ns(self) -> int:
        """Idle for any reason but input."""
        return self.idle_ns - self.input_idle_ns

    @property
    def busy_ns(self) -> int:
        """Nanoseconds in which the device ran anything."""
        return self.window_ns - self.idle_ns

    def share(self, class_ns: str) -> float:
        """The share of the window that a class takes, by its field or property name."""
        if not self.window_ns:
            raise Missing("the window holds no time")
        return float(getattr(self, class_ns)) / self.window_ns

    @property
    def overlap_share(self) -> float:
        """Hidden communication / communication; raises Missing where nothing was communicated."""
        if not self.communication_ns:
            raise Missing("no communication in the window")
        return self.hidden_communication_ns / self.communication_ns

    @model_validator(mode="after")
    def _balances(self) -> Account:
        parts = sum(getattr(self, name) for name in CLASSES)
        if parts != self.window_ns:
            raise ValueError(f"account does not balance: parts {parts} ns, window {self.window_ns} ns")
        if self.hidden_communication_ns + self.exposed_communication_ns != self.communication_ns:
            raise ValueError("hidden + exposed communication is not the communication")
        return self

    def __add__(self, other: Account) -> Account:
        return Account(**{name: getattr(self, name) + getattr(other, name) for name in Account.model_fields})


CLASSES = tuple(list(Account.model_fields)[1:-2])  # the fields that sum to the window
IDLE = tuple(name for name in CLASSES if name.endswith("_idle_ns"))
IDLE_CAUSES = tuple(name.removesuffix("_idle_ns") for name in IDLE)


class StepAccount(Model):
    """The account of one step on one device of one rank."""

    number: int = Field(description="N of ProfilerStep#N")
    start_ns: int = Field(description="start of the window on the trace's own clock")
    account: Account = Field(description="where the time of the window went")


class DeviceFigures(Model):
    """One device of one rank: its steps and the whole recording."""

    device: str = Field(description="'cpu', 'cuda:3', ...")
    steps: list[StepAccount] = Field(description="steady steps of the lean window; empty where none were found")
    whole: Account = Field(description="first device operation's start to the last one's end")
    device_operations: int = Field(description="kernels, copies and memsets (on a CPU: operators and collectives)")
    kernels: int = Field(description="complete events of category kernel; 0 on a CPU")

    @property
    def total(self) -> Account:
        """Sum over the steps; raises Missing where there are none."""
        if not self.steps:
            raise Missing("no steps were found in the trace")
        total = self.steps[0].account
        for step in self.steps[1:]:
            total = total + step.account
        return total


class StepTime(Figures):
    """How long a step takes: without the profiler, and in each recorded window, as median over ranks of medians."""

    basis: Literal["unprofiled", "traced"] = Field(description="what the milliseconds of a report are scaled to")
    median_ns: Figure[int] = Field(ABSENT, description="the step time a report speaks of, on `basis`")
    unprofiled_median_ns: Figure[int] = Field(
        ABSENT, description="a step without the profiler: median over ranks of each rank's median"
    )
    unprofiled_q1_ns: Figure[int] = Field(ABSENT, description="their first quartile: median over ranks of each rank's")
    unprofiled_q3_ns: Figure[int] = Field(ABSENT, description="their third quartile: median over ranks of each rank's")
    unprofiled_steps: int = Field(0, description="steps timed without the profiler, on the rank that has most")
    lean_median_ns: Figure[int] = Field(ABSENT, description="a step of the light window, slowed by the profiler")
    lean_steps: int = Field(0, description="steps of the light window, on the rank that has most")
    rich_median_ns: Figure[int] = Field(ABSENT, description="a step of the detailed window, slowed further")
    rich_steps: int = Field(0, description="steps of the detailed window, on the rank that has most")


class CollectiveFigures(Figures):
    """All collectives of one kind, group, type and size, over the steps of every rank."""

    kind: str = Field(description="all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, p2p, ...; or unknown")
    group: Figure[str] = Field(ABSENT, description="name of the process group")
    group_size: Figure[int] = Field(ABSENT, description="ranks in the process group")
    dtype: Figure[str] = Field(ABSENT, description="type of the elements sent")
    message_bytes: Figure[int] = Field(ABSENT, description="max(input, output) of one call, bytes")
    calls: int = Field(description="calls inside steps, all ranks together")
    calls_per_step: float = Field(description="per rank and step")
    median_ns: int = Field(description="median duration of one call on one rank, waiting included")
    shortest_ns: int = Field(description="shortest duration over calls and ranks: the least waiting")
    total_ns: int = Field(description="sum of durations, all ranks")
    transfer_ns: Figure[int] = Field(
        ABSENT, description="median over calls of the shortest duration over the ranks: that of the last to come"
    )
    waiting_ns: Figure[int] = Field(ABSENT, description="sum over ranks of what they waited for the last to come")
    algbw_gb_per_s: Figure[float] = Field(ABSENT, description="message / transfer")
    busbw_gb_per_s: Figure[float] = Field(ABSENT, description="algbw times what each link carries, as nccl-tests does")


class CopyFigures(Figures):
    """Copies of one direction, over the steps of every rank."""

    direction: Literal["h2d", "d2h", "d2d", "p2p", "h2h", "unknown"] = Field(description="from host or device to which")
    pinned: Figure[bool] = Field(ABSENT, description="whether the host side is page-locked memory")
    calls: int = Field(description="copies inside steps, all ranks together")
    calls_per_step: float = Field(description="per rank and step")
    total_bytes: Figure[int] = Field(ABSENT, description="sum of the bytes copied, all ranks")
    total_ns: int = Field(description="sum of durations, all ranks")
    exposed_ns: int = Field(description="part of the union with no compute and no communication beside it")


class GapFigures(Figures):
    """One stretch in which a device ran nothing, inside a step."""

    rank: int = Field(description="number of the rank")
    device: str = Field(description="'cpu', 'cuda:3', ...")
    step: int = Field(description="N of ProfilerStep#N")
    start_ns: int = Field(description="start on the trace's own clock")
    length_ns: int = Field(description="how long it is")
    causes_ns: dict[str, int] = Field(
        description="cause of idle -> how much of it, as in the account; sums to the length"
    )
    before: Figure[str] = Field(ABSENT, description="the operation that ended last before it")
    after: Figure[str] = Field(ABSENT, description="the operation that begins at its end")
    launched_by: Figure[str] = Field(ABSENT, description="the call that launched that operation")
    launched_ns: Figure[int] = Field(
        ABSENT, description="from the gap's start to that call; negative where it was before"
    )
    meanwhile: Figure[str] = Field(ABSENT, description="what the launching thread was in longest during the gap")


class LaunchFigures(Figures):
    """From the host's call to the device's work, over the operations of the steps whose launch was recorded."""

    operations: int = Field(description="operations launched inside steps, all ranks together")
    latency_median_ns: Figure[int] = Field(
        ABSENT, description="start of the call to start of the operation, where the device had nothing to do"
    )
    latency_p90_ns: Figure[int] = Field(ABSENT, description="the same, of which a tenth took longer")
    queue_median: Figure[float] = Field(
        ABSENT, description="operations launched and not yet begun when one begins, itself not counted: the median"
    )
    empty_share: Figure[float] = Field(
        ABSENT, description="the share of operations that the device was idle for when they were launched"
    )


class InputFigures(Figures):
    """Waiting for the data loader, per rank and step."""

    wait_share: Figure[float] = Field(ABSENT, description="loader wait / step, from unprofiled steps where recorded")
    wait_ns: Figure[int] = Field(ABSENT, description="median over ranks of that share of the median step")
    computed_share: Figure[float] = Field(
        ABSENT, description="part of the wait in which the training thread computed; in the rest it slept"
    )
    basis: Literal["unprofiled", "traced"] = Field("traced", description="which steps the wait was taken from")


class AccumulationFigures(Figures):
    """Micro-batches per optimizer step, and how many of them all-reduced gradients."""

    backwards_per_step: Figure[int] = Field(ABSENT, description="calls of backward per optimizer step")
    synchronised_backwards_per_step: Figure[int] = Field(ABSENT, description="those of them that all-reduced gradients")


class MatmulFigures(Figures):
    """Matrix products (and convolutions) on the device, and whether they used tensor cores."""

    fp32_share: Figure[float] = Field(ABSENT, description="fp32 matmul and convolution kernels' time / step")
    tensor_core_share: Figure[float] = Field(ABSENT, description="tensor-core kernels' time / step")
    tensor_cores: Figure[bool] = Field(ABSENT, description="whether this device has tensor cores (or matrix cores)")


class StepLag(Model):
    """How late one rank came to the collectives of one step."""

    number: int = Field(description="N of ProfilerStep#N")
    lag_ns: int = Field(description="union of its lateness, each time after the mean of the others")


LagCause = Literal["input", "copies", "slower compute", "more compute", "gc", "host", "communication", "unexplained"]


class ArrivalFigures(Figures):
    """How a rank comes to symmetric collectives (those that no rank can leave before the last has come)."""

    collectives: int = Field(description="those that it took part in, of which all ranks were read")
    last_share: float = Field(description="the share of them to which it came last")
    lag_ns: int = Field(description="median over steps of how late it came")
    steps: list[StepLag] = Field(description="each step")
    cause: Figure[LagCause] = Field(ABSENT, description="what it spent more time on than the mean of the others")
    cause_share: Figure[float] = Field(ABSENT, description="how much of its lag that covers")
    more_ns: dict[str, int] = Field(
        default_factory=dict, description="time that it spent more, by class of the account; sums to the lag explained"
    )


class StragglerFigures(Model):
    """The rank that the others wait for most."""

    rank: int = Field(description="number of the rank")
    lag_ns: int = Field(description="median over steps of how late it came")
    steps_share: float = Field(description="the share of steps in which no rank came later: how stable this is")
    waiting_share: float = Field(description="exposed waiting for the last to come, all ranks, as a share of the step")


class RankFigures(Figures):
    """One rank of the run."""

    rank: int = Field(description="number of the rank in the run")
    host: Figure[str] = Field(ABSENT, description="name of the machine it ran on")
    device_name: Figure[str] = Field(ABSENT, description="what the device calls itself")
    source: str = Field(description="the trace file it was read from")
    partial: str = Field("", description="where the file broke off, if it did")
    events: int = Field(description="length of traceEvents as read")
    unprofiled_median_ns: Figure[int] = Field(ABSENT, description="its median step without the profiler")
    loader_wait_share: Figure[float] = Field(ABSENT, description="its loader wait / step")
    clock_ahead_ns: Figure[int] = Field(ABSENT, description="its clock less that of the first rank")
    clock_residual_ns: Figure[int] = Field(
        ABSENT, description="how far its ends of collectives lie from the first rank's after that, the median"
    )
    arrival: Figure[ArrivalFigures] = Field(ABSENT, description="how late it comes to collectives, and why")
    devices: list[DeviceFigures] = Field(default_factory=list, description="the devices it computed on")


class Measured(Figures):
    """All figures of a run."""

    world_size: Figure[int] = Field(ABSENT, description="ranks of the run, recorded or not")
    backend: Figure[str] = Field(ABSENT, description="nccl, gloo, ...")
    device_kind: Figure[str] = Field(ABSENT, description="'cpu', 'cuda', 'rocm', ...")
    samples_per_step: Figure[int] = Field(ABSENT, description="global batch: samples per optimizer step, all ranks")
    step: StepTime = Field(description="how long a step takes")
    account: Figure[Account] = Field(ABSENT, description="sum over steps, devices and ranks of the lean window")
    ranks: list[RankFigures] = Field(description="the ranks that were read")
    collectives: Figure[list[CollectiveFigures]] = Field(ABSENT, description="collectives in steps, by kind and size")
    straggler: Figure[StragglerFigures] = Field(ABSENT, description="the rank that the others wait for most")
    gaps: Figure[list[GapFigures]] = Field(ABSENT, description="the longest stretches in which a device ran nothing")
    launching: Figure[LaunchFigures] = Field(ABSENT, description="how far the host runs ahead of the devices")
    copies: Figure[list[CopyFigures]] = Field(ABSENT, description="copies inside steps, by direction")
    input: InputFigures = Field(description="waiting for the data loader")
    accumulation: AccumulationFigures = Field(description="micro-batches per optimizer step")
    matmul: MatmulFigures = Field(description="matrix products and their precision")

    @property
    def traced_step_ns(self) -> float:
        """The mean step of the account, the one that the durations of collectives belong to."""
        steps = sum(len(device.steps) for rank in self.ranks for device in rank.devices)
        if not steps:
            raise Missing("no steps were found in the trace")
        return self.account.window_ns / steps

    def milliseconds(self, share: float) -> float:
        """A share of the step as milliseconds of the step time (`step.basis` says which)."""
        return share * self.step.median_ns / 1e6

    def share(self, class_ns: str) -> float:
        """The share of the step that `account` gives to a class, by its field or property name."""
        return self.account.share(class_ns)
