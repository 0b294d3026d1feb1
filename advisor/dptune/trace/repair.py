"""JSON that C++ wrote carelessly, made readable: one event at a time.

Seen in the wild: control characters and bad bytes in kernel names, `inf` and `nan` from printf, unescaped Windows
paths (pytorch#98432, kineto#80), a comma before a closing bracket.
"""

from __future__ import annotations

import re

_TOKEN = re.compile(
    rb'(?P<string>"(?:[^"\\]|\\.)*+")|(?P<number>-?\b(?:nan|inf(?:inity)?)\b)|(?P<comma>,(?=\s*[}\]]))',
    re.DOTALL | re.IGNORECASE,
)
_BAD_ESCAPE = re.compile(rb'\\(?:(["\\/bfnrt])|(u[0-9a-fA-F]{4})|.)', re.DOTALL)
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_CONTROL = re.compile(rb"[\x00-\x1f]")


def repair(text: bytes) -> bytes:
    """The same JSON with everything that no parser accepts made harmless; numbers that are not numbers become null."""
    text = text.decode("utf-8", errors="replace").encode("utf-8")
    return _TOKEN.sub(_mend, text)


def _mend(match: re.Match[bytes]) -> bytes:
    if match["number"] is not None:
        return b"null"
    if match["comma"] is not None:
        return b""
    string = _SURROGATE.sub(b"\\\\ufffd", match["string"])
    string = _BAD_ESCAPE.sub(lambda m: m[0] if m[1] or m[2] else b"\\\\" + m[0][1:], string)
    return _CONTROL.sub(lambda m: b"\\u%04x" % m[0][0], string)
