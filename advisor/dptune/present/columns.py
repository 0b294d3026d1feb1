"""How many columns of a terminal text takes: CJK characters and emoji take two, combining marks none."""

from __future__ import annotations

import unicodedata

_FILLER = "\ue000"  # private use: `visible` leaves none in a text


def columns_of(text: str) -> int:
    """The columns that a terminal gives the text."""
    return len(text) if text.isascii() else sum(map(_columns, text))


def cut_to(text: str, room: int) -> str:
    """As much of the start of a text as fits in `room` columns."""
    if text.isascii():
        return text[: max(room, 0)]
    used = 0
    for at, character in enumerate(text):
        used += _columns(character)
        if used > room:
            return text[:at]
    return text


def both_ends(text: str, room: int) -> str:
    """The text; both ends of one that takes more columns."""
    if columns_of(text) <= room:
        return text
    return f"{cut_to(text, room // 2 - 1)}..{cut_to(text[::-1], (room - 1) // 2)[::-1]}"


def padded(text: str, room: int, right: bool = False) -> str:
    """The text with spaces after it up to `room` columns; before it with `right`."""
    spaces = " " * max(0, room - columns_of(text))
    return spaces + text if right else text + spaces


def by_column(text: str) -> list[str]:
    """What each column of the text holds: "" for the second one of a wide character, a sign with its marks."""
    found: list[str] = []
    for character in text:
        width = _columns(character)
        if width:
            found += [character, ""][:width]
        elif found:
            found[-1] += character
    return found


def filled(text: str) -> str:
    """The text with a filler after each wide character, so that its length is its width; `unfilled` removes them."""
    return text if text.isascii() else "".join(c + _FILLER if _columns(c) > 1 else c for c in text)


def unfilled(text: str) -> str:
    """The text without the fillers."""
    return text.replace(_FILLER, "")


def _columns(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) == "Me":
        return 0
    return 1 + (unicodedata.east_asian_width(character) in "WF")
