"""Models that are evaluated in training mode."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class TrainingModeFacts:
    """A trained model that ran on batches drawn without gradients, in training mode.

    `dropouts` and `norms` are its layers that evaluation mode changes; `calls` its calls on such batches, of which
    `training` were made with all these layers in training mode. `where`: the script's line that calls it. `ahead`: a
    line that will, by the source of the training loop, which the recording did not reach.
    """

    model: str
    dropouts: int = 0
    norms: int = 0
    calls: int = 0
    training: int = 0
    where: str | None = None
    ahead: str | None = None
