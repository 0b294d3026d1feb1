"""Text from a trace made safe to show.

Kernel names, file names and host names are other people's bytes: they may hold escape codes that repaint a terminal,
line breaks that forge a line of the report, and marks that reverse the direction of text.
"""

from __future__ import annotations

import unicodedata

# Control, format (bidirectional marks, zero width), surrogate, private use, unassigned, line and paragraph separator.
_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def visible(text: str) -> str:
    r"""The text with every character that cannot be seen written as its code: `\x1b`, `\u202e`."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_code(c) if unicodedata.category(c) in _HIDDEN else c for c in text)


def _code(character: str) -> str:
    number = ord(character)
    if number <= 0xFF:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number <= 0xFFFF else f"\\U{number:08x}"
