"""rank-NNNNN.facts.json: where the script made its parameters float64."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class DoubledFacts:
    """The call that made parameters of an optimizer float64: the user's line, and the function (`nn.Module.double`).

    `through` is the class of the module where the script makes its parameters float64.
    """

    where: str | None = None
    through: str = ""
