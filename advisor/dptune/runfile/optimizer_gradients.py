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
    Steps that change no weight although there are gradients do not count. `tensors`: the parameters it holds.
    `elsewhere`: parameters of modules that have gradients, are in no optimizer and do not change; `alike` if each
    tensor of the optimizer has one of its shape among them. `sharded`: whether `fully_shard` replaced parameters.
    `of_others`: the steps that also used gradients of a loss on which another optimizer had stepped (`others_where`).
    `cleared`: whether there were gradients after a backward pass, but not at the step. `others_train`: whether anything
    else trains. `idle`: whether to have no gradients is no fault, because the weights change all the same, or are
    frozen while others train.
    """

    optimizer: str
    where: str | None = None
    step_where: str | None = None
    backward_where: str | None = None
    tensors: int = 0
    steps: int = 0
    without: int = 0
    kept: int = 0
    of_others: int = 0
    others_where: str | None = None
    elsewhere: int = 0
    sharded: bool = False
    alike: bool = False
    cleared: bool = False
    others_train: bool = False
    idle: bool = False

    @property
    def has_none(self) -> bool:
        """Whether no step had a gradient, and that is a fault."""
        return self.steps >= _LEAST_STEPS and self.without == self.steps and not self.idle

    @property
    def mixes(self) -> bool:
        """Whether most steps use gradients of another optimizer's loss."""
        return self.steps >= _LEAST_STEPS and self.of_others >= _KEPT_SHARE * (self.steps - 1)

    @property
    def keeps(self) -> bool:
        """Whether most steps use gradients again that an earlier one has used."""
        return self.steps >= _LEAST_STEPS and self.kept >= _KEPT_SHARE * (self.steps - 1)
