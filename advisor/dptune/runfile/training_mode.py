"""Models that are evaluated in training mode."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class TrainingModeFacts:
    """A trained model that ran in training mode, on batches drawn with gradients disabled.

    `dropouts` and `norms`: the numbers of its layers that evaluation mode changes. `calls`: its calls on such batches;
    in `training` of them all these layers were in training mode. `where`: the line of the script that calls it.
    `ahead`: a line that will call it, found in the source of the training loop and not reached by the recording.
    """

    model: str
    dropouts: int = 0
    norms: int = 0
    calls: int = 0
    training: int = 0
    where: str | None = None
    ahead: str | None = None


@dataclass
class ActiveDropoutFacts:
    """A line in a module of the script that calls a dropout function of torch without regard to the module's mode.

    `operator` is the function, `module` the class, `probability` that of a value to be dropped. `evaluated`: it also
    ran while the module was in evaluation mode.
    """

    where: str
    operator: str
    module: str
    probability: float
    evaluated: bool = False
