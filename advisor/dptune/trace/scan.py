"""Walks damaged text: the whole events at its beginning, one by one.

Used only where a block cannot be decoded at once; follows quotes and brackets and never lines, since every writer
breaks lines elsewhere.
"""

from __future__ import annotations

import re

# Nothing here gives back what it took, so that damaged text is walked in one go. No choice stands in a possessive
# group: Python before 3.11.5 ends such a one too early (gh-106052).
STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_FLAT = rb'[{\[][^{}\[\]"]*+(?:' + STRING + rb'[^{}\[\]"]*+)*+[}\]]'  # an object or list that holds no other
_WHOLE = re.compile(_FLAT, re.DOTALL)
# What holds no bracket, a string, such a one; brackets of others; a quote that opens no string.
_BRACKETS = re.compile(rb'[^{}\[\]"]++|' + STRING + rb"|" + _FLAT + rb'|([{\[]++|[}\]]++|")', re.DOTALL)
_GAP = re.compile(rb"[\s,]*+")


class Walk:
    """A walk over `text` from `at`, which lies between events.

    After `event()` gave None: `closed` says that the closing bracket of the events stands at `at`; `broken` that no
    event can begin there; neither, that more text is needed.
    """

    def __init__(self, text: bytes, at: int = 0) -> None:
        self.text = text
        self.at = at
        self.closed = self.broken = False

    def event(self) -> bytes | None:
        """The text of the next whole event."""
        self.at = _GAP.match(self.text, self.at).end()  # type: ignore[union-attr]
        first = self.text[self.at : self.at + 1]
        if first != b"{":
            self.closed = first == b"]"
            self.broken = bool(first) and not self.closed
            return None
        close = closing(self.text, self.at)
        if close is None:
            return None
        begin, self.at = self.at, close
        return self.text[begin:close]


def closing(text: bytes, at: int) -> int | None:
    """One past the bracket that closes the one at `at`; None where the text ends first."""
    if flat := _WHOLE.match(text, at):
        return flat.end()
    depth = 1
    for match in _BRACKETS.finditer(text, at + 1):
        brackets = match[1]
        if brackets is None:
            continue
        if brackets == b'"':
            return None
        if brackets[:1] in b"{[":
            depth += len(brackets)
        elif len(brackets) < depth:
            depth -= len(brackets)
        else:
            return match.start() + depth
    return None
