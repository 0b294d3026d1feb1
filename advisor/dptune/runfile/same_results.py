"""Functions of the script that compute the same results in every step, or several times in one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class SameResultFacts:
    """Operators of one function whose inputs are those of an earlier call, and whose results agree with that.

    `function` is the script's function with the line that takes most, as `function (file:line)`. `operators` are their
    names, what takes longest first, `calls` their number in the last watched step, and `size` that of the largest
    result.

    That call is of an earlier step: no step changes the inputs. With `within_step` it is of the same step. `results`:
    how many different results they compute again. `whole`: the function calls no other operator in these steps.

    By watched step: `step_ns` its duration, `again_ns` the host time of these operators, and `forward_ns` that of all
    operators outside of backward passes and optimizers.
    """

    function: str
    operators: list[str] = field(default_factory=list)
    calls: int = 0
    size: list[int] = field(default_factory=list)
    within_step: bool = False
    results: int = 0
    whole: bool = False
    step_ns: list[int] = field(default_factory=list)
    again_ns: list[int] = field(default_factory=list)
    forward_ns: list[int] = field(default_factory=list)

    @property
    def kind(self) -> tuple[str, str]:
        """Equal on ranks that run the same script."""
        return self.function, "within a step" if self.within_step else "in every step"

    @property
    def times(self) -> float:
        """How often a step computes each result."""
        return 1 + self.calls / self.results if self.within_step and self.results else 1.0

    @property
    def step_share(self) -> float:
        """The share of the watched steps that the host spends in these operators."""
        return sum(self.again_ns) / sum(self.step_ns) if self.possible else 0.0

    @property
    def forward_part(self) -> float:
        """Their part of the host's time in operators outside of backward passes and optimizers."""
        known = self.possible and sum(self.forward_ns) > 0
        return min(1.0, sum(self.again_ns) / sum(self.forward_ns)) if known else 0.0

    @property
    def possible(self) -> bool:
        """Whether the times are those of the same steps, and each part is at most the whole."""
        if not self.step_ns or len({len(times) for times in (self.step_ns, self.again_ns, self.forward_ns)}) > 1:
            return False
        return all(step > 0 and again <= step for again, step in zip(self.again_ns, self.step_ns, strict=True))


def shares_again(functions: Sequence[SameResultFacts]) -> list[float]:
    """By watched step, the share of it that these functions together spend in such operators.

    Empty if the times of a function are impossible, or the functions were watched in different steps.
    """
    if not all(each.possible for each in functions) or len({len(each.step_ns) for each in functions}) > 1:
        return []
    steps = zip(*(zip(each.again_ns, each.step_ns, strict=True) for each in functions), strict=True)
    return [min(1.0, sum(again for again, _ in step) / step[0][1]) for step in steps]


@dataclass
class UnreadResultFacts(SameResultFacts):
    """Operators of one function whose results have gradients, and which no operator, backward pass or variable uses.

    `library` is the function of an installed package that computes them for the script's function, as
    `package.function`; `size`, `results` and `whole` are not known.
    """

    library: str = ""

    @property
    def kind(self) -> tuple[str, str]:
        """Equal on ranks that run the same script."""
        return self.function, f"unread {self.library}"
