"""What stands after the events of a file: all of it, or its whole values where it breaks off."""

from __future__ import annotations

import re

from dptune.trace.kineto.scan import STRING, closing

_KEY = re.compile(rb"[\s,]*+(" + STRING + rb")\s*+:\s*+", re.DOTALL)
# A string, or a number or word that something follows: one at the end may have been longer.
_FLAT = re.compile(STRING + rb'|[^\s,{}\[\]"]++(?=[\s,}])', re.DOTALL)
_END = re.compile(rb"[\s,]*+\}")


def footer(text: bytes) -> tuple[bytes, str]:
    """A JSON object of the whole values in the text, and what is wrong with its end ("" where nothing is).

    `text` follows the closing bracket of the events in an object.
    """
    pairs, at = [], 0
    while key := _KEY.match(text, at):
        end = _value(text, key.end())
        if end is None:
            break
        pairs.append(b"%s:%s" % (key[1], text[key.end() : end]))
        at = end
    if end_of_object := _END.match(text, at):
        junk = text[end_of_object.end() :].strip()
        wrong = ", where trailing data follows the trace" if junk else ""
    else:
        wrong = f": {'some' if pairs else 'all'} of what follows the events is missing"
    return b"{%s}" % b",".join(pairs), wrong


def _value(text: bytes, at: int) -> int | None:
    """One past the end of the value that begins at `at`; None where it has none."""
    if text[at : at + 1] in (b"{", b"["):
        return closing(text, at)
    found = _FLAT.match(text, at)
    return None if found is None else found.end()
