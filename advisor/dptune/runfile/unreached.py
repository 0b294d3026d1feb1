"""Parameters of an optimizer that get no gradient from any backward pass, although their modules run."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class UnreachedFacts:
    """Modules of one optimizer whose outputs require gradients, and whose parameters get none.

    `names`: the outermost of these modules. `parameters`: those of the optimizer that require gradients; `unreached` of
    them got none in any of the `steps` of the warm-up, and their modules ran in `runs` steps. `where`: the line that
    creates the optimizer.
    """

    optimizer: str
    names: list[str] = field(default_factory=list)
    unreached: int = 0
    parameters: int = 0
    steps: int = 0
    runs: int = 0
    where: str | None = None
