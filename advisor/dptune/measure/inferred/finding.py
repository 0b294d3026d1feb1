"""A fact that was inferred, with how sure it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dptune.advice import Confidence


@dataclass(frozen=True)
class Inferred:
    """The value of a fact, `name` being its field in Facts, and of the fields of its records how sure each is.

    `parts` holds those fields whose value was inferred: others of the record are not known.
    """

    name: str
    value: Any
    confidence: Confidence
    parts: dict[str, Confidence]

    @classmethod
    def of(cls, name: str, value: Any, confidence: Confidence, /, **parts: Confidence) -> Inferred:
        """A fact, and how sure each part of it is."""
        return cls(name, value, confidence, parts)
