"""Parts of an advice that are left out where their value is not known."""

from __future__ import annotations

from dptune.advice import Evidence


def known(label: str, value: str | float | None) -> list[Evidence]:
    """One evidence; none where the value is None, empty or 0."""
    return [Evidence(label=label, value=value)] if value else []


def in_parentheses(where: str | None) -> str:
    """A line of the script behind what a title names; empty where it is not known."""
    return f" ({where})" if where else ""
