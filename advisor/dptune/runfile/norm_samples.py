"""BatchNorm layers that normalize over few samples."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class NormSampleFacts:
    """Trained BatchNorm layers in training mode that get at most `samples` samples in each call, by the warm-up steps.

    `layers` of all `of_layers`; `values`: the most values of a channel in one call of such a layer. `names`: some of
    them, by their path in the model; `where`: the line of the script that runs one.
    """

    layers: int
    of_layers: int
    samples: int
    values: int
    names: list[str] = field(default_factory=list)
    where: str | None = None
