"""Models that an optimizer updates while they are in evaluation mode."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class EvaluationModeFacts:
    """One optimizer, and what it updates.

    `model`: the class of the innermost module that holds all of its parameters; `dropouts` and `norms`: the layers in
    it that evaluation mode changes, dropout with p > 0 and BatchNorm with running statistics and trained parameters;
    `names`: some of them, by their path in the model. `steps` of the `recorded_steps` found no module with parameters
    of the optimizer, and none of these layers, in training mode. `trained_before`: whether an earlier recorded step
    did. `eval_where`: the script's last call of `.eval()` on the model, as `function (file:line)`. `keeps_where`: a
    call that the recording did not reach, in a training loop that never switches back to training mode.
    """

    model: str
    dropouts: int = 0
    norms: int = 0
    names: list[str] = field(default_factory=list)
    steps: int = 0
    recorded_steps: int = 0
    trained_before: bool = False
    eval_where: str | None = None
    keeps_where: str | None = None
