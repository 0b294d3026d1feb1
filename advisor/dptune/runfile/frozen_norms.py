"""BatchNorm layers with frozen parameters that run in training mode."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class FrozenNormFacts:
    """Such layers, with running statistics, as they ran in the warm-up steps.

    `parts`: the outermost modules without a trained parameter that hold them, by their path in the model; `names`: some
    of the layers. `train_where`: the script's last call of `.train()`; `runs_at`: the line that runs such a layer.
    """

    layers: int
    parts: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    train_where: str | None = None
    runs_at: str | None = None
