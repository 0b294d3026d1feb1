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

    number: int = Field(description="N of ProfilerStep#N; from 0 on where nothing marks steps")
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


StepBasis = Literal["profiler_step", "optimizer", "repeating"]


class SetAsideStep(Model):
    """A step that is no part of any figure, on any rank, because it took much longer than the others."""

    number: int = Field(description="its number")
    length_ns: int = Field(description="how long it took: median over ranks")
    of_usual: float = Field(description="that / the median of the steps that are kept")
    warm_up: bool = Field(description="whether it is the first, or follows only such steps")


class StepsFigures(Figures):
    """Which steps the figures of this run are of, and what tells where one begins."""

    basis: StepBasis = Field(
        description="ranges of the profiler, ends of the optimizer's step(), or what repeats in the operations"
    )
    similarity: Figure[float] = Field(
        ABSENT, description="how alike the steps' operations are, 0 to 1: of the rank where least"
    )
    by_rank: dict[int, int] = Field(default_factory=dict, description="number of the rank -> how many steps it has")
    set_aside: list[SetAsideStep] = Field(default_factory=list, description="steps that took much longer")


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
    unprofiled_outliers: int = Field(
        0, description="those of them that took much longer than the others, on the rank that has most; all are kept"
    )
    lean_median_ns: Figure[int] = Field(ABSENT, description="a step of the light window, slowed by the profiler")
    lean_q1_ns: Figure[int] = Field(ABSENT, description="their first quartile: median over ranks of each rank's")
    lean_q3_ns: Figure[int] = Field(ABSENT, description="their third quartile: median over ranks of each rank's")
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


class CopySite(Figures):
    """Where copies of one size are asked for, in the steps of one rank: the operator, module and function around."""

    rank: int = Field(description="the rank it was read of; the others are taken to do the same")
    window: Literal["lean", "rich"] = Field(description="which tells: modules and functions stand in the rich one only")
    operator: Figure[str] = Field(ABSENT, description="the outermost of the aten operators right around the call")
    module: Figure[str] = Field(ABSENT, description="the innermost nn.Module around the call")
    function: Figure[str] = Field(
        ABSENT, description="the innermost function around it, not torch's or Python's own: file(where it begins): name"
    )
    copy_bytes: Figure[int] = Field(ABSENT, description="size of one copy, bytes")
    calls_per_step: float = Field(description="copies per step")
    every_step: bool = Field(description="whether it was seen in each step of the window, of two or more")
    total_ns: int = Field(description="sum of durations")
    blocking_calls: Figure[int] = Field(ABSENT, description="those of them that held the launching thread")


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
    ranks: list[int] = Field(description="the ranks that exchange")
    scope: Literal["intra-node", "inter-node", "unknown"] = Field(description="whether they share a host")
    basis: Literal["trace", "sweep"] = Field(description="from the run's own collectives, or from `dptune links`")
    source: str = Field("", description="the file of the sweep")
    measured: str = Field("", description="when the sweep was made")
    sizes: list[LinkSize] = Field(description="what was fitted, ascending by size")
    calls: int = Field(description="calls that were fitted")
    shared_calls: int = Field(0, description="calls left out: another collective of these ranks ran meanwhile")
    alpha_us: Figure[float] = Field(ABSENT, description="time of a call of no bytes: latency")
    alpha_low_us: Figure[float] = Field(ABSENT, description="the least that the data allow")
    alpha_high_us: Figure[float] = Field(ABSENT, description="the most that the data allow")
    algbw_gb_per_s: Figure[float] = Field(ABSENT, description="beta: message bytes per time that each byte adds")
    busbw_gb_per_s: Figure[float] = Field(ABSENT, description="beta times what each link carries, as nccl-tests does")
    busbw_low_gb_per_s: Figure[float] = Field(ABSENT, description="the least that the data allow")
    busbw_high_gb_per_s: Figure[float] = Field(ABSENT, description="the most that the data allow")
    residual_share: Figure[float] = Field(ABSENT, description="median over sizes of |measured - fitted| / measured")
    confidence: Figure[Literal["high", "medium", "low"]] = Field(
        ABSENT, description="high: 5 sizes that span 64 times, residual 10 %; medium: residual 25 %"
    )
    peak_gb_per_s: Figure[float] = Field(ABSENT, description="what the links of one GPU carry at most, per direction")


class CopyFigures(Figures):
    """Copies of one direction, over the steps of every rank.

    A copy blocks where its call holds the launching thread until the data is copied or staged: a synchronous form
    (`cudaMemcpy`), an asynchronous one of pageable memory that returned after the middle of the copy, or one whose
    thread synchronises next, in the same operator. Source: CUDA Runtime API, "API synchronization behavior".
    """

    direction: Literal["h2d", "d2h", "d2d", "p2p", "h2h", "unknown"] = Field(description="from host or device to which")
    pinned: Figure[bool] = Field(ABSENT, description="whether the host side is page-locked memory")
    calls: int = Field(description="copies inside steps, all ranks together")
    calls_per_step: float = Field(description="per rank and step")
    total_bytes: Figure[int] = Field(ABSENT, description="sum of the bytes copied, all ranks")
    total_ns: int = Field(description="sum of durations, all ranks")
    exposed_ns: int = Field(description="part of the union with no compute and no communication beside it")
    hidden_ns: Figure[int] = Field(ABSENT, description="part of the union beside compute or communication")
    step_share: Figure[float] = Field(ABSENT, description="their union inside the steps / the steps")
    gb_per_s: Figure[float] = Field(ABSENT, description="all bytes / the sum of durations")
    large_gb_per_s: Figure[float] = Field(
        ABSENT,
        description="bytes / duration, the median over copies so large that start-up does not dominate: 1 MiB, "
        "8 MiB on one device",
    )
    blocking_calls: Figure[int] = Field(ABSENT, description="those that held the launching thread")
    held_ns: Figure[int] = Field(ABSENT, description="how long they held it: the calls, and the waits right after")
    sites: Figure[list[CopySite]] = Field(ABSENT, description="where most of their time is asked for, of one rank")


class GapFigures(Figures):
    """One stretch in which a device ran nothing, inside a step."""

    rank: int = Field(description="number of the rank")
    device: str = Field(description="'cpu', 'cuda:3', ...")
    step: int = Field(description="N of ProfilerStep#N; from 0 on where nothing marks steps")
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


class KernelTime(Figures):
    """All kernels of one name (on a CPU: operators, by their own time), over the steps of every rank."""

    name: str = Field(description="as the trace has it")
    kind: Figure[str] = Field(ABSENT, description="matrix product, attention, elementwise, ..., communication, other")
    calls_per_step: float = Field(description="per rank and step")
    total_ns: int = Field(description="union inside the steps, summed over devices; of operators the own time")
    median_ns: Figure[int] = Field(ABSENT, description="median duration; of operators the own time")
    step_share: float = Field(description="total / steps; of operators on several threads it may exceed 1")


class KernelFigures(Figures):
    """The kernels of the steps (on a CPU: the operators), over every rank."""

    counted: Literal["kernels", "operators"] = Field(description="what is counted: a CPU runs no kernels")
    per_step: float = Field(description="per rank and step")
    median_ns: int = Field(description="median duration; of operators the own time")
    total_ns: int = Field(description="union inside the steps, summed over devices; of operators the own time")
    short_share: Figure[float] = Field(ABSENT, description="the share of them shorter than 10 us")
    launch_bound_share: Figure[float] = Field(
        ABSENT, description="idle while the host prepares and launches the next operation / step, as in the account"
    )
    kinds_ns: Figure[dict[str, int]] = Field(
        ABSENT, description="kind -> time, each moment counted for one kind; sums to the total"
    )
    top: list[KernelTime] = Field(description="those with the most time, the longest first")


class MemoryFigures(Figures):
    """Memory of one device of one rank.

    Allocations are recorded in the rich window only (or where a foreign trace has them); `window` says which told.
    """

    rank: int = Field(description="number of the rank")
    device: str = Field(description="'cpu', 'cuda:3', ...")
    window: Figure[Literal["lean", "rich"]] = Field(ABSENT, description="the window whose allocations are told")
    basis: Literal["run", "steps"] = Field("steps", description="what the peaks are of: the whole run, or traced steps")
    capacity_bytes: Figure[int] = Field(ABSENT, description="memory of the device")
    peak_allocated_bytes: Figure[int] = Field(ABSENT, description="the most that tensors took")
    peak_reserved_bytes: Figure[int] = Field(ABSENT, description="the most that torch's allocator held")
    peak_share: Figure[float] = Field(ABSENT, description="peak reserved / capacity")
    allocations_per_step: Figure[float] = Field(ABSENT, description="median over steps")
    allocated_bytes_per_step: Figure[int] = Field(ABSENT, description="sum of their sizes, median over steps")
    fragmentation: Figure[float] = Field(ABSENT, description="1 - allocated / reserved, when most was allocated")
    growth_bytes_per_step: Figure[int] = Field(
        ABSENT, description="what is allocated when a step ends less when the one before ended, the median"
    )
    malloc_calls_per_step: Figure[float] = Field(
        ABSENT, description="calls that take or return memory of the device: cudaMalloc, cudaFree, hipMalloc, ..."
    )
    malloc_ns: Figure[int] = Field(ABSENT, description="their union inside steps; in the lean window")
    malloc_share: Figure[float] = Field(ABSENT, description="that / steps, as the host marks them")


Phase = Literal["forward", "backward", "optimizer", "unknown"]


class PhaseFigures(Figures):
    """One phase of the steps, over every rank: the device's work by the phase in which the host launched it.

    `optimizer`: inside the optimizer's step(); `backward`: inside autograd's pass, with what is computed anew there;
    `forward`: whatever else a step launches, with loss, loading, clipping and zeroing of gradients; `unknown`: not
    launched inside a step, or by a call that was not recorded. Compute and communication sum over the phases to those
    of the account.
    """

    phase: Phase = Field(description="forward (and the rest), backward, optimizer or unknown")
    compute_ns: int = Field(description="compute, each moment counted for one phase: optimizer, backward, forward")
    communication_ns: int = Field(description="each moment for the phase of the collective that began first")
    hidden_communication_ns: int = Field(description="the part of it with compute of any phase beside it")
    exposed_communication_ns: int = Field(description="the part of it with no compute beside it")
    host_ns: Figure[int] = Field(
        ABSENT, description="host time in it; sums to the steps as the host marks them, over ranks"
    )


class CommunicationFigures(Figures):
    """Communication of one kind, process group and phase, over the steps of every rank.

    Where several collectives are in flight, the moment counts for the one that began first: the rows sum to the
    communication of the account.
    """

    kind: str = Field(description="all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, p2p, ...; or unknown")
    group: Figure[str] = Field(ABSENT, description="name of the process group")
    phase: Figure[Phase] = Field(ABSENT, description="the phase in which it was asked for")
    calls: int = Field(description="calls inside steps, all ranks together")
    communication_ns: int = Field(description="hidden + exposed")
    hidden_ns: int = Field(description="with compute beside it")
    exposed_ns: int = Field(description="with no compute beside it")


class OverlapFigures(Figures):
    """How compute and communication share the steps, over every rank."""

    rows: list[CommunicationFigures] = Field(description="by kind, group and phase, the most exposed first")
    compute_per_communication: Figure[float] = Field(ABSENT, description="compute / communication of the account")
    slowdown: Figure[float] = Field(
        ABSENT, description="time of the same compute beside communication / without, of one place in the step"
    )
    slowdown_pairs: int = Field(
        0, description="places in a step at which one operation was seen both with and without communication beside it"
    )


class SourceTime(Model):
    """Compute that comes from one place of the script."""

    name: str = Field(description="the class of a module, a function with its file and line, or an annotation")
    compute_ns: int = Field(description="compute launched in it and in nothing of its sort inside it")
    step_share: float = Field(description="that / the steps")
    instances: int = Field(description="how many modules of the class, otherwise 1")


class SourceFigures(Model):
    """Where the compute comes from, by places of one sort."""

    top: list[SourceTime] = Field(description="those with the most time, the longest first, at most ten")
    places: int = Field(description="how many places there are")
    covered_share: float = Field(description="the share of the compute that comes from any of them")


class AttributionFigures(Figures):
    """Where the compute of the steps of one rank comes from; only the detailed window, or a trace with stacks, tells.

    The moment of launching (on a CPU: of computing) decides, and the innermost place around it on the launching thread.
    What autograd's own thread launches comes from where the script's thread waits for it, where there is one such
    thread; so the backward pass is of no module.
    """

    rank: int = Field(description="the rank it was read of; the others are taken to do the same")
    window: Literal["lean", "rich"] = Field(description="which window told")
    steps: int = Field(description="steps of that window")
    compute_ns: int = Field(description="compute in them")
    compute_share: float = Field(description="compute / steps")
    modules: Figure[SourceFigures] = Field(ABSENT, description="by class of the innermost nn.Module")
    functions: Figure[SourceFigures] = Field(
        ABSENT,
        description="by innermost function that is not torch's, Python's or dptune's; its line is where it begins, or "
        "where it stood as recording began; an installed package whose path the trace does not tell counts as a user's",
    )
    annotations: Figure[SourceFigures] = Field(
        ABSENT, description="by innermost range that the script names: record_function and its like"
    )


class StepLag(Model):
    """How late one rank came to the collectives of one step."""

    number: int = Field(description="N of ProfilerStep#N; from 0 on where nothing marks steps")
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
    steps: Figure[StepsFigures] = Field(ABSENT, description="which steps the figures are of, and what tells them")
    ranks: list[RankFigures] = Field(description="the ranks that were read")
    collectives: Figure[list[CollectiveFigures]] = Field(ABSENT, description="collectives in steps, by kind and size")
    links: Figure[list[LinkFigures]] = Field(ABSENT, description="latency and bandwidth between ranks, by kind")
    straggler: Figure[StragglerFigures] = Field(ABSENT, description="the rank that the others wait for most")
    gaps: Figure[list[GapFigures]] = Field(ABSENT, description="the longest stretches in which a device ran nothing")
    launching: Figure[LaunchFigures] = Field(ABSENT, description="how far the host runs ahead of the devices")
    phases: Figure[list[PhaseFigures]] = Field(ABSENT, description="forward, backward and optimizer of the steps")
    overlap: Figure[OverlapFigures] = Field(ABSENT, description="how compute and communication share the steps")
    attribution: Figure[AttributionFigures] = Field(ABSENT, description="where in the script the compute comes from")
    copies: Figure[list[CopyFigures]] = Field(ABSENT, description="copies inside steps, by direction")
    kernels: Figure[KernelFigures] = Field(ABSENT, description="kernels of the steps; on a CPU operators")
    memory: Figure[list[MemoryFigures]] = Field(ABSENT, description="memory of each device")
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
