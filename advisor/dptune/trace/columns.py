"""The complete events of a trace as numpy columns, one row each, in the order of the file."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields

import numpy as np
from msgspec import Raw
from numpy.typing import NDArray

from dptune.trace.clock import INT64_MAX, LIMIT_NS, nanoseconds
from dptune.trace.kernels import LEGACY_PROCESSES
from dptune.trace.schema import ABSENT, Args, Event

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
NONE = -1  # a number that the event does not carry


@dataclass(frozen=True, eq=False)
class Columns:
    """Events of phase X. All arrays have one int64 per event.

    `ts_ns` and `dur_ns` are nanoseconds on the trace's own clock; `name_id`, `category_id`, `pid_id` and `tid_id` index
    `names`, `categories` and `labels`; `stream`, `device`, `correlation`, `external_id` and `total_bytes` are -1 where
    absent; `position` is the index in `traceEvents`.
    """

    ts_ns: Ints
    dur_ns: Ints
    name_id: Ints
    category_id: Ints
    pid_id: Ints
    tid_id: Ints
    stream: Ints
    device: Ints
    correlation: Ints
    external_id: Ints
    total_bytes: Ints
    position: Ints
    names: tuple[str, ...]
    categories: tuple[str, ...]
    labels: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.ts_ns)

    @property
    def end_ns(self) -> Ints:
        """End of each event, nanoseconds."""
        return self.ts_ns + self.dur_ns

    def of_category(self, wanted: Iterable[str]) -> Mask:
        """Which rows have one of the categories."""
        wanted = frozenset(wanted)
        return _chosen(self.categories, lambda category: category in wanted)[self.category_id]

    def named(self, wanted: Callable[[str], object]) -> Mask:
        """Which rows have a name for which `wanted` is true; it is asked once per distinct name."""
        return _chosen(self.names, wanted)[self.name_id]

    def name(self, row: int) -> str:
        """The name of a row."""
        return self.names[int(self.name_id[row])]


def _chosen(words: tuple[str, ...], wanted: Callable[[str], object]) -> Mask:
    return np.fromiter((bool(wanted(word)) for word in words), dtype=np.bool_, count=len(words))


@dataclass
class _Words:
    """Distinct words, numbered in the order they were first seen."""

    ids: dict[str, int] = field(default_factory=dict)

    def __call__(self, word: str) -> int:
        return self.ids.setdefault(word, len(self.ids))


@dataclass
class Builder:
    """Collects events one at a time; `columns()` closes it.

    Of events that are not complete only thread names are kept. `events` counts all of them, `negative` the durations
    below zero (taken as zero) and `unreadable` complete events without a usable time.
    """

    events: int = 0
    negative: int = 0
    unreadable: int = 0
    collectives: dict[int, Args] = field(default_factory=dict)
    thread_names: dict[tuple[str, str], str] = field(default_factory=dict)
    phases: set[str] = field(default_factory=set)
    _rows: list[tuple[int, ...]] = field(default_factory=list)
    _names: _Words = field(default_factory=_Words)
    _categories: _Words = field(default_factory=_Words)
    _labels: _Words = field(default_factory=_Words)
    _raw_labels: dict[bytes, int] = field(default_factory=dict)

    def add(self, event: Event) -> None:
        """Take one element of `traceEvents`."""
        position = self.events
        self.events += 1
        if event.ph != "X":
            if event.ph == "M" and event.name == "thread_name" and event.args is not None:
                self.thread_names.setdefault((_label(event.pid), _label(event.tid)), str(event.args.label))
            else:
                self.phases.add(str(event.ph))
            return
        ts = nanoseconds(bytes(event.ts))
        dur = nanoseconds(bytes(event.dur)) if event.dur is not ABSENT else 0
        if ts is None or dur is None or ts + dur > LIMIT_NS:
            self.unreadable += 1
            return
        if dur < 0:
            self.negative += 1
            dur = 0
        args = event.args or _NO_ARGS
        if args.collective is not None or args.input_dims is not ABSENT:
            self._keep(event, args)
        external = args.external_id if args.external_id is not None else args.old_external_id
        self._rows.append(
            (
                ts,
                dur,
                self._names(event.name if type(event.name) is str else _word(event.name)),
                self._categories(event.cat if type(event.cat) is str else _category(event)),
                self._label_id(event.pid),
                self._label_id(event.tid),
                integer(args.stream),
                integer(args.device),
                integer(args.correlation),
                integer(external),
                max(integer(args.total_bytes), NONE),
                position,
            )
        )

    def _keep(self, event: Event, args: Args) -> None:
        name = _word(event.name)
        if args.collective is not None or name.startswith(
            ("gloo:", "c10d::", "_c10d_functional::", "nccl:", "record_param")
        ):
            self.collectives[len(self._rows)] = args

    def _label_id(self, raw: Raw) -> int:
        key = bytes(raw)
        known: int | None = self._raw_labels.get(key)
        if known is None:
            known = self._raw_labels[key] = self._labels(_label(raw))
        return known

    def columns(self) -> Columns:
        """The events as columns."""
        table = np.array(self._rows, dtype=np.int64).reshape(len(self._rows), len(_NUMBERS))
        return Columns(
            **{name: np.ascontiguousarray(column) for name, column in zip(_NUMBERS, table.T, strict=True)},
            names=tuple(self._names.ids),
            categories=tuple(self._categories.ids),
            labels=tuple(self._labels.ids),
        )


_NO_ARGS = Args()
_NUMBERS = tuple(column.name for column in fields(Columns) if column.name not in ("names", "categories", "labels"))


def integer(value: object) -> int:
    """An identity or amount that may be written as a string; -1 where it is none or beyond int64."""
    if type(value) is not int:
        if isinstance(value, str):
            text = value.strip()
            value = int(text) if text.isascii() and text.removeprefix("-").isdigit() and len(text) < 25 else NONE
        elif isinstance(value, float) and value.is_integer():
            value = int(value)
        else:
            return NONE
    return value if -INT64_MAX <= value <= INT64_MAX else NONE


def _word(value: object) -> str:
    return "" if value is None else str(value)


def _category(event: Event) -> str:
    return LEGACY_PROCESSES.get(_label(event.pid), "") if event.cat is None else str(event.cat)


def _label(raw: Raw) -> str:
    """A pid or tid as text: `5555` and `"5555"` are the same thread."""
    return bytes(raw).strip(b' \t\r\n"').decode("utf-8", errors="replace")
