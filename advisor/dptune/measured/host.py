"""How the host launches the work of the devices, and where in the script that work comes from."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dptune.measured.figure import ABSENT, Figure, Figures, Model, in_ms


class LaunchFigures(Figures):
    """From the host's call to the device's work, over the operations of the steps whose launch was recorded."""

    operations: int = Field(description="operations launched inside steps, all ranks together")
    latency_median_ns: Figure[int] = Field(
        ABSENT, description="from the start of the call to the start of the operation, where the device was idle"
    )
    latency_p90_ns: Figure[int] = Field(ABSENT, description="the same, 90th percentile")
    queue_median: Figure[float] = Field(
        ABSENT, description="operations launched but not started when one starts, itself not counted: the median"
    )
    empty_share: Figure[float] = Field(ABSENT, description="share of operations launched while the device was idle")


class WaitSite(Figures):
    """Where the script waits for a device, in the steps of one rank: the call and what is around it."""

    rank: int = Field(description="the rank whose trace was read; the others are assumed to do the same")
    window: Literal["light", "detailed"] = Field(description="source window")
    call: str = Field(description="the call of the driver or runtime: `cudaStreamSynchronize`, `cudaMemcpyAsync`")
    operator: Figure[str] = Field(ABSENT, description="the outermost of the aten operators directly around the call")
    module: Figure[str] = Field(ABSENT, description="the innermost nn.Module around the call")
    function: Figure[str] = Field(ABSENT, description="the innermost function of the user around it")
    annotation: Figure[str] = Field(
        ABSENT, description="the innermost range around it that the script or a library names"
    )
    calls_per_step: float = Field(description="calls per step")
    held_ns: int = Field(description="how long they block the script, over the steps")
    share: float = Field(description="that / the steps")


class IdlePart(Model):
    """A part of the time in which devices waited for launches."""

    name: str = Field(description="a phase, an operator that the host ran, or the operation that was waited for")
    idle_ns: int = Field(description="time waited, over the steps of all ranks")
    share: float = Field(description="of all time waited for launches")
    per_step: float = Field(description="gaps, or calls of the operator, per rank and step")


class OptimizerLaunches(Model):
    """What the optimizer launches in `step` and `zero_grad`, and whether it does so for each tensor."""

    name: str = Field(description="its class")
    per_step: float = Field(description="its kernel launches per rank and step")
    of_per_step: float = Field(description="all kernel launches per rank and step")
    idle_share: float = Field(description="share of the time waited for launches that was waited for these")
    for_each_tensor: bool = Field(description="whether it runs neither foreach nor fused operators or kernels")
    zeroing_per_step: float = Field(0.0, description="its kernel launches in `zero_grad`, per rank and step")
    zeroing_host_ns: int = Field(0, description="host time in `zero_grad`, over the steps of all ranks")


class QueuedSteps(Model):
    """The first traced steps that started with work queued and waited for no launch, while the others waited.

    The host ran ahead before recording started, so the profiler is what slowed the other steps.
    """

    numbers: list[int] = Field(description="numbers of those steps, on the rank where this was seen")
    queued: int = Field(description="launches outstanding as the first of them started")
    length_ns: int = Field(description="their median time: an upper bound of the untraced step time")
    others_ns: list[int] = Field(description="the shortest and the longest of the other steps")


def by_profiler(queued: QueuedSteps) -> str:
    """Why time waited for launches is the profiler's."""
    many, first = len(queued.numbers), queued.numbers[0]
    which = f"step {first}" if many == 1 else f"steps {first} to {queued.numbers[-1]}"
    low, high = (in_ms(ns) for ns in queued.others_ns)
    others = f"{low} to {high} ms" if low != high else f"{low} ms"
    return (
        f"the profiler slows kernel launches: {which} started with {queued.queued} launches queued and took "
        f"{in_ms(queued.length_ns)} ms without waiting for a launch; the other steps took {others}"
    )


class CompilingFigures(Model):
    """torch.compile in the traced steps, of each step on the rank that compiles longest."""

    steps_ns: list[int] = Field(description="how long each step took, on the rank where it took longest")
    compile_ns: list[int] = Field(description="how long of that torch.compile compiled")
    compilations: int = Field(description="times that one function had been compiled, the most of any; 0 if not shown")


class LaunchIdleFigures(Figures):
    """Time in which devices waited for launches: by phase, by operator, and by the operation that was waited for."""

    idle_ns: int = Field(description="that time, over the steps of all ranks: `launch_idle_ns`")
    phases: Figure[list[IdlePart]] = Field(ABSENT, description="by the phase in which the operation was launched")
    operators: list[IdlePart] = Field(description="by innermost operator that the host ran, most time first, at most 5")
    operations: list[IdlePart] = Field(description="by name of the operation, most time first, at most 5")
    optimizer: Figure[OptimizerLaunches] = Field(ABSENT, description="launches of the optimizer")
    compiled: bool = Field(description="whether code made by torch.compile runs in the steps")
    queued: Figure[QueuedSteps] = Field(ABSENT, description="steps that show the untraced step time")
    unprofiled_share: float = Field(
        0.0,
        description="that time, less the most that the profiler takes for the events of the host (10 us each) / the "
        "steps less the same",
    )


class SourceTime(Model):
    """Compute that is launched from one place of the script."""

    name: str = Field(description="the class of a module, a function with its file and line, or an annotation")
    compute_ns: int = Field(description="compute launched in it, but not in a nested place of the same kind")
    step_share: float = Field(description="that / the steps")
    instances: int = Field(description="number of modules of the class, otherwise 1")


class SourceFigures(Model):
    """Compute by place in the script, for one kind of place."""

    top: list[SourceTime] = Field(description="those with the most time, the longest first, at most ten")
    places: int = Field(description="number of places")
    covered_share: float = Field(description="the share of the compute that comes from any of them")


class AttributionFigures(Figures):
    """Compute of the steps of one rank by place in the script; needs the detailed window, or a trace with stacks.

    Compute is attributed to the innermost place around its launch (on a CPU: its execution) on the launching thread.
    Launches of autograd's own thread are attributed to the place where the script's thread waits for it, if there is
    one such thread; so the backward pass belongs to no module.
    """

    rank: int = Field(description="the rank whose trace was read; the others are assumed to do the same")
    window: Literal["light", "detailed"] = Field(description="source window")
    steps: int = Field(description="steps of that window")
    compute_ns: int = Field(description="compute in them")
    compute_share: float = Field(description="compute / steps")
    modules: Figure[SourceFigures] = Field(ABSENT, description="by class of the innermost nn.Module")
    functions: Figure[SourceFigures] = Field(
        ABSENT,
        description="by innermost function that is not torch's, Python's or dptune's; its line is its first line, or "
        "the line that it was at when recording started; an installed package whose path is not in the "
        "trace counts as a user's",
    )
    annotations: Figure[SourceFigures] = Field(
        ABSENT, description="by innermost range that the script names: record_function and similar"
    )
