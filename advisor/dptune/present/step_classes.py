"""How the classes of a step's time are named and drawn: the same signs and colors in text, full-screen report and HTML.

A part is what a bar shows: one class, or several under one sign. Tables name each class, with the sign of its part.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from dptune.present.lines import Role, Span


class Part(NamedTuple):
    """Classes of the account that a bar shows as one: block character, ASCII sign, role in text, color in HTML."""

    name: str
    classes: tuple[str, ...]
    block: str
    sign: str
    role: Role
    color: str


class Class(NamedTuple):
    """One class of the account: its field, its name and what it means; `color` is a shade of its part's."""

    field: str
    name: str
    words: str
    color: str


# Colors from Okabe & Ito's set, which people who are color-blind can distinguish; they differ in grey, too.
PARTS = (
    Part("compute", ("compute_ns",), "█", "#", "good", "#009e73"),
    Part("exposed comm", ("exposed_transfer_ns",), "▓", "!", "error", "#d55e00"),
    Part("comm or waiting", ("exposed_unsplit_ns",), "▚", "?", "error", "#e9a98b"),  # ranks are missing to split it
    Part("waiting", ("exposed_waiting_ns",), "▒", "%", "error", "#cc79a7"),
    Part("copies", ("copy_ns", "memset_ns"), "≡", "=", "warning", "#0072b2"),
    Part("input", ("input_idle_ns",), "~", "~", "warning", "#e69f00"),
    Part("idle", ("other_idle_ns",), "·", ".", "dim", "#d0d0d0"),
)
CLASSES = (
    Class("compute_ns", "compute", "device busy computing", "#009e73"),
    Class("exposed_transfer_ns", "exposed communication", "not overlapped by compute", "#d55e00"),
    Class("exposed_unsplit_ns", "comm or waiting", "exposed comm, or waiting for ranks", "#e9a98b"),
    Class("exposed_waiting_ns", "waiting for ranks", "collective waits for a late rank", "#cc79a7"),
    Class("copy_ns", "copies", "copies that nothing overlaps", "#0072b2"),
    Class("memset_ns", "memsets", "memsets that nothing overlaps", "#56b4e9"),
    Class("input_idle_ns", "waiting for input", "idle: next batch not ready", "#e69f00"),
    Class("gc_idle_ns", "garbage collection", "idle: Python garbage collection", "#f0e442"),
    Class("malloc_idle_ns", "memory calls", "idle: driver allocates or frees", "#cfcfcf"),
    Class("sync_idle_ns", "blocking call", "idle: script blocked in a call", "#b8b8b8"),
    Class("launch_idle_ns", "launching", "idle: launch-bound", "#8f8f8f"),
    Class("dependency_idle_ns", "queued", "idle: launched, not started yet", "#6f6f6f"),
    Class("host_idle_ns", "host", "idle: Python, file I/O, sleep", "#a79a88"),
    Class("unexplained_idle_ns", "cause unknown", "idle: no event explains it", "#d0d0d0"),
)
NAMES = {kind.field: kind.name for kind in CLASSES}
_KINDS = {"copy": "copies", "memset": "memsets", "loader": "input"}  # of work in a lane, by the names of its parts
_IDLE = PARTS[-1]
_PART_OF = {field: part for part in PARTS for field in part.classes}
_COLORS = {kind.field: kind.color for kind in CLASSES}
_ASCII = str.maketrans({part.block: part.sign for part in PARTS} | {"─": "-", "▶": ">"})


def part_of(field: str) -> Part:
    """The part that shows a class; of the causes of idle time that is idle."""
    return _PART_OF.get(field, _IDLE)


def color_of(field: str) -> str:
    """The color of a class."""
    return _COLORS.get(field, _IDLE.color)


def kind_name(kind: str) -> str:
    """How a kind of work in a lane of the timeline is called."""
    return _KINDS.get(kind, kind)


def cells(shares: Iterable[tuple[Part, float]], room: int) -> Iterator[Span]:
    """A bar of `room` cells; neighbouring shares of one part are one span."""
    total, drawn = 0.0, 0
    for part, share in shares:
        total += share
        count = round(total * room) - drawn
        drawn += count
        if count > 0:
            yield Span(part.block * count, part.role)


def in_ascii(text: str) -> str:
    """The text with ASCII signs for block characters."""
    return text.replace(" · ", ", ").translate(_ASCII)
