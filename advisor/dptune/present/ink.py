"""Lines to text, with or without a terminal's colours."""

from __future__ import annotations

from collections.abc import Iterable

from dptune.present.lines import Line, Role
from dptune.present.step_classes import in_ascii
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


def paint(lines: Iterable[Line], colour: bool, blocks: bool = True) -> str:
    """The lines as one text, each ended by a line break; `blocks`: whether block characters can be written."""
    return "".join(
        "".join(_painted(text, role, colour, blocks) for text, role in line).rstrip(" ") + "\n" for line in lines
    )


def _painted(text: str, role: Role, colour: bool, blocks: bool) -> str:
    clean = visible(text) if blocks else in_ascii(visible(text))
    number = _CODES.get(role)
    return f"\x1b[{number}m{clean}\x1b[0m" if colour and number and clean.strip() else clean
