"""Environment variables that were set from outside, as the script sees them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class VariableFacts:
    """An environment variable that was set from outside, with its value in the script; None where it is not set.

    Secrets in `value` are hidden; `as_asked` compares the whole value.
    """

    name: str
    value: str | None = None
    as_asked: bool = False
