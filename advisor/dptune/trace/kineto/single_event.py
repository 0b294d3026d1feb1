"""One event by itself, whatever its fields hold."""

from __future__ import annotations

import msgspec

from dptune.trace.kineto.repair import decoded
from dptune.trace.kineto.schema import Digits, Event

_EVENT = msgspec.json.Decoder(Event, float_hook=Digits)
_EACH = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ANY = msgspec.json.Decoder(float_hook=Digits)
_WORDS = ("ph", "cat", "name", "pid", "tid")


def event(text: bytes) -> Event | None:
    """The event that a JSON object holds, mended where it does not parse; None where that does not help.

    A word that no parser takes, such as a number of 5,000 digits, is its text.
    """
    found: Event | None = decoded(_EVENT, text)
    if found is not None:
        return found
    each: dict[str, msgspec.Raw] | None = decoded(_EACH, text)
    if each is None:
        return None
    found = Event()
    for name in Event.__struct_fields__:
        if name in each:
            setattr(found, name, _word(each[name]) if name in _WORDS else each[name])
    return found


def _word(raw: msgspec.Raw) -> object:
    text = bytes(raw)
    value = decoded(_ANY, text)
    return Digits(text.decode("utf-8", "replace")) if value is None and text.strip() != b"null" else value
