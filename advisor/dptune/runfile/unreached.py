"""Parameters that an optimizer holds and that no backward pass gives a gradient, though their modules run."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class UnreachedFacts:
    """Modules of one optimizer whose outputs require gradients, and whose parameters get none.

    `names` are the outermost of these modules. Of `parameters` of the optimizer that require gradients, `unreached` got
    none in all `steps` of the warm-up, and their modules ran in `runs` of them. `where`: the line that makes the
    optimizer.
    """

    optimizer: str
    names: list[str] = field(default_factory=list)
    unreached: int = 0
    parameters: int = 0
    steps: int = 0
    runs: int = 0
    where: str | None = None
