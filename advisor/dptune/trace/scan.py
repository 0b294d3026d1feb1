"""Walks damaged text: the whole events at its beginning, one by one.

Used only where a block cannot be decoded at once; follows quotes and brackets and never lines, since every writer
breaks lines elsewhere.
"""

from __future__ import annotations

import re
import sys
from collections import deque

# Nothing here gives back what it took, so that damaged text is walked in one go. No choice stands in a possessive
# group: Python before 3.11.5 ends such a one too early (gh-106052).
STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_FLAT = rb'[{\[][^{}\[\]"]*+(?:' + STRING + rb'[^{}\[\]"]*+)*+[}\]]'  # an object or list that holds no other
_WHOLE = re.compile(_FLAT, re.DOTALL)
# What holds no bracket, a string, such a one; brackets of others; a quote that opens no string.
_BRACKETS = re.compile(rb'[^{}\[\]"]++|' + STRING + rb"|" + _FLAT + rb'|([{\[]++|[}\]]++|")', re.DOTALL)
_GAP = re.compile(rb"[\s,]*+")
_WORD = re.compile(STRING + rb'|[^\s,:{}\[\]"]++', re.DOTALL)
_UNFINISHED = -1
_MOST_VALUES = 10_000  # between two events
_LONGEST_VALUE = (
    2**18
)  # bytes of a list in which it is looked for its end, which takes a second for each MiB of brackets
_COMMA = re.compile(rb"\s*+(,?+)\s*+")


class Walk:
    """A walk over `text` from `at`, which lies between events.

    After `event()` gave None: `closed` says that the closing bracket of the events stands at `at`; `broken` that no
    event can begin there; neither, that more text is needed.
    """

    def __init__(self, text: bytes, at: int = 0) -> None:
        self.text = text
        self.at = at
        self.closed = self.broken = False
        self._values: deque[bytes] = deque()  # before `at`

    def event(self) -> bytes | None:
        """The text of the next whole event, or of another whole value that is in its place."""
        if self._values:
            return self._values.popleft()
        self.at = _GAP.match(self.text, self.at).end()  # type: ignore[union-attr]
        first = self.text[self.at : self.at + 1]
        if first != b"{":
            self.closed = first == b"]"
            if not first or self.closed:
                return None
            self._take_values()
            return self._values.popleft() if self._values else None
        close = closing(self.text, self.at)
        if close is None:
            return None
        begin, self.at = self.at, close
        return self.text[begin:close]

    def _take_values(self) -> None:
        """Take the values up to the next event or the end of the list; none where neither follows on them."""
        values: deque[bytes] = deque()
        at = self.at
        while (end := _value(self.text, at)) > at and len(values) < _MOST_VALUES:
            values.append(self.text[at:end])
            comma = _COMMA.match(self.text, end)
            at = comma.end()  # type: ignore[union-attr]
            after = self.text[at : at + 1]
            if after == b"]" or (after == b"{" and comma[1]):  # type: ignore[index]
                self.at, self._values = at, values
                return
            if not comma[1]:  # type: ignore[index]
                break
        self.broken = at < len(self.text) and end != _UNFINISHED


def _value(text: bytes, at: int) -> int:
    """One past the end of the value at `at`, which is no event; `at` itself where there is none."""
    first = text[at : at + 1]
    if first == b"[":
        end = closing(text, at, at + _LONGEST_VALUE)
        return end or (_UNFINISHED if len(text) < at + _LONGEST_VALUE else at)
    found = _WORD.match(text, at)
    return found.end() if found else _UNFINISHED if first == b'"' else at


def closing(text: bytes, at: int, limit: int = sys.maxsize) -> int | None:
    """One past the bracket that closes the one at `at`; None where the text ends first, or is at `limit`."""
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
