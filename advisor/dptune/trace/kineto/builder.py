"""Events to columns: whole blocks of typed events at once, odd ones one at a time; the columns are the same."""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Sequence
from dataclasses import replace
from itertools import compress
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptune.trace.columns import NO_OPERATORS, NONE, Collectives, Columns, Counters, Memory, Operators
from dptune.trace.kernels import COLLECTIVE_PREFIXES, LEGACY_PROCESSES, OPERATOR_CATEGORIES
from dptune.trace.kineto.buffers import Labels, Table, WordMask, WordTable
from dptune.trace.kineto.clock import LIMIT_NS, all_nanoseconds, nanoseconds, short_nanoseconds
from dptune.trace.kineto.faults import faults, unusable
from dptune.trace.kineto.nesting import BEGINS, ENDS, MOST_OPEN, Nesting
from dptune.trace.kineto.operators import OperatorTable
from dptune.trace.kineto.repair import REFUSED, decoded, repair
from dptune.trace.kineto.schema import (
    ABSENT,
    PHASES,
    Args,
    Begin,
    Complete,
    Counter,
    End,
    Event,
    Instant,
    Named,
    TypedArgs,
    integer,
    label,
)

MOST_EVENTS = 100_000_000  # of any kind; complete ones are 7.6 GB as columns: what 30 GB of text hold
MOST_CHARACTERS = 2**29  # of distinct names and other words together
MEMORY_NAME = "[memory]"
THREAD_NAME = "thread_name"

_SHORT = ("name_id", "category_id", "pid_id", "tid_id", "position")
_ROWS = {
    name: np.int32 if name in _SHORT else np.int64
    for name in Columns.__dataclass_fields__
    if name not in ("names", "categories", "labels")
}
_COLLECTIVES = {name: np.int64 for name in Collectives.__dataclass_fields__ if name != "words"}
_MEMORY = dict.fromkeys(Memory.__dataclass_fields__, np.int64)
_COUNTERS = {"ts_ns": np.int64, "series": np.int64, "value": np.float64}
_INT64_MIN = -(2**63)  # has no opposite number, so no identity may be it
_HALVES = frozenset((Begin, End))
_KEPT = (Instant, Counter, Named, *_HALVES)
_ARGS = msgspec.json.Decoder(Args)
_ANY = msgspec.json.Decoder(float_hook=float)  # which takes 1e400 for infinite
_EACH = msgspec.json.Decoder(dict[str, msgspec.Raw])
_WRITTEN = ("input_dims", "input_types")  # stay as they were written


class Builder:
    """Collects events in the order of the file; `columns()` and the tables close it.

    `events` counts all of them, `negative` the durations below zero (taken as zero), `unreadable` events of no known
    phase and complete ones without a usable time, `skipped` elements that are no object. `faulty` counts the complete
    events of which some field has the wrong type, `fields` those fields by name; `described` the events that describe
    a collective, `unusable` those of them with an impossible argument, `arguments` those arguments by name.
    `thread_names` is by (pid, tid). An event of two halves (phases B and E) is one of phase X at the place of B.
    """

    def __init__(self, keep_operators: bool = False) -> None:
        self.events = self.negative = self.unreadable = self.skipped = self.faulty = 0
        self.described = self.unusable = 0
        self.fields: Counts[str] = Counts()
        self.arguments: Counts[str] = Counts()
        self.thread_names: dict[tuple[str, str], str] = {}
        self._rows, self._collectives = Table(_ROWS), Table(_COLLECTIVES)
        self._memory, self._counters = Table(_MEMORY), Table(_COUNTERS)
        self._names, self._categories, self._words, self._series = WordTable(), WordTable(), WordTable(), WordTable()
        self._pids = Labels(WordTable())
        self._tids = Labels(self._pids.words)
        self._waiting: list[tuple[int, ...]] = []
        self._speaking = WordMask(self._names, lambda name: name.startswith(COLLECTIVE_PREFIXES))
        self._operating = WordMask(self._categories, OPERATOR_CATEGORIES.__contains__)
        self._operators = OperatorTable() if keep_operators else None
        self._nesting = Nesting()
        self._halved = False
        self._moved: NDArray[np.int64] | None = None  # by row as it was added, the row in the order of the file

    @property
    def cut(self) -> int:
        """How many events of phase B or E are without their other half."""
        return self._nesting.cut + self._nesting.open

    @property
    def full(self) -> str:
        """Which limit was reached; "" for none."""
        if self.events > MOST_EVENTS:
            return f"{MOST_EVENTS:,} events"
        words = (self._names, self._categories, self._words, self._series, self._pids.words)
        if sum(each.characters for each in words) > MOST_CHARACTERS or len(self.thread_names) > MOST_EVENTS // 100:
            return f"{MOST_CHARACTERS:,} characters of names"
        if self._nesting.open > MOST_OPEN:
            return f"{MOST_OPEN:,} events without an end (phase B without E)"
        return ""

    def typed(self, events: Sequence[Any]) -> bool:
        """Take a block of typed events; False, and nothing taken, where one of them has to be looked at by itself."""
        whole = [kind is Complete for kind in map(type, events)]
        complete: list[Complete] = list(compress(events, whole))
        args = [event.args for event in complete]
        ts = all_nanoseconds([event.ts for event in complete])
        dur = short_nanoseconds([event.dur for event in complete])
        numbers = _typed_numbers(args)
        if ts is None or dur is None or numbers is None:
            return False
        negative = dur < 0
        np.maximum(dur, 0, out=dur)
        if (ts + dur > LIMIT_NS).any():
            return False
        rest = [event for event in events if type(event) in _KEPT] if len(complete) < len(events) else []
        if not _HALVES.isdisjoint(map(type, rest)) or not self._typed_rest(rest):
            return False
        below = int((numbers[-1] < NONE).sum())
        np.maximum(numbers[-1], NONE, out=numbers[-1])
        self._flush()
        names, categories, pids, tids = self._names, self._categories, self._pids, self._tids
        name_id = np.fromiter([names[event.name] for event in complete], np.int32, len(complete))
        category_id = np.fromiter([categories[event.cat] for event in complete], np.int32, len(complete))
        self._typed_collectives(name_id, args)
        if self._operators is not None:
            operators = np.flatnonzero(self._operating.of(category_id))
            self._operators.take(len(self._rows) + operators, [args[at] for at in operators.tolist()])
        self._rows.extend(
            (
                ts,
                dur,
                name_id,
                category_id,
                np.fromiter([pids[event.pid] for event in complete], np.int32, len(complete)),
                np.fromiter([tids[event.tid] for event in complete], np.int32, len(complete)),
                *numbers,
                np.flatnonzero(np.fromiter(whole, np.bool_, len(whole))) + self.events,
            )
        )
        self.negative += int(negative.sum())
        self.faulty += below
        self.fields["bytes"] += below
        self.events += len(events)
        return True

    def _typed_collectives(self, name_id: NDArray[np.int32], args: list[TypedArgs]) -> None:
        described = [at for at, each in enumerate(args) if each.collective is not None or each.in_elements is not None]
        shaped = [at for at in np.flatnonzero(self._speaking.of(name_id)).tolist() if args[at].input_dims != ABSENT]
        for at in sorted({*described, *shaped}):
            self._keep(len(self._rows) + at, args[at])

    def _typed_rest(self, rest: Sequence[Any]) -> bool:
        """Allocations, counters and names of threads; False, and nothing taken, where one of them is odd."""
        instants = [event for event in rest if type(event) is Instant]
        memory = [(each.ts, each.args) for each in instants if each.name == MEMORY_NAME and each.args is not None]
        if memory:
            ts = all_nanoseconds([at for at, _ in memory])
            args = [each for _, each in memory]
            columns = (
                _int64([each.size_bytes for each in args]),
                _int64([each.device_type for each in args]),
                _int64([each.device for each in args]),
                _int64([each.allocated_bytes for each in args]),
                _int64([each.reserved_bytes for each in args]),
                _int64([each.address for each in args]),
            )
            if ts is None or any(column is None for column in columns):
                return False
            self._memory.extend((ts, *columns))
        if len(instants) == len(rest):
            return True
        for event in rest:
            if type(event) is Counter:
                self._count(event.name, event.ts, event.args)
            elif type(event) is Named and event.name == THREAD_NAME:
                self._name_thread(event.pid, event.tid, event.args)
        return True

    def add(self, event: Event) -> None:
        """Take one element of `traceEvents`, whatever it holds."""
        position = self.events
        self.events += 1
        if event.ph == "X":
            dur = nanoseconds(bytes(event.dur)) if event.dur != ABSENT else 0
            self._add_complete(event, position, nanoseconds(bytes(event.ts)), dur)
        elif event.ph == BEGINS:
            self._nesting.begin(event, position)
        elif event.ph == ENDS:
            self._add_pair(event)
        else:
            if not (isinstance(event.ph, str) and event.ph in PHASES):
                self.unreadable += 1
            self._add_other(event)

    def _add_pair(self, end: Event) -> None:
        """The event that ends here, which is moved to the place of its beginning in `columns`."""
        if (begun := self._nesting.end(end)) is None:
            return
        self._halved = True
        ts, end_ns = nanoseconds(bytes(begun[0].ts)), nanoseconds(bytes(end.ts))
        self._add_complete(*begun, ts, None if ts is None or end_ns is None else end_ns - ts)

    def _add_complete(self, event: Event, position: int, ts: int | None, dur: int | None) -> None:
        """One row, unless its start or its duration, nanoseconds, is None or beyond the limit."""
        if ts is None or dur is None or ts + dur > LIMIT_NS:
            self.unreadable += 1
            return
        if dur < 0:
            self.negative += 1
            dur = 0
        args, wrong = _args(event.args)
        wrong += faults(event, args)
        self.faulty += bool(wrong)
        self.fields.update(wrong)
        external = integer(args.external_id)
        row = len(self._rows) + len(self._waiting)
        name = label(event.name)
        described = args.collective is not None or args.in_elements is not None
        if described or (args.input_dims != ABSENT and name.startswith(COLLECTIVE_PREFIXES)):
            self._keep(row, args)
        self._waiting.append(
            (
                ts,
                dur,
                self._names[name],
                self._categories[_category(event) if event.cat in (None, msgspec.UNSET) else label(event.cat)],
                self._pids[label(event.pid)],
                self._tids[label(event.tid)],
                integer(args.stream),
                integer(args.device),
                integer(args.correlation),
                integer(args.old_external_id) if external == NONE else external,
                max(integer(args.total_bytes), NONE),
                position,
            )
        )
        if len(self._waiting) >= 4096:
            self._flush()

    def _add_other(self, event: Event) -> None:
        if event.ph == "M" and event.name == THREAD_NAME:
            self._name_thread(event.pid, event.tid, event.args)
        elif event.ph == "C":
            self._count(label(event.name), event.ts, _any(event.args))
        elif event.ph == "i" and event.name == MEMORY_NAME:
            ts, args = nanoseconds(bytes(event.ts)), _any(event.args)
            if ts is not None and isinstance(args, dict):
                keys = ("Bytes", "Device Type", "Device Id", "Total Allocated", "Total Reserved", "Addr")
                self._memory.append_rows([(ts, *(integer(args.get(key)) for key in keys))])

    def _flush(self) -> None:
        self._rows.append_rows(self._waiting)
        self._waiting.clear()

    def _keep(self, row: int, args: TypedArgs | Args) -> None:
        wrong = [*unusable(args)]
        self.described += 1
        self.unusable += bool(wrong)
        self.arguments.update(wrong)
        words = self._words
        kind, dtype, group, ranks, dims, types = (
            NONE if word is None or word == ABSENT else words[_text(word)]
            for word in (
                args.collective,
                args.dtype,
                args.group,
                args.group_ranks,
                args.input_dims,
                args.input_types,
            )
        )
        sizes = (integer(args.in_elements), integer(args.out_elements))
        numbers = (integer(args.group_size), group, ranks, integer(args.sequence))
        self._collectives.append_rows([(row, kind, *sizes, dtype, *numbers, dims, types)])

    def _count(self, name: str, ts: msgspec.Raw, args: object) -> None:
        at = nanoseconds(bytes(ts))
        if at is None or not isinstance(args, dict):
            return
        for key, value in args.items():
            if type(value) in (int, float) and abs(value) <= 1e308:
                self._counters.append_rows([(at, self._series[f"{name}: {key}"], float(value))])

    def _name_thread(self, pid: object, tid: object, args: msgspec.Raw) -> None:
        said = _any(args)
        key = (label(pid), label(tid))
        if isinstance(said, dict) and "name" in said:
            self.thread_names.setdefault(key, label(said["name"]))

    def columns(self) -> Columns:
        """The complete events. To be called once, when all were added, and before the tables of their arguments."""
        self._flush()
        rows = self._rows.columns()
        if self._halved:
            self._moved = np.argsort(np.argsort(rows["position"]))
            rows = _sorted(rows, "position")
        names, categories, labels = tuple(self._names), tuple(self._categories), tuple(self._pids.words)
        return Columns(**rows, names=names, categories=categories, labels=labels)

    def collectives(self) -> Collectives:
        """What was said of collectives."""
        rows = self._collectives.columns()
        if self._moved is not None:
            rows = _sorted(rows | {"row": self._moved[rows["row"]]}, "row")
        return Collectives(**rows, words=tuple(self._words))

    def operators(self) -> Operators:
        """The arguments of operators that were kept."""
        found = NO_OPERATORS if self._operators is None else self._operators.operators()
        return found if self._moved is None else replace(found, row=self._moved[found.row])

    def memory(self) -> Memory:
        """The allocations."""
        return Memory(**self._memory.columns())

    def counters(self) -> Counters:
        """The counters."""
        return Counters(**self._counters.columns(), words=tuple(self._series))


def _sorted(columns: dict[str, Any], by: str) -> dict[str, Any]:
    order = np.argsort(columns[by])
    return {name: column[order] for name, column in columns.items()}


def _int64(values: list[int]) -> NDArray[np.int64] | None:
    try:
        column = np.fromiter(values, np.int64, len(values))
    except OverflowError:
        return None
    return None if (column == _INT64_MIN).any() else column


def _typed_numbers(args: list[TypedArgs]) -> list[NDArray[np.int64]] | None:
    """Stream, device, correlation, external id and bytes; None where one is beyond int64."""
    columns = (
        _int64([each.stream for each in args]),
        _int64([each.device for each in args]),
        _int64([each.correlation for each in args]),
        _int64([each.external_id for each in args]),
        _int64([each.total_bytes for each in args]),
    )
    found = [column for column in columns if column is not None]
    if len(found) < len(columns):
        return None
    external = found[3]
    without = external == NONE
    if without.any():
        old = _int64([each.old_external_id for each in args])
        if old is None:
            return None
        external[without] = old[without]
    return found


def _args(raw: msgspec.Raw) -> tuple[Args, list[str]]:
    """The arguments, and by name those that no parser takes; where one is not sound, the others are."""
    if raw == ABSENT:
        return _NO_ARGS, []
    try:
        return _ARGS.decode(raw), []
    except REFUSED:
        pass
    try:
        each = _EACH.decode(repair(bytes(raw)))
    except REFUSED:
        return _NO_ARGS, ["args"]
    found = Args()
    for name, key in _KEYS:
        if key in each:
            setattr(found, name, each[key] if name in _WRITTEN else _any(each[key]))
    return found, [key for name, key in _KEYS if key in each and getattr(found, name) is None]


_NO_ARGS = Args()
_KEYS = list(zip(Args.__struct_fields__, Args.__struct_encode_fields__, strict=True))


def _any(raw: object) -> object:
    return decoded(_ANY, bytes(raw)) if isinstance(raw, msgspec.Raw) else raw


def _text(word: object) -> str:
    return bytes(word).decode("utf-8", "replace") if isinstance(word, msgspec.Raw) else str(word)


def _category(event: Event) -> str:
    """The category of an event that names none, from its process."""
    return LEGACY_PROCESSES.get(label(event.pid), "")
