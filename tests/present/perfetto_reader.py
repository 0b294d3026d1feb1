"""A plain reader of Perfetto's protobuf wire format, which shares no code with what writes it.

Field numbers are those of protos/perfetto/trace in Perfetto's sources.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

SLICE_BEGIN, SLICE_END = 1, 2
_TRUE = {"process": 3, "thread": 4}


@dataclass
class Track:
    uuid: int
    parent: int
    name: str
    kind: str  # process, thread, or "" for one with a name alone
    pid: int = 0
    tid: int = 0


@dataclass
class Slice:
    track: int
    name: str
    category: str
    start_ns: int
    end_ns: int = -1
    leaving: list[int] = field(default_factory=list)
    arriving: list[int] = field(default_factory=list)
    details: dict[str, int | str] = field(default_factory=dict)


@dataclass
class Read:
    tracks: dict[int, Track] = field(default_factory=dict)
    slices: list[Slice] = field(default_factory=list)
    descriptors: int = 0

    def process_of(self, track: int) -> Track:
        found = self.tracks[track]
        while found.parent:
            found = self.tracks[found.parent]
        return found

    def of(self, process: str, track: str) -> list[Slice]:
        """The slices of the tracks of one name in the process whose name starts so."""
        return [
            each
            for each in self.slices
            if self.tracks[each.track].name == track and self.process_of(each.track).name.startswith(process)
        ]


def read(data: bytes) -> Read:
    found = Read()
    names: dict[tuple[int, int], str] = {}
    categories: dict[tuple[int, int], str] = {}
    opened: dict[int, list[Slice]] = defaultdict(list)
    last_ns: dict[int, int] = {}
    for number, packet in _fields(data):
        assert number == 1
        parts = _by_number(packet)
        sequence = parts[10][0]
        for interned in parts.get(12, []):
            for table, where in ((categories, 1), (names, 2)):
                for entry in _by_number(interned).get(where, []):
                    values = _by_number(entry)
                    table[sequence, values[1][0]] = values[2][0].decode()
        for descriptor in parts.get(60, []):
            _describe(found, _by_number(descriptor))
        for event in parts.get(11, []):
            values, time_ns = _by_number(event), parts[8][0]
            track = values[11][0]
            assert time_ns >= last_ns.get(track, 0), "a track's events are in order of time"
            last_ns[track] = time_ns
            if values[9][0] == SLICE_BEGIN:
                category = categories[sequence, values[3][0]] if 3 in values else ""
                begun = Slice(track, names[sequence, values[10][0]], category, time_ns)
                begun.leaving = [_fixed(each) for each in values.get(47, [])]
                begun.details = dict(_annotation(_by_number(each)) for each in values.get(4, []))
                opened[track].append(begun)
                found.slices.append(begun)
            else:
                assert values[9][0] == SLICE_END
                ended = opened[track].pop()
                ended.end_ns = time_ns
                ended.arriving = [_fixed(each) for each in values.get(48, [])]
    assert not any(opened.values()), "every slice ends"
    return found


def _describe(found: Read, values: dict) -> None:
    kind = next((kind for kind, number in _TRUE.items() if number in values), "")
    told = _by_number(values[_TRUE[kind]][0]) if kind else {}
    name = {"process": told.get(6), "thread": told.get(5), "": values.get(2)}[kind][0].decode()
    pid, tid = told.get(1, [0])[0], told.get(2, [0])[0] if kind == "thread" else 0
    uuid = values[1][0]
    found.tracks[uuid] = Track(uuid, values.get(5, [0])[0], name, kind, pid, tid)
    found.descriptors += 1


def _annotation(values: dict) -> tuple[str, int | str]:
    return values[10][0].decode(), values[4][0] if 4 in values else values[6][0].decode()


def _fixed(value: bytes) -> int:
    return struct.unpack("<Q", value)[0]


def _by_number(data: bytes) -> dict:
    found: dict[int, list] = defaultdict(list)
    for number, value in _fields(data):
        found[number].append(value)
    return found


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = _varint(data, at)
        else:
            assert wire in (1, 2)
            length = 8
            if wire == 2:
                length, at = _varint(data, at)
            value, at = data[at : at + length], at + length
            assert len(value) == length
        yield number, value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
