"""All figures of a run, and those of each of its ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from pydantic import Field

from dptune.measured.account import Account, DeviceFigures
from dptune.measured.communication import (
    BucketCopyFigures,
    CollectiveFigures,
    DelayedFigures,
    LinkFigures,
    OverlapFigures,
    ProcessGroupFigures,
    ShardingFigures,
)
from dptune.measured.device import (
    CopyFigures,
    CriticalPath,
    GapFigures,
    KernelFigures,
    MatmulFigures,
    MemoryFigures,
    PhaseFigures,
)
from dptune.measured.efficiency import EfficiencyFigures
from dptune.measured.figure import ABSENT, Figure, Figures, Missing, Model
from dptune.measured.host import AttributionFigures, CompilingFigures, LaunchFigures, LaunchIdleFigures, WaitSite
from dptune.measured.inferred import InferredFacts
from dptune.measured.lag import ArrivalFigures, StragglerFigures
from dptune.measured.load import LoadFigures
from dptune.measured.outliers import OutlierFigures
from dptune.measured.place import Place
from dptune.measured.shard_units import ShardUnits
from dptune.measured.steps import AccumulationFigures, InputFigures, NoiseFigures, StepsFigures, StepTime
from dptune.measured.tensor_memory import TensorMemory
from dptune.measured.user_code import (
    ComputeFunction,
    EagerAttention,
    OptimizerLoop,
    UncachedGeneration,
    UserCodeFigures,
)


class Loss(Model):
    """Device events that are missing in a trace, or have impossible times."""

    code: str = Field(description="kind of loss: the code of its finding")
    fatal: bool = Field(description="whether no figure of the rank's steps can be trusted")
    text: str = Field(description="what was lost, in words")


class RankFigures(Figures):
    """One rank of the run."""

    rank: int = Field(description="number of the rank in the run")
    host: Figure[str] = Field(ABSENT, description="name of the machine it ran on")
    device_name: Figure[str] = Field(ABSENT, description="name of the device, as the driver reports it")
    compute_capability: Figure[str] = Field(ABSENT, description="compute capability of the device, `8.0`")
    gpu_ranks: list[int] = Field(
        default_factory=list, description="all ranks on its GPU, where its UUID shows that it shares it; else empty"
    )
    source: str = Field(description="the trace file it was read from")
    partial: str = Field("", description="where the file ends too early, if it does")
    events: int = Field(description="length of traceEvents as read")
    losses: list[Loss] = Field(default_factory=list, description="device events that are lost or misdated")
    untraced_median_ns: Figure[int] = Field(ABSENT, description="its median untraced step")
    loader_wait_share: Figure[float] = Field(ABSENT, description="its waiting for the data loader / step")
    clock_ahead_ns: Figure[int] = Field(ABSENT, description="its clock minus that of the first rank")
    clock_residual_ns: Figure[int] = Field(
        ABSENT, description="median distance of its ends of collectives from the first rank's, with that corrected"
    )
    arrival: Figure[ArrivalFigures] = Field(ABSENT, description="how late it arrives at collectives, and why")
    devices: list[DeviceFigures] = Field(default_factory=list, description="the devices it computed on")


class Measured(Figures):
    """All figures of a run."""

    world_size: Figure[int] = Field(ABSENT, description="ranks of the run, recorded or not")
    backend: Figure[str] = Field(ABSENT, description="nccl, gloo, ...")
    device_kind: Figure[str] = Field(ABSENT, description="'cpu', 'cuda', 'rocm', ...")
    samples_per_step: Figure[int] = Field(ABSENT, description="global batch: samples per optimizer step, all ranks")
    samples_given: bool = Field(False, description="whether the user gave the samples of a step")
    step: StepTime = Field(description="how long a step takes")
    account: Figure[Account] = Field(ABSENT, description="sum over steps, devices and ranks of the light window")
    steps: Figure[StepsFigures] = Field(ABSENT, description="which steps the figures refer to, and how they were found")
    ranks: list[RankFigures] = Field(description="the ranks that were read")
    collectives: Figure[list[CollectiveFigures]] = Field(ABSENT, description="collectives in steps, by kind and size")
    process_groups: list[ProcessGroupFigures] = Field(
        default_factory=list, description="process groups that the traces list, the largest first"
    )
    links: Figure[list[LinkFigures]] = Field(ABSENT, description="latency and bandwidth between ranks, by kind")
    straggler: Figure[StragglerFigures] = Field(ABSENT, description="the rank that the others wait for most")
    outliers: Figure[OutlierFigures] = Field(
        ABSENT, description="ranks, hosts, GPUs and links that differ from the rest, among eight ranks or more"
    )
    gaps: Figure[list[GapFigures]] = Field(ABSENT, description="the longest stretches in which a device ran nothing")
    buffer_sync_share: Figure[float] = Field(
        ABSENT, description="host time for DDP's buffer broadcasts before forward passes / step (mean over ranks)"
    )
    inferred: Figure[InferredFacts] = Field(
        ABSENT, description="facts that only a recording has, as the trace of the lowest rank shows them"
    )
    longest: dict[str, Place] = Field(
        default_factory=dict,
        description="the longest stretch of each class of the account, by its field, and of 'optimizer', 'fp32 "
        "matmul', 'unaligned matmul', 'layout change' and 'malloc'; only those that occur in a step",
    )
    path: Figure[CriticalPath] = Field(ABSENT, description="the chain of work that the end of a step waits for")
    launching: Figure[LaunchFigures] = Field(ABSENT, description="how far the host runs ahead of the devices")
    wait_sites: Figure[list[WaitSite]] = Field(
        ABSENT, description="where the script waits for a device, the longest first, at most five"
    )
    launch_idle: Figure[LaunchIdleFigures] = Field(ABSENT, description="time in which devices waited for launches")
    compiling: Figure[CompilingFigures] = Field(ABSENT, description="torch.compile in the traced steps")
    phases: Figure[list[PhaseFigures]] = Field(ABSENT, description="forward, backward and optimizer of the steps")
    overlap: Figure[OverlapFigures] = Field(ABSENT, description="how compute and communication share the steps")
    delayed: Figure[list[DelayedFigures]] = Field(
        ABSENT, description="collectives that compute of the same step could overlap and does not, by cause"
    )
    bucket_copies: Figure[BucketCopyFigures] = Field(
        ABSENT, description="copies of reduced gradients out of DDP's buckets"
    )
    sharding: Figure[ShardingFigures] = Field(ABSENT, description="the time that FSDP takes in the steps")
    shard_units: Figure[ShardUnits] = Field(ABSENT, description="what each unit of FSDP sends in each pass")
    attribution: Figure[AttributionFigures] = Field(ABSENT, description="compute by place in the script")
    user_code: Figure[UserCodeFigures] = Field(
        ABSENT, description="functions of the user that take host time outside of the training computation"
    )
    compute_functions: Figure[list[ComputeFunction]] = Field(
        ABSENT, description="functions of the user that compute longest with their backward pass, at most eight"
    )
    attention: Figure[list[EagerAttention]] = Field(
        ABSENT, description="places that compute attention operator by operator, without a fused kernel"
    )
    optimizer_loops: Figure[list[OptimizerLoop]] = Field(
        ABSENT, description="optimizer classes of the script, with the operators that their steps call"
    )
    generations: Figure[list[UncachedGeneration]] = Field(
        ABSENT, description="modules that generate a sequence without a cache, from the detailed window"
    )
    tables_of: Literal["steps", "recording"] = Field(
        "steps",
        description="what kernels, collectives, copies and matmul cover. Without any steps it is the whole recording, "
        "which their figures per step then count as one step",
    )
    copies: Figure[list[CopyFigures]] = Field(ABSENT, description="copies inside steps, by direction")
    kernels: Figure[KernelFigures] = Field(ABSENT, description="kernels of the steps; on a CPU operators")
    memory: Figure[list[MemoryFigures]] = Field(ABSENT, description="memory of each device")
    tensor_memory: Figure[TensorMemory] = Field(ABSENT, description="memory of tensors within a step, by their use")
    efficiency: Figure[EfficiencyFigures] = Field(ABSENT, description="FLOPs of the steps, and what share of the peak")
    noise: Figure[NoiseFigures] = Field(ABSENT, description="the batch size above which larger batches help little")
    load: Figure[list[LoadFigures]] = Field(
        ABSENT, description="CPU time of this job and of other processes while steps were recorded, by machine"
    )
    input: InputFigures = Field(description="waiting for the data loader")
    accumulation: AccumulationFigures = Field(description="micro-batches per optimizer step")
    matmul: MatmulFigures = Field(description="matrix products and their precision")

    @property
    def samples_inferred(self) -> bool:
        """Whether the samples of a step were inferred from the trace, neither recorded nor given."""
        inferred: InferredFacts | None = self.known("inferred")
        return inferred is not None and inferred.batch is not None and not self.samples_given

    def may_average_gradients(self, group: str | None) -> bool:
        """Whether a process group may average gradients: not one that is known to split tensors or layers."""
        return all(found.holds_replicas is not False for found in self.process_groups if found.name == group)

    @property
    def traced_step_ns(self) -> float:
        """The mean step of the account, the one that the durations of collectives belong to."""
        steps = sum(len(device.steps) for rank in self.ranks for device in rank.devices)
        if not steps:
            raise Missing("no steps were found in the trace")
        return self.account.window_ns / steps

    @property
    def step_account(self) -> Account:
        """The account of all traced steps as it is without the profiler: a GPU then runs the same in less time.

        The traced account where no step was timed without the profiler, and on a CPU, whose operators it slows.
        """
        return self.without_profiler()(self.account)

    def device_step_account(self, rank: int, device: str) -> Account:
        """The account of the steps of one device, as `step_account` is that of all; raises Missing without steps."""
        found = (
            rank_device
            for each in self.ranks
            if each.rank == rank
            for rank_device in each.devices
            if rank_device.device == device
        )
        device_figures = next(found, None)
        if device_figures is None:
            raise Missing("no steps were found in the trace of this rank")
        return self.without_profiler()(device_figures.total)

    def without_profiler(self) -> Callable[[Account], Account]:
        """What makes of a traced account one without the profiler; made once for the accounts of many ranks."""
        if self.known("device_kind") in ("cpu", None) or self.step.basis == "traced":
            return lambda account: account
        steps = sum(len(device.steps) for rank in self.ranks for device in rank.devices)
        if not steps or self.recorded_step_ns >= self.traced_step_ns:
            return lambda account: account
        step_ns, traced_ns = self.recorded_step_ns, self.traced_step_ns
        waits = self.input.known("wait_share") if self.input.basis == "untraced" else None

        def scaled(account: Account) -> Account:
            window_ns = round(account.window_ns * step_ns / traced_ns)
            return account.within(window_ns, None if waits is None else round(waits * window_ns))

        return scaled

    @property
    def recorded_step_ns(self) -> float:
        """The step time of the process whose steps were traced, to compare with those: with several processes, the
        median of all of them differs. Where no step was timed without the profiler it is the traced step itself: the
        median of the steps differs from that mean because steps vary, not because the profiler slows them.
        """
        return self.traced_step_ns if self.step.basis == "traced" else self.step.untraced_median_ns

    def where(self, *what: str) -> Place | None:
        """The longest stretch of any of these, by the names in `longest`; None where the steps hold none of them."""
        known = [self.longest[name] for name in what if name in self.longest]
        return max(known, key=lambda place: place.length_ns, default=None)

    @property
    def where_exposed(self) -> Place | None:
        """The longest stretch of communication not overlapped by compute."""
        return self.where("exposed_transfer_ns", "exposed_waiting_ns", "exposed_unsplit_ns")

    def where_late(self, rank: int) -> Place | None:
        """The step in which a rank arrives latest at its collectives; None where that is not known."""
        late_rank = next((rank_figures for rank_figures in self.ranks if rank_figures.rank == rank), None)
        arrival = late_rank.known("arrival") if late_rank else None
        if late_rank is None or arrival is None or not arrival.steps:
            return None
        latest = max(arrival.steps, key=lambda step: step.lag_ns).number
        steps = (step for device in late_rank.devices for step in device.steps if step.number == latest)
        return next(
            (
                Place(
                    rank=rank,
                    start_ns=device_step.start_ns,
                    end_ns=device_step.start_ns + device_step.account.window_ns,
                )
                for device_step in steps
            ),
            None,
        )

    def milliseconds(self, share: float) -> float:
        """A share of the step as milliseconds of the step time (on `step.basis`)."""
        return share * self.step.time_ns / 1e6

    def share(self, class_ns: str) -> float:
        """The share of the traced step that `account` gives to a class, by its field or property name."""
        return self.account.share(class_ns)

    def step_share(self, class_ns: str) -> float:
        """The share of the step that a class takes without the profiler, where that is known: see `step_account`."""
        return self.step_account.share(class_ns)
