"""What the devices do in the steps: copies, gaps, kernels, matrix products, memory, phases."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from dptune.measured.figure import ABSENT, Figure, Figures, Model


class CopySite(Figures):
    """Where copies of one size are requested, in the steps of one rank: the enclosing operator, module and function."""

    rank: int = Field(description="the rank whose trace was read; the others are assumed to do the same")
    window: Literal["light", "detailed"] = Field(
        description="source window; only the detailed window has modules and functions"
    )
    operator: Figure[str] = Field(ABSENT, description="the outermost of the aten operators directly around the call")
    module: Figure[str] = Field(ABSENT, description="the innermost nn.Module around the call")
    function: Figure[str] = Field(
        ABSENT, description="the innermost function around it, not torch's or Python's own: file(first line): name"
    )
    copy_bytes: Figure[int] = Field(ABSENT, description="size of one copy, bytes")
    calls_per_step: float = Field(description="copies per step")
    every_step: bool = Field(description="whether it was seen in each step of the window, of two or more")
    total_ns: int = Field(description="sum of durations")
    blocking_calls: Figure[int] = Field(ABSENT, description="those of them that blocked the launching thread")


class CopyFigures(Figures):
    """Copies of one direction, over the steps of every rank.

    A copy blocks where its call holds the launching thread until the data is copied or staged: a synchronous form
    (`cudaMemcpy`), an asynchronous one of pageable memory that returned after the middle of the copy, or one whose
    thread synchronises next, in the same operator. Source: CUDA Runtime API, "API synchronization behavior".
    """

    direction: Literal["h2d", "d2h", "d2d", "p2p", "h2h", "unknown"] = Field(
        description="source and destination: h is the host, d a device"
    )
    pinned: Figure[bool] = Field(ABSENT, description="whether the host side is page-locked memory")
    calls: int = Field(description="copies inside steps, all ranks together")
    calls_per_step: float = Field(description="per rank and step")
    total_bytes: Figure[int] = Field(ABSENT, description="sum of the bytes copied, all ranks")
    total_ns: int = Field(description="sum of durations, all ranks")
    exposed_ns: int = Field(description="part of the union not overlapped by compute or communication")
    most_share: float = Field(description="exposed time / steps, on the device where this share is largest")
    most_held_share: float = Field(
        description="time for which they blocked the launching thread / steps, where this share is largest"
    )
    hidden_ns: Figure[int] = Field(ABSENT, description="part of the union overlapped by compute or communication")
    step_share: Figure[float] = Field(ABSENT, description="their union inside the steps / the steps")
    gb_per_s: Figure[float] = Field(ABSENT, description="all bytes / the sum of durations")
    large_gb_per_s: Figure[float] = Field(
        ABSENT,
        description="bytes / duration, median over copies large enough that start-up does not dominate: 1 MiB, "
        "8 MiB on one device",
    )
    blocking_calls: Figure[int] = Field(ABSENT, description="those that blocked the launching thread")
    held_ns: Figure[int] = Field(
        ABSENT, description="how long they blocked it: the calls, and the waits directly after"
    )
    sites: Figure[list[CopySite]] = Field(ABSENT, description="where most of their time is requested, on one rank")


class GapFigures(Figures):
    """One stretch in which a device ran nothing, inside a step."""

    rank: int = Field(description="number of the rank")
    device: str = Field(description="'cpu', 'cuda:3', ...")
    step: int = Field(description="N of ProfilerStep#N; counted from 0 without step markers")
    start_ns: int = Field(description="start on the trace's own clock")
    length_ns: int = Field(description="its length")
    causes_ns: dict[str, int] = Field(
        description="cause of idle -> how much of it, as in the account; sums to the length"
    )
    before: Figure[str] = Field(ABSENT, description="the operation that ended last before it")
    after: Figure[str] = Field(ABSENT, description="the operation that starts at its end")
    launched_by: Figure[str] = Field(ABSENT, description="the call that launched that operation")
    launched_ns: Figure[int] = Field(
        ABSENT, description="from the gap's start to that call; negative where it was before"
    )
    meanwhile: Figure[str] = Field(
        ABSENT, description="the innermost range or call of the launching thread that covers half of the gap or more"
    )


class OnPath(Model):
    """Operations of one name on the critical path."""

    name: str = Field(description="as the trace has it")
    kind: str = Field(description="the class of the path that includes their time")
    total_ns: int = Field(description="their time on the path, all its steps")
    count: int = Field(description="number of stretches")


class CriticalPath(Figures):
    """The chain of work that the end of each step waited for, on one device, in exclusive classes that sum to it."""

    rank: int = Field(description="the rank that waits least for others: they wait for it")
    device: str = Field(description="'cuda:3', ...")
    steps: int = Field(description="number of steps that it covers: those whose end is known")
    path_ns: int = Field(description="its length: that of those steps")
    compute_ns: int = Field(0, description="compute kernels")
    communication_ns: int = Field(0, description="collectives, and waiting in them for other ranks")
    copy_ns: int = Field(0, description="copies and memsets")
    queued_ns: int = Field(
        0,
        description="gaps before launched operations, from the end of the one before, or of a launch over 1 ms ago",
    )
    latency_ns: int = Field(
        0,
        description="from a launch to the start of its operation, if that takes up to 1 ms and the path waited for it",
    )
    sync_ns: int = Field(0, description="calls that wait for the device, after it has finished or unnecessarily")
    input_ns: int = Field(0, description="the script waits for its data loader")
    gc_ns: int = Field(0, description="Python collects garbage")
    malloc_ns: int = Field(0, description="driver calls on the host that allocate or free device memory")
    launching_ns: int = Field(0, description="operators and calls of the host, before the launch that was waited for")
    host_ns: int = Field(0, description="the script runs no operator: Python, file I/O, sleep")
    unexplained_ns: int = Field(0, description="what was waited for was not recorded")
    idle_share: float = Field(
        description="share of the path on the host while the device computed nothing; together with the time in which "
        "the rank waits for others an upper bound for any faster host"
    )
    longest: list[OnPath] = Field(description="the operations with most of its time, by name")

    @model_validator(mode="after")
    def _sums(self) -> CriticalPath:
        parts = sum(getattr(self, name) for name in PATH)
        if parts != self.path_ns:
            raise ValueError(f"critical path does not sum up: parts {parts} ns, path {self.path_ns} ns")
        return self


PATH = tuple(name for name in CriticalPath.model_fields if name.endswith("_ns") and name != "path_ns")


class UnalignedProduct(Model):
    """Matrix products on tensor cores of one size, whose kernels load less than 16 bytes at once."""

    operator: str = Field(description="the operator; empty where the trace does not show it")
    dtype: Literal["bf16", "fp16", "tf32"] = Field(description="type of the operands, from the kernel's name")
    multiple: int = Field(description="elements in 16 bytes: rows are aligned if their length is a multiple")
    sizes: list[list[int]] = Field(description="sizes of both factors; empty where the trace lacks them")
    lengths: list[int] = Field(description="row lengths of the factors or the result that are not such a multiple")
    calls_per_step: float = Field(description="kernels per step")
    part: float = Field(description="of the time of all such kernels, on the rank and in the window that was read")


class MatmulFigures(Figures):
    """Matrix products (and convolutions) on the device, and whether they used tensor cores."""

    fp32_share: Figure[float] = Field(ABSENT, description="fp32 matmul and convolution kernels' time / step")
    fp32_convolution_share: Figure[float] = Field(
        ABSENT, description="the part of it in kernels whose names show that they convolve / step"
    )
    tensor_core_share: Figure[float] = Field(ABSENT, description="tensor-core kernels' time / step")
    unclassified_share: Figure[float] = Field(
        ABSENT,
        description="matrix work of a precision that its kernels' names do not show / all kernels' time in the steps",
    )
    unaligned_share: Figure[float] = Field(
        ABSENT, description="tensor-core kernels of matrix products that load less than 16 bytes at once / step"
    )
    unaligned_sized_share: Figure[float] = Field(
        ABSENT, description="the part of it in products with a row whose length is no multiple of 16 bytes / step"
    )
    unaligned: list[UnalignedProduct] = Field(
        default_factory=list, description="their products by operator and size on one rank, most time first, at most 8"
    )
    layout_share: Figure[float] = Field(
        ABSENT, description="cuDNN's kernels that transpose between NCHW and NHWC around convolutions / step"
    )
    layout_calls: Figure[float] = Field(ABSENT, description="these kernels per rank and step")
    tensor_cores: Figure[bool] = Field(ABSENT, description="whether this device has tensor cores (or matrix cores)")
    architecture: str = Field(
        "",
        description="of an unnamed GPU that may lack tensor cores: what its kernels are compiled for ('Volta or "
        "later'); empty where they do not show it",
    )
    peaks: dict[str, float] = Field(
        default_factory=dict,
        description="dense peaks of this device by its vendor, FLOP/s: fp32, tf32, bf16, fp16; empty if not known",
    )
    operator_shares: Figure[dict[str, float]] = Field(
        ABSENT,
        description="on a CPU: self time of operators by kind (matrix product, attention, convolution, copy) / step; "
        "may exceed 1 with several threads",
    )


class KernelTime(Figures):
    """All kernels of one name (on a CPU: operators, by self time), over the steps of every rank."""

    name: str = Field(description="as the trace has it")
    kind: Figure[str] = Field(ABSENT, description="matrix product, attention, elementwise, ..., communication, other")
    calls_per_step: float = Field(description="per rank and step")
    total_ns: int = Field(description="union inside the steps, summed over devices; for operators the self time")
    median_ns: Figure[int] = Field(ABSENT, description="median duration; for operators the self time")
    step_share: float = Field(description="total / steps; may exceed 1 for operators on several threads")


class KernelFigures(Figures):
    """The kernels of the steps (on a CPU: the operators), over every rank."""

    counted: Literal["kernels", "operators"] = Field(description="what is counted: a CPU runs no kernels")
    per_step: float = Field(description="per rank and step")
    median_ns: int = Field(description="median duration; for operators the self time")
    total_ns: int = Field(description="union inside the steps, summed over devices; for operators the self time")
    short_share: Figure[float] = Field(ABSENT, description="the share of them shorter than 10 us")
    launch_bound_share: Figure[float] = Field(
        ABSENT, description="idle while the host prepares and launches the next operation / step, as in the account"
    )
    kinds_ns: Figure[dict[str, int]] = Field(
        ABSENT, description="kind -> time, each moment counted for one kind; sums to the total"
    )
    loss_share: Figure[float] = Field(
        ABSENT, description="kernels of log-softmax and of the negative log likelihood / step; 0 without a likelihood"
    )
    loss_calls: Figure[float] = Field(ABSENT, description="these kernels per rank and step")
    loss_compiled_share: Figure[float] = Field(ABSENT, description="the part that torch.compile generated / step")
    top: list[KernelTime] = Field(description="those with the most time, the longest first")


class MemoryFigures(Figures):
    """Memory of one device of one rank.

    Allocations are recorded in the detailed window only (or where a foreign trace has them); `window` is their source.
    """

    rank: int = Field(description="number of the rank")
    device: str = Field(description="'cpu', 'cuda:3', ...")
    window: Figure[Literal["light", "detailed"]] = Field(ABSENT, description="the window that the allocations are from")
    basis: Literal["run", "steps"] = Field("steps", description="what the peaks cover: the whole run, or traced steps")
    capacity_bytes: Figure[int] = Field(ABSENT, description="memory of the device")
    peak_allocated_bytes: Figure[int] = Field(ABSENT, description="peak memory of tensors")
    peak_reserved_bytes: Figure[int] = Field(ABSENT, description="peak memory reserved by torch's allocator")
    peak_share: Figure[float] = Field(ABSENT, description="peak reserved / capacity")
    allocations_per_step: Figure[float] = Field(ABSENT, description="median over steps")
    allocated_bytes_per_step: Figure[int] = Field(ABSENT, description="sum of their sizes, median over steps")
    fragmentation: Figure[float] = Field(ABSENT, description="1 - allocated / reserved, at peak allocation")
    growth_bytes_per_step: Figure[int] = Field(
        ABSENT, description="growth of allocated memory from the end of one step to the end of the next, median"
    )
    least_growth_bytes: Figure[int] = Field(
        ABSENT,
        description="smallest of these growths, if there are 3 or more",
    )
    malloc_calls_per_step: Figure[float] = Field(
        ABSENT, description="calls that allocate or free device memory: cudaMalloc, cudaFree, hipMalloc, ..."
    )
    malloc_ns: Figure[int] = Field(ABSENT, description="their union inside steps; in the light window")
    malloc_share: Figure[float] = Field(ABSENT, description="that / steps, as marked on the host")
    malloc_steps_ns: Figure[list[int]] = Field(ABSENT, description="malloc_ns of each step, in step order")


Phase = Literal["forward", "backward", "optimizer", "unknown"]


class PhaseFigures(Figures):
    """One phase of the steps, over every rank: the device's work by the phase in which the host launched it.

    `optimizer`: inside the optimizer's step(); `backward`: inside autograd's pass, recomputation included; `forward`:
    everything else that a step launches, with loss, loading, clipping and zeroing of gradients; `unknown`: not launched
    inside a step, or by a call that was not recorded. Compute and communication sum over the phases to those of the
    account.
    """

    phase: Phase = Field(description="forward (and the rest), backward, optimizer or unknown")
    compute_ns: int = Field(description="compute, each moment counted for one phase: optimizer, backward, forward")
    communication_ns: int = Field(description="each moment counted for the phase of the collective that started first")
    hidden_communication_ns: int = Field(description="the part of it overlapped by compute of any phase")
    exposed_communication_ns: int = Field(description="the part of it not overlapped by compute")
    host_ns: Figure[int] = Field(
        ABSENT, description="host time in it; sums to the steps as marked on the host, over ranks"
    )
