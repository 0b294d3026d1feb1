"""Warnings of torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class WarningFacts:
    """A warning of torch about data-parallel training, and the user's line that brought it about."""

    text: str
    where: str | None = None
    times: int = 1
