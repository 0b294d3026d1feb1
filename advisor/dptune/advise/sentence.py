"""A clause as a sentence."""

from __future__ import annotations


def sentence(text: str) -> str:
    """With a capital and a full stop; a file that it begins with keeps its name."""
    first = text.split(" ", 1)[0]
    begun = text if any(sign in first for sign in "._/") else f"{text[:1].upper()}{text[1:]}"
    return f"{begun}{'' if text.endswith('.') else '.'}"
