"""Whether optimizer steps have gradients, and whether these are new."""

from __future__ import annotations

from dataclasses import dataclass

_LEAST_STEPS = 3  # fewer may be an exception: a script that clears late, a first step before any loss
_KEPT_SHARE = 0.5  # of the steps: a script that clears every second step keeps gradients in half of them


@dataclass
class OptimizerGradientFacts:
    """What an optimizer found in its warm-up steps, by a sample of its parameters.

    `where` is the script's line that makes the optimizer, `step_where` that of its steps, `backward_where` that of the
    last backward pass before one. Of `steps`, in `without` no parameter of the optimizer had a gradient although
    backward passes ran; `kept` still held gradients that an earlier step had used, and backward passes added to them.
    `tensors`: the parameters it holds. `elsewhere`: parameters of modules in training that have gradients and are in no
    optimizer. `sharded`: whether `fully_shard` replaced parameters.
    """

    optimizer: str
    where: str | None = None
    step_where: str | None = None
    backward_where: str | None = None
    tensors: int = 0
    steps: int = 0
    without: int = 0
    kept: int = 0
    elsewhere: int = 0
    sharded: bool = False

    @property
    def has_none(self) -> bool:
        """Whether no step had a gradient."""
        return self.steps >= _LEAST_STEPS and self.without == self.steps

    @property
    def keeps(self) -> bool:
        """Whether most steps use gradients again that an earlier one has used."""
        return self.steps >= _LEAST_STEPS and self.kept >= _KEPT_SHARE * (self.steps - 1)
