"""Walks damaged text: the whole events at its beginning, one by one.

Used only where a block cannot be decoded at once; follows quotes and brackets and never lines, since every writer
breaks lines elsewhere.
"""

from __future__ import annotations

import re
import sys

# Nothing here gives back what it took, so that damaged text is walked in one go. No choice stands in a possessive
# group: Python before 3.11.5 ends such a one too early (gh-106052).
STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_FLAT = rb'[{\[][^{}\[\]"]*+(?:' + STRING + rb'[^{}\[\]"]*+)*+[}\]]'  # an object or list that holds no other
_WHOLE = re.compile(_FLAT, re.DOTALL)
# What holds no bracket, a string, such a one; brackets of others; a quote that opens no string.
_BRACKETS = re.compile(rb'[^{}\[\]"]++|' + STRING + rb"|" + _FLAT + rb'|([{\[]++|[}\]]++|")', re.DOTALL)
_GAP = re.compile(rb"[\s,]*+")
# An element that is no object, up to the comma or bracket that ends it; a list is walked like an object.
_BARE = re.compile(STRING + rb"|null|true|false|-?(?:NaN|Infinity|inf|nan)|-?\d[\d.eE+-]*+", re.DOTALL)
_ENDS = re.compile(rb"\s*+[,\]]")
_LONGEST_WORD = len(b"-Infinity")
_LONGEST_LIST = 2**18  # bytes in place of an event: to find the end of nested ones takes a second for each MiB


class Walk:
    """A walk over `text` from `at`, which lies between the elements of `traceEvents`.

    After `element()` gave None: `closed` says that the closing bracket of the events stands at `at`; `broken` that no
    element can begin there; neither, that more text is needed.
    """

    def __init__(self, text: bytes, at: int = 0) -> None:
        self.text = text
        self.at = at
        self.closed = self.broken = False

    def element(self) -> bytes | None:
        """The text of the next whole element: an event where it is an object."""
        self.at = _GAP.match(self.text, self.at).end()  # type: ignore[union-attr]
        first = self.text[self.at : self.at + 1]
        self.closed = first == b"]"
        if not first or self.closed:
            return None
        if first == b"[":
            close = closing(self.text, self.at, self.at + _LONGEST_LIST)
            self.broken = close is None and len(self.text) - self.at >= _LONGEST_LIST
        else:
            close = closing(self.text, self.at) if first == b"{" else self._bare()
        if close is None:
            return None
        if first != b"{" and not _ENDS.match(self.text, close):
            self.broken = bool(self.text[close:].strip())
            return None
        begin, self.at = self.at, close
        return self.text[begin:close]

    def _bare(self) -> int | None:
        """One past the string, number or word at `at`; None where none begins there or more text is needed."""
        if found := _BARE.match(self.text, self.at):
            return found.end()
        self.broken = self.text[self.at : self.at + 1] != b'"' and len(self.text) - self.at > _LONGEST_WORD
        return None


def closing(text: bytes, at: int, limit: int = sys.maxsize) -> int | None:
    """One past the bracket that closes the one at `at`; None where the text ends first, or at `limit`."""
    if flat := _WHOLE.match(text, at, limit):
        return flat.end()
    depth = 1
    for match in _BRACKETS.finditer(text, at + 1, limit):
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
