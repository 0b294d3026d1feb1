"""What tools answer: parts of `--format json`, cut to a size that an agent can read, with the next step."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

MOST_CHARACTERS = 20_000  # of an answer as JSON: about 5,000 tokens
_LONGEST_TEXT = 4000
_FEWEST = 1  # entries that a cut list keeps

Answer = dict[str, Any]


def answer(document: Mapping[str, Any], parts: Sequence[str], next_step: str) -> Answer:
    """These parts of a document, bounded; `left_out` has how many entries of which lists were cut."""
    picked: Answer = {name: document[name] for name in parts if document.get(name) not in (None, [], {}, "")}
    return bounded({**picked, "next_step": next_step})


def bounded(found: Answer) -> Answer:
    """The same, with the longest lists cut from their end, and at last texts, until it is small enough."""
    kept = dict(found)
    left_out: dict[str, int] = {}
    while _size(kept) > MOST_CHARACTERS:
        lists = {name: value for name, value in kept.items() if isinstance(value, list) and len(value) > _FEWEST}
        if not lists:
            return {**_shortened(kept), "left_out": left_out} if left_out else _shortened(kept)
        longest = max(lists, key=lambda name: _size(lists[name]))
        kept[longest] = lists[longest][:-1]
        left_out[longest] = left_out.get(longest, 0) + 1
    return {**kept, "left_out": left_out} if left_out else kept


def text(words: str) -> str:
    """A text, cut in its middle where it is long."""
    if len(words) <= _LONGEST_TEXT:
        return words
    half = _LONGEST_TEXT // 2
    return f"{words[:half]}\n... {len(words) - 2 * half} characters left out ...\n{words[-half:]}"


def _shortened(found: Answer) -> Answer:
    """What is too large in one piece: parts as JSON text, cut."""
    room = MOST_CHARACTERS // max(1, len(found))
    return {name: value if _size(value) <= room else text(json.dumps(value))[:room] for name, value in found.items()}


def _size(value: Any) -> int:
    return len(json.dumps(value))
