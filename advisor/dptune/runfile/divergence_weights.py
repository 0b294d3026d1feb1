"""How much a KL divergence counts in a loss, beside the reconstruction."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class DivergenceWeightFacts:
    """The KL divergence of a Gaussian posterior from the standard normal distribution, beside a reconstruction.

    A batch has `samples`, a sample `latents` dimensions and `elements` that `function` compares. Each value of the
    divergence counts `divergence_weight` times in the loss, and each element `reconstruction_weight` times. `passes`:
    backward passes with both, of `passes_seen` that were read. `where`: the line that sums up the divergence, or
    averages it.
    """

    samples: int = 1
    latents: int = 1
    elements: int = 1
    function: str = "mse_loss"
    divergence_weight: float = 1.0
    reconstruction_weight: float = 1.0
    where: str | None = None
    passes: int = 0
    passes_seen: int = 0

    @property
    def ratio(self) -> float:
        """The weight of the divergence over that of the reconstruction: 1 in the evidence lower bound."""
        return self.divergence_weight / self.reconstruction_weight

    @property
    def counted(self) -> float:
        """What the elements of a sample count together."""
        return self.reconstruction_weight * self.elements
