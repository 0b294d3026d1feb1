"""JSON that C++ wrote carelessly, made readable: one event at a time.

Seen in the wild: control characters and bad bytes in kernel names, `inf` and `nan` from printf, unescaped Windows
paths (pytorch#98432, kineto#80), a comma before a closing bracket.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from dptune.trace.kineto.scan import STRING

# What decoders raise; the errors of msgspec are ValueErrors in its later versions only.
REFUSED = (msgspec.MsgspecError, ValueError, RecursionError)

# A string that is never closed is a token too: it would be looked for anew at each quote inside of it.
_TOKEN = re.compile(
    rb"(?P<string>" + STRING + rb"?)|(?P<number>-?\b(?:nan|inf(?:inity)?)\b)|(?P<comma>,(?=\s*[}\]]))",
    re.DOTALL | re.IGNORECASE,
)
_ESCAPE = re.compile(
    rb'\\(?:["\\/bfnrt]|u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}'
    rb"|(?P<half>u[dD][89a-fA-F][0-9a-fA-F]{2})|u[0-9a-fA-F]{4}|(?P<bad>.))",
    re.DOTALL,
)
_CONTROL = re.compile(rb"[\x00-\x1f]")


def decoded(decoder: Any, text: bytes) -> Any:
    """What a msgspec decoder makes of the text, mended where it does not take it; None where that does not help."""
    for mend in (bytes, repair):
        try:
            return decoder.decode(mend(text))
        except REFUSED:
            pass
    return None


def repair(text: bytes) -> bytes:
    """The same JSON with everything that no parser accepts made harmless; NaN and infinities become strings."""
    text = text.decode("utf-8", errors="replace").encode("utf-8")
    return _TOKEN.sub(_mend, text)


def _mend(match: re.Match[bytes]) -> bytes:
    if match["number"] is not None:
        return b'"' + match[0] + b'"'
    if match["comma"] is not None:
        return b""
    string = match["string"]
    if b"\\" not in string and not _CONTROL.search(string):
        return string
    string = _ESCAPE.sub(_mend_escape, string)
    return _CONTROL.sub(lambda m: b"\\u%04x" % m[0][0], string)


def _mend_escape(match: re.Match[bytes]) -> bytes:
    """Half of a surrogate pair becomes the replacement character, what is no escape a backslash and that character."""
    if match["half"] is not None:
        return b"\\ufffd"
    return match[0] if match["bad"] is None else b"\\\\" + match["bad"]
