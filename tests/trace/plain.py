"""A trace as json.loads has it: what the columns of dptune are checked against. It shares no code with dptune.

Numbers are int or Decimal, read from their text; one plain loop over the events; nothing is tolerated that json.loads
does not take, but for the types of values.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, field
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import numpy as np

COLUMNS = ("ts_ns", "dur_ns", "stream", "device", "correlation", "external_id", "total_bytes", "position")
WORDS = {"name_id": "names", "category_id": "categories", "pid_id": "labels", "tid_id": "labels"}
FARTHEST_NS = 2**62  # a time beyond it is none
SPEAKING = ("gloo:", "mpi:", "ucc:", "c10d::", "_c10d_functional::", "nccl:", "record_param")
SIZES = ("In msg nelems", "Out msg nelems")
PHASES = tuple("XiICMFsftbenNODPRBEpTScvV(),")
ALLOCATION = ("Bytes", "Device Type", "Device Id", "Total Allocated", "Total Reserved", "Addr")
OLDEST = {"CPU functions": "Operator", "CUDA functions": "Kernel"}  # traces of before 2021 write no categories


@dataclass
class Plain:
    """What a plain reading finds; a list for each column, in the order of the file."""

    events: int = 0
    negative: int = 0
    cut: int = 0
    unreadable: int = 0
    columns: dict[str, list[Any]] = field(default_factory=lambda: {name: [] for name in (*COLUMNS, *WORDS)})
    arguments: list[dict[str, Any]] = field(default_factory=list)
    collectives: list[tuple[Any, ...]] = field(default_factory=list)
    memory: list[tuple[int, ...]] = field(default_factory=list)
    counters: list[tuple[int, str, float]] = field(default_factory=list)
    thread_names: dict[tuple[str, str], str] = field(default_factory=dict)


def document(text: bytes | str) -> Any:
    """The JSON with exact numbers. NaN and the infinities are strings."""
    return json.loads(text, parse_float=Written, parse_int=_whole, parse_constant=str)


def read(path: Path) -> Plain:
    """Read a file, packed or not."""
    data = path.read_bytes()
    return reading(document(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data))


def reading(trace: Any) -> Plain:
    """Go through the events of a trace that json.loads returned."""
    events = trace if isinstance(trace, list) else trace["traceEvents"]
    found = Plain(events=len(events))
    for position, event in enumerate(_whole_ones(events, found)):
        if not isinstance(event, dict):
            continue
        args = event.get("args")
        phase, name = event.get("ph"), event.get("name")
        found.unreadable += not isinstance(phase, str) or phase not in PHASES
        if phase == "X":
            _complete(found, position, event, args if isinstance(args, dict) else {})
        elif phase == "i" and name == "[memory]" and isinstance(args, dict):
            at = nanoseconds(event.get("ts"))
            if at is not None:
                found.memory.append((at, *(whole(args.get(key)) for key in ALLOCATION)))
        elif phase == "C" and isinstance(args, dict):
            at = nanoseconds(event.get("ts"))
            for key, value in args.items() if at is not None else ():
                if isinstance(value, int | Decimal) and not isinstance(value, bool) and abs(value) <= Decimal("1e308"):
                    found.counters.append((at, f"{label(name)}: {key}", float(value)))
        elif phase == "M" and name == "thread_name" and isinstance(args, dict) and "name" in args:
            found.thread_names.setdefault((label(event.get("pid")), label(event.get("tid"))), word(args["name"]))
    return found


def _whole_ones(events: list[Any], found: Plain) -> list[Any]:
    """The events, each of phase B as one of phase X that lasts to its E; those without the other half are counted.

    An E takes the nearest B before it on its thread of its name (of any, if it has none) that none took; what began
    between the two on this thread and was not taken cannot be taken any more.
    """
    whole, free = list(events), []
    for position, event in enumerate(events):
        phase = event.get("ph") if isinstance(event, dict) else None
        if phase == "B":
            free.append(position)
        elif phase == "E":
            same = [
                at for at in free if all(label(events[at].get(key)) == label(event.get(key)) for key in ("pid", "tid"))
            ]
            name = label(event.get("name"))
            fits = [at for at in same if not name or label(events[at].get("name")) == name]
            if not fits:
                found.cut += 1
                continue
            free = [at for at in free if at not in same or at < fits[-1]]
            found.cut += sum(at > fits[-1] for at in same)
            begin, end = (nanoseconds(each.get("ts")) for each in (events[fits[-1]], event))
            lasts = None if begin is None or end is None else Decimal(end - begin) / 1000
            whole[fits[-1]] = {**events[fits[-1]], "ph": "X", "dur": lasts}
    found.cut += len(free)
    return whole


def _thread(event: dict[str, Any]) -> tuple[str, str]:
    return label(event.get("pid")), label(event.get("tid"))


def _complete(found: Plain, position: int, event: dict[str, Any], args: dict[str, Any]) -> None:
    ts, dur = nanoseconds(event.get("ts")), nanoseconds(event.get("dur", 0))
    if ts is None or dur is None or ts + dur > FARTHEST_NS:
        found.unreadable += 1
        return
    name, category, pid = label(event.get("name")), event.get("cat"), label(event.get("pid"))
    external = whole(args.get("External id"))
    row = {
        "ts_ns": ts,
        "dur_ns": max(dur, 0),
        "stream": whole(args.get("stream")),
        "device": whole(args.get("device")),
        "correlation": whole(args.get("correlation")),
        "external_id": whole(args.get("external id")) if external == -1 else external,
        "total_bytes": max(whole(args.get("bytes")), -1),
        "position": position,
        "name_id": name,
        "category_id": OLDEST.get(pid, "") if category is None else label(category),
        "pid_id": pid,
        "tid_id": label(event.get("tid")),
    }
    said = args.get("Collective name")
    if (
        said is not None
        or args.get("In msg nelems") is not None
        or ("Input Dims" in args and name.startswith(SPEAKING))
    ):
        group = (args.get("Process Group Name"), args.get("Process Group Ranks"))
        found.collectives.append(
            (
                len(found.columns["ts_ns"]),
                _spoken(said),
                *(whole(args.get(key)) for key in SIZES),
                _spoken(args.get("dtype")),
                whole(args.get("Group size")),
                *(_spoken(each) for each in group),
                whole(args.get("Seq")),
                *(_text(args[key]) if key in args else None for key in ("Input Dims", "Input type")),
            )
        )
    found.negative += dur < 0
    found.arguments.append(args)
    for column, value in row.items():
        found.columns[column].append(value)


def nanoseconds(value: object) -> int | None:
    """Microseconds, a number or a string of one, to whole nanoseconds; the half goes to the even one."""
    if type(value) is int:
        exact = value * 1000
    else:
        if isinstance(value, str):
            try:
                value = Decimal(value.strip(" \t\r\n")) if value.isascii() and "_" not in value else None
            except InvalidOperation:
                return None
        if not isinstance(value, Decimal) or not value.is_finite() or value.adjusted() > 30:
            return None
        exact = int((value * 1000).to_integral_value(ROUND_HALF_EVEN))
    return exact if abs(exact) <= FARTHEST_NS else None


def whole(value: object) -> int:
    """A whole number or a string of one; -1 where it is neither or beyond 64 bits."""
    if isinstance(value, str):
        value = value.strip()
        digits = value[1:] if value[:1] == "-" else value
        value = int(value) if digits.isascii() and digits.isdigit() and len(value) < 25 else -1
    elif isinstance(value, Decimal):
        value = int(float(value)) if float(value).is_integer() else -1
    elif type(value) is not int:
        return -1
    return value if abs(value) < 2**63 else -1


class Written(Decimal):
    """A number with a point or an exponent, and the digits that it was written with (Decimal writes 1e5 as 1E+5)."""

    text: str

    def __new__(cls, text: str) -> Written:
        self = super().__new__(cls, text)
        self.text = text
        return self


def label(value: object) -> str:
    """What an event, its category, its process or thread is called: of a decimal, the digits as they are written."""
    return value.text if isinstance(value, Written) else str(value) if isinstance(value, Decimal) else word(value)


def word(value: object) -> str:
    """A word of the arguments as text."""
    return "" if value is None else str(float(value)) if isinstance(value, Decimal) else str(value)


def differences(trace: Any, plain: Plain) -> tuple[list[str], int]:
    """Where a `dptune.trace.Trace` is not what the plain reading found, and how many cells were compared."""
    columns, cells, wrong = trace.columns, 0, []
    if trace.events != plain.events:
        wrong.append(f"events: {trace.events} for {plain.events}")
    rows = len(plain.columns["ts_ns"])
    for name, expected in plain.columns.items():
        found = getattr(columns, name)
        cells += rows
        if len(found) != rows:
            wrong.append(f"{name}: {len(found)} rows for {rows}")
            continue
        if name in WORDS:
            found = _renumbered(getattr(columns, WORDS[name]), found, number := {})
            expected = [number.get(each, -2) for each in expected]
        differ = np.flatnonzero(found != np.array(expected, dtype=np.int64))
        if len(differ):
            at = int(differ[0])
            wrong.append(f"{name}: {len(differ)} differ, first row {at}: {found[at]} for {plain.columns[name][at]!r}")
    for name, found, expected in (
        ("collectives", collectives(trace), plain.collectives),
        ("memory", table(trace.memory), plain.memory),
        ("counters", counters(trace), plain.counters),
        ("thread names", sorted(trace.thread_names.items()), sorted(plain.thread_names.items())),
    ):
        cells += sum(len(each) for each in expected)
        if found != expected:
            first = next((pair for pair in zip(found, expected, strict=False) if pair[0] != pair[1]), "")
            wrong.append(f"{name}: {len(found)} rows for {len(expected)}, {first}")
    return wrong, cells


def table(rows: Any) -> list[tuple[Any, ...]]:
    """The rows of one of dptune's tables."""
    names = [name for name in rows.__dataclass_fields__ if name != "words"]
    return list(zip(*(getattr(rows, name).tolist() for name in names), strict=True))


def collectives(trace: Any) -> list[tuple[Any, ...]]:
    """What dptune holds of collectives, words for their numbers."""
    words = (*trace.collectives.words, None)  # the last is found by -1
    return [
        (row, words[kind], sent, got, words[dtype], size, words[group], words[ranks], seq, *map(_again, (dims, types)))
        for row, kind, sent, got, dtype, size, group, ranks, seq, *shapes in table(trace.collectives)
        for dims, types in [[words[each] for each in shapes]]
    ]


def counters(trace: Any) -> list[tuple[int, str, float]]:
    """The counters that dptune holds, words for their numbers."""
    return [(at, trace.counters.words[series], value) for at, series, value in table(trace.counters)]


def _renumbered(words: tuple[str, ...], ids: Any, number: dict[str, int]) -> Any:
    """The ids, after `number` was filled with the words; a word that stands twice makes them differ."""
    for each in words:
        number.setdefault(each, len(number))
    return np.array([number[each] for each in words] or [0], dtype=np.int64)[ids]


def _whole(digits: str) -> int | Decimal:
    return int(digits) if len(digits) < 4000 else Decimal(digits)  # int() refuses more


def _spoken(value: object) -> str | None:
    return None if value is None else word(value)


def _text(value: object) -> str:
    return json.dumps(value, default=str)


def _again(text: str | None) -> str | None:
    return None if text is None else _text(document(text))
