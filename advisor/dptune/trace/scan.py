"""Walks a damaged trace file: its header and its events one by one, as far as they go.

Used only where the whole file cannot be decoded at once; follows quotes and brackets and never lines, since every
writer breaks lines elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_BRACKET = re.compile(rb'"(?:[^"\\]|\\.)*+"|[{}\[\]"]', re.DOTALL)
_GAP = re.compile(rb"[\s,]*")
_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')


@dataclass
class Scan:
    """The outline of a file: where the events begin, and after the walk where and why it ended.

    `header` and `footer` are JSON objects of what stands before and after the events. `end` is the byte at which
    the walk ended; `whole` whether the closing bracket of the events was reached there.
    """

    text: bytes
    header: bytes
    begin: int
    end: int = 0
    whole: bool = False
    footer: bytes = b"{}"

    def events(self) -> Iterator[bytes]:
        """The text of each whole event. Stops at the first place that no event can begin or end at."""
        at = self.begin
        while True:
            self.end = at = _GAP.match(self.text, at).end()  # type: ignore[union-attr]
            if self.text[at : at + 1] == b"]":
                self.whole = True
                rest = self.text[at + 1 :].strip().removeprefix(b",")
                self.footer = b"{" + rest if rest.rstrip().endswith(b"}") else b"{}"
                return
            if self.text[at : at + 1] != b"{":
                return
            close = _closing(self.text, at)
            if close is None:
                return
            yield self.text[at:close]
            at = close


def outline(text: bytes) -> Scan | None:
    """Find the events of a file; None where it has none."""
    start = _GAP.match(text).end()  # type: ignore[union-attr]
    if text[start : start + 1] == b"[":
        return Scan(text, b"{}", start + 1)
    key = _KEY.search(text)
    if key is None:
        return None
    return Scan(text, text[start : key.start()].rstrip().removesuffix(b",") + b"}", key.end())


def _closing(text: bytes, at: int) -> int | None:
    """One past the bracket that closes the one at `at`; None where the text ends first."""
    depth = 0
    for match in _BRACKET.finditer(text, at):
        token = match[0]
        if token in (b"{", b"["):
            depth += 1
        elif token in (b"}", b"]"):
            depth -= 1
            if not depth:
                return match.end()
        elif token == b'"':
            return None
    return None
