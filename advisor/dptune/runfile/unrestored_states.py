"""Optimizers that start without the state that a checkpoint, or the optimizer before them, has for them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class UnrestoredStateFacts:
    """An optimizer whose first step has no state, although the script loads a checkpoint with weights and state.

    `where` is the line that makes the optimizer, `loaded_at` the line that loads the checkpoint. `key`: under which
    the checkpoint has the optimizer's state; `progress`: under which it has the epoch or step that the script continues
    at. All of the `parameters` of the optimizer start with the checkpoint's weights. `renewed`: how many optimizers the
    line created for the same parameters, each for a step or two; 0 where a checkpoint is meant.
    """

    optimizer: str
    where: str | None
    loaded_at: str | None
    key: str
    progress: str
    parameters: int = 0
    renewed: int = 0
