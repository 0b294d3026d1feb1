"""Modules that run again within a step on inputs that they have computed on before."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median


@dataclass
class RepeatedForwardFacts:
    """A module that runs several times per step on the same inputs, or on ever longer prefixes of one input.

    `module` is its path in the model. `prefixes`: whether its inputs are prefixes, `x[:, :1]`, `x[:, :2]` and so on;
    else inputs and outputs of the repeated calls are equal. `calls` and `inputs` count its calls per step and the
    distinct inputs; for prefixes only the longest counts. `lines` are the script's lines that lead to the calls, first
    that of the call to keep. `without_graph`: the repeated calls run without gradients, and the one to keep with them.
    `trained`: they run on what the step has trained the module on, whatever they return; `in_training` mode they also
    draw random numbers and update statistics. `rows_repeat`: how often each row of the inputs occurs, if more than
    once; `inputs` then counts the distinct rows.

    By watched step: `step_ns` its duration, `again_ns` the host time of the calls that are not needed, `graph_ns` the
    part of it with gradients, which the backward pass goes through again, and `forward_ns` that of all forward passes
    with gradients.
    """

    module: str
    prefixes: bool = False
    calls: int = 0
    inputs: int = 0
    lines: list[str] = field(default_factory=list)
    without_graph: bool = False
    trained: bool = False
    in_training: bool = False
    rows_repeat: int = 1
    step_ns: list[int] = field(default_factory=list)
    again_ns: list[int] = field(default_factory=list)
    graph_ns: list[int] = field(default_factory=list)
    forward_ns: list[int] = field(default_factory=list)

    @property
    def step_share(self) -> float:
        """The share of a step that the host spends in calls that are not needed, without their backward pass."""
        return median(again / step for again, step in zip(self.again_ns, self.step_ns, strict=True))

    @property
    def forward_part(self) -> float:
        """The part of the host's forward time that calls that are not needed take."""
        ungraphed = [again - graph for again, graph in zip(self.again_ns, self.graph_ns, strict=True)]
        whole = [forward + more for forward, more in zip(self.forward_ns, ungraphed, strict=True)]
        return median(min(1.0, again / ns) for again, ns in zip(self.again_ns, whole, strict=True) if ns)

    @property
    def backward_part(self) -> float:
        """The part of the backward pass that goes through these calls, taken as their part of the forward pass."""
        parts = [min(1.0, again / whole) for again, whole in zip(self.graph_ns, self.forward_ns, strict=True) if whole]
        return median(parts) if parts else 0.0


@dataclass
class FrozenFeatureFacts:
    """A module that no optimizer trains, which computes without gradients on the batch as the loader gives it.

    `module` is its path in the model, `where` the line of the script that calls it, `calls` their number. By watched
    step: `step_ns` its duration, `spent_ns` the host time of the calls.
    """

    module: str
    where: str | None = None
    calls: int = 0
    step_ns: list[int] = field(default_factory=list)
    spent_ns: list[int] = field(default_factory=list)

    @property
    def step_share(self) -> float:
        """The share of a step that the host spends in the calls."""
        shares = [min(1.0, spent / step) for spent, step in zip(self.spent_ns, self.step_ns, strict=True) if step]
        return median(shares) if shares else 0.0
