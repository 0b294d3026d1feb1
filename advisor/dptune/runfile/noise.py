"""What the gradient noise scale is estimated from."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class NoiseFacts:
    """Squares of the norms of gradients, by steps of the window `noise`, before they are clipped or unscaled.

    `of_passes`: of what each backward pass of this rank added to the gradient; `of_steps`: of the gradient that the
    passes of all ranks made; `why` there are none.
    """

    of_passes: list[list[float]] = field(default_factory=list)
    of_steps: list[float] = field(default_factory=list)
    why: str = ""
