"""Lines to text, with or without a terminal's colours."""

from __future__ import annotations

from collections.abc import Iterable

from dptune.present.lines import Line, Role
from dptune.present.visible import visible

_CODES: dict[Role, str] = {
    "strong": "1",
    "dim": "2",
    "code": "36",
    "note": "34",
    "warning": "33",
    "error": "1;31",
    "good": "32",
}


def paint(lines: Iterable[Line], colour: bool) -> str:
    """The lines as one text, each ended by a line break."""
    return "".join("".join(_painted(text, role, colour) for text, role in line).rstrip(" ") + "\n" for line in lines)


def _painted(text: str, role: Role, colour: bool) -> str:
    clean = visible(text)
    number = _CODES.get(role)
    return f"\x1b[{number}m{clean}\x1b[0m" if colour and number and clean.strip() else clean
