"""Optimizer steps that a script wrote itself: which they are, what they take, and what computes the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dptune.measured import OptimizerLoop
from dptune.rule import RunView

FUSED_ADAM = "torch.optim.AdamW(..., fused=True) if it computes Adam or AdamW"
FUSED_SGD = "torch.optim.SGD(..., momentum=..., fused=True) if it computes SGD with momentum"
FOREACH = "the class of torch.optim that computes the same, or torch._foreach_* operators on all tensors"
CALLS_EACH = 3  # operators per tensor, at least: SGD with one gains nothing, see unfused-optimizer's references
SMALL_NUMBERS = 1_000  # of a tensor: on a CPU foreach operators were measured to be faster up to here, see there
OF_EACH = 0.5  # calls for each tensor from which on an operator is taken to be in the loop
ELEMENTWISE = frozenset(
    (
        *("add", "add_", "sub", "sub_", "rsub", "mul", "mul_", "div", "div_", "neg", "square", "pow", "pow_", "lerp"),
        *("lerp_", "addcmul", "addcmul_", "addcdiv", "addcdiv_", "sqrt", "sqrt_", "rsqrt", "rsqrt_", "reciprocal"),
        *("reciprocal_", "copy_", "clone", "zeros_like", "zero_", "maximum", "to", "_to_copy", "square_", "neg_"),
    )
)  # of Adam's step, however it is written
ROOTS = ("sqrt", "sqrt_", "rsqrt", "rsqrt_")
OF_TORCH = (
    *("ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "LBFGS", "Muon", "NAdam", "RAdam"),
    *("RMSprop", "Rprop", "SGD", "SparseAdam", "ZeroRedundancyOptimizer"),
)


@dataclass(frozen=True)
class Written:
    """An optimizer class of the script, with the tensors and numbers that it updates."""

    loop: OptimizerLoop
    tensors: int
    numbers: int

    @property
    def calls(self) -> float:
        """Operators per step."""
        return sum(self.loop.operators.values())

    def replacement(self, *, cpu: bool) -> str | None:
        """What computes the same in fewer calls; None where that is not known to be faster."""
        each = {name for name, calls in self.loop.operators.items() if calls >= OF_EACH * self.tensors}
        if each <= ELEMENTWISE and "rms" not in self.loop.optimizer.lower():
            return FUSED_ADAM if each.intersection(ROOTS) else FUSED_SGD
        return FOREACH if not cpu or self.numbers <= SMALL_NUMBERS * self.tensors else None


def written(run: RunView) -> Iterator[Written]:
    """The classes whose step is a loop over tensors, as far as the detailed window shows them."""
    for loop in run.measured.known("optimizer_loops") or []:
        optimizers = [
            optimizer for optimizer in run.any_facts("optimizers").optimizers if optimizer.name == loop.optimizer
        ]
        tensors = sum(optimizer.parameter_tensors for optimizer in optimizers)
        found = Written(loop, tensors, sum(optimizer.parameters for optimizer in optimizers))
        if tensors and found.calls >= CALLS_EACH * tensors:
            yield found


def unknown(run: RunView) -> bool:
    """Whether a class that torch lacks steps, and no detailed window shows who wrote it."""
    others = any(optimizer.name not in OF_TORCH for optimizer in run.any_facts("optimizers").optimizers)
    return others and run.measured.known("optimizer_loops") is None
