"""How the host launches the work of the devices, and where in the script that work comes from."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dptune.measured.figure import ABSENT, Figure, Figures, Model


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
