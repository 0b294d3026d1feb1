"""How far the targets of a language model are ahead of its inputs."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class ShiftedLabelFacts:
    """One backward pass with a cross entropy over positions of embedded token ids.

    Of `targets` that the loss does not ignore, `after_next` equal the input two positions later, for the loss and the
    ids with most of them; `following` is the largest share of a loss's targets that equal the input one position later.
    `loss_shifts_at`: lines of the script's functions that compute cross entropies which slice from the second position
    on, where most targets are two positions ahead.
    """

    targets: int
    after_next: int
    following: float
    loss_shifts_at: list[str] = field(default_factory=list)
