"""Limitations of a run's data: found while it is read and measured, listed in every report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SCHEMA_NEWER = "schema-newer"  # the code where a newer dptune wrote a file in another form


@dataclass(frozen=True)
class Finding:
    """One limitation of a run's data. `text` is a sentence without its full stop."""

    code: str
    level: Literal["info", "partial", "unjudgeable"]
    text: str
