"""What tools answer: parts of `--format json`, cut to a size that an agent can read, with the next step."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

MOST_CHARACTERS = 20_000  # of an answer as the indented JSON text that a client gets: about 5,000 tokens
_LONGEST_TEXT = 4000
_LEAST_ROOM = 100  # characters of a part
_PLAIN = 20  # entries from which on lists of numbers or texts, for example of ranks, are cut before other lists

Answer = dict[str, Any]


def answer(document: Mapping[str, Any], parts: Sequence[str], next_step: str) -> Answer:
    """These parts of a document, bounded; `left_out` has how many entries of which lists were cut."""
    picked: Answer = {name: document[name] for name in parts if document.get(name) not in (None, [], {}, "")}
    return bounded({**picked, "next_step": next_step})


def bounded(found: Answer) -> Answer:
    """The same, with the largest lists cut from their end until it is small enough, and at last texts.

    A list keeps its first entry. `left_out` has the number of entries cut, by the path of the list.
    """
    if size(found) <= MOST_CHARACTERS:
        return found
    kept: Answer = json.loads(json.dumps(found))  # a copy
    left_out: dict[str, int] = {}
    while (excess := size({**kept, "left_out": left_out}) - MOST_CHARACTERS) > 0:
        path, longest = _largest(kept)
        if not longest:
            return _shortened(kept, left_out)
        entries = min(len(longest) // 2, max(1, len(longest) * excess // size(longest)))
        del longest[len(longest) - entries :]
        left_out[path] = left_out.get(path, 0) + entries
    return {**kept, "left_out": left_out}


def text(words: str, most: int = _LONGEST_TEXT) -> str:
    """A text, cut in its middle where it is longer than `most` characters."""
    if len(words) <= most:
        return words
    half = most // 2
    return f"{words[:half]}\n... {len(words) - 2 * half} characters left out ...\n{words[-half:]}"


def size(value: Any) -> int:
    """The characters of a value in the text of an answer, as the SDK writes it."""
    return len(json.dumps(value, indent=2, ensure_ascii=False))


def _largest(found: Answer) -> tuple[str, list[Any]]:
    """The list to cut, with its path: the largest, or the innermost one that is most of its parent.

    Long lists of plain values come first, so that recommendations stay whole where lists of ranks make an answer long.
    """
    lists = list(_lists(found))
    plain = [(path, value) for path, value in lists if len(value) > _PLAIN and not isinstance(value[0], dict | list)]
    chosen: tuple[str, list[Any]] = ("", [])
    taken = 0
    for path, value in plain or lists:
        inside = bool(chosen[1]) and path.startswith(f"{chosen[0]}.")
        if (room := size(value)) > (taken // 2 if inside else taken):
            chosen, taken = (path, value), room
    return chosen


def _lists(value: Any, path: str = "") -> Iterator[tuple[str, list[Any]]]:
    """The lists of more than one entry, each with its path (`advice.0.places`), and before those inside it."""
    if isinstance(value, list) and len(value) > 1:
        yield path, value
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, entry in entries:
        yield from _lists(entry, f"{path}.{name}" if path else str(name))


def _shortened(found: Answer, left_out: Mapping[str, int]) -> Answer:
    """What is too large with single entries: texts are cut, and parts that stay too large are cut as JSON text."""
    more = {"left_out": dict(left_out)} if left_out else {}
    room = MOST_CHARACTERS // len(found)
    while True:
        parts = {name: value if size(value) <= room else _cut(value, room) for name, value in found.items()}
        if size({**parts, **more}) <= MOST_CHARACTERS or room <= _LEAST_ROOM:
            return {**parts, **more}
        room //= 2  # a quote in a text is two characters in JSON, a control character six


def _cut(value: Any, room: int) -> str:
    return text(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), room)
