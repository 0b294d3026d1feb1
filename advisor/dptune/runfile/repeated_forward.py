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
    draw random numbers and update statistics. `unused`: they run with gradients, but no backward pass uses
    their outputs. `rows_repeat`: how often each row of the inputs occurs, if more than once; `inputs` then counts the
    distinct rows.

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
    unused: bool = False
    rows_repeat: int = 1
    step_ns: list[int] = field(default_factory=list)
    again_ns: list[int] = field(default_factory=list)
    graph_ns: list[int] = field(default_factory=list)
    forward_ns: list[int] = field(default_factory=list)

    @property
    def kind(self) -> tuple[str, bool, bool, bool, bool]:
        """The module and what its calls repeat: equal on ranks that run the same script."""
        return self.module, self.prefixes, self.rows_repeat > 1, self.trained, self.unused

    @property
    def step_shares(self) -> list[float]:
        """The share of each step that the host spends in calls that are not needed, without their backward pass."""
        return _shares(self.again_ns, self.step_ns)

    @property
    def step_share(self) -> float:
        """The share of the median step."""
        return _share(self.again_ns, self.step_ns)

    @property
    def forward_part(self) -> float:
        """The part of the host's forward time that calls that are not needed take."""
        if not len(self.again_ns) == len(self.graph_ns) == len(self.forward_ns):
            return 0.0
        ungraphed = [again - graph for again, graph in zip(self.again_ns, self.graph_ns, strict=True)]
        return _share(self.again_ns, [forward + more for forward, more in zip(self.forward_ns, ungraphed, strict=True)])

    @property
    def backward_part(self) -> float:
        """The part of the backward pass that goes through these calls, taken as their part of the forward pass."""
        return _share(self.graph_ns, self.forward_ns)


def _shares(parts_ns: list[int], wholes_ns: list[int]) -> list[float]:
    """By step; none where the lists do not belong together, as in a file that was cut."""
    if len(parts_ns) != len(wholes_ns):
        return []
    return [min(1.0, max(0, part) / whole) for part, whole in zip(parts_ns, wholes_ns, strict=True) if whole > 0]


def _share(parts_ns: list[int], wholes_ns: list[int]) -> float:
    """The median share; 0 where none is known."""
    shares = _shares(parts_ns, wholes_ns)
    return median(shares) if shares else 0.0


@dataclass
class FrozenFeatureFacts:
    """A module that no optimizer trains, which computes without gradients on the batch as the loader gives it.

    `module` is its path in the model, `where` the line of the script that calls it, `calls` their number;
    `same_inputs`: how many different inputs it has, if these are the same in every step, else 0. `epochs`: those that a
    Trainer of a library plans, else 0. By watched step: `step_ns` its duration, `spent_ns` the host time of the calls.
    """

    module: str
    where: str | None = None
    calls: int = 0
    step_ns: list[int] = field(default_factory=list)
    spent_ns: list[int] = field(default_factory=list)
    same_inputs: int = 0
    epochs: int = 0

    @property
    def step_shares(self) -> list[float]:
        """The share of each step that the host spends in the calls."""
        return _shares(self.spent_ns, self.step_ns)

    @property
    def step_share(self) -> float:
        """The share of the median step."""
        return _share(self.spent_ns, self.step_ns)
