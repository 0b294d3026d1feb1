"""What a trace holds, as numpy columns: complete events, one row each, and tables beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

NONE = -1  # a number that the event does not carry


Ints = NDArray[np.int64]
Ids = NDArray[np.int32]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Columns:
    """Events of phase X, in the order of the file; a pair of phases B and E is one event at the place of its B.

    `ts_ns` and `dur_ns` are nanoseconds on the trace's own clock; `name_id`, `category_id`, `pid_id` and `tid_id`
    (int32) index `names`, `categories` and `labels`; `stream`, `device`, `correlation`, `external_id` and `total_bytes`
    are -1 where absent; `position` (int32) is the index in `traceEvents`. All others are int64.
    """

    ts_ns: Ints
    dur_ns: Ints
    name_id: Ids
    category_id: Ids
    pid_id: Ids
    tid_id: Ids
    stream: Ints
    device: Ints
    correlation: Ints
    external_id: Ints
    total_bytes: Ints
    position: Ids
    names: tuple[str, ...]
    categories: tuple[str, ...]
    labels: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.ts_ns)

    @property
    def end_ns(self) -> Ints:
        """End of each event, nanoseconds."""
        return self.ts_ns + self.dur_ns

    def ends(self, rows: Ints | Mask) -> Ints:
        """End of the events of some rows, nanoseconds."""
        return self.ts_ns[rows] + self.dur_ns[rows]

    @cached_property
    def thread(self) -> Ints:
        """A number for the thread of each event: its process and its thread."""
        return self.pid_id.astype(np.int64) * len(self.labels) + self.tid_id

    @cached_property
    def queue(self) -> Ints:
        """The stream of each event; where it names none, as on an XPU, a negative number for its thread."""
        return np.where(self.stream == NONE, -2 - self.thread, self.stream)

    def queue_label(self, queue: int) -> str:
        """What the trace calls a queue: the number of the stream, or the thread."""
        return str(queue) if queue >= NONE else self.labels[(-2 - queue) % len(self.labels)]

    def rows(self, categories: Iterable[str] | None = None, named: Callable[[str], object] | None = None) -> Ints:
        """The rows, ascending, that have one of the categories (as the file writes them; None: any) and a name for
        which `named` is true, asked once per distinct name.
        """
        kinds = self._kinds
        chosen = np.arange(len(kinds.category_id))
        if categories is not None:
            wanted = frozenset(categories)
            chosen = chosen[_chosen(self.categories, lambda category: category in wanted)[kinds.category_id]]
        numbers = chosen.tolist()
        if named is not None:
            words = kinds.name_id[chosen].tolist()
            numbers = [kind for kind, word in zip(numbers, words, strict=True) if named(self.names[word])]
        parts = [kinds.order[kinds.first[kind] : kinds.first[kind + 1]] for kind in numbers]
        found = np.concatenate([np.zeros(0, dtype=np.int32), *parts])
        found.sort()
        return found.astype(np.int64)

    def of_category(self, wanted: Iterable[str], rows: Ints) -> Mask:
        """Which of some rows have one of the categories."""
        wanted = frozenset(wanted)
        return _chosen(self.categories, lambda category: category in wanted)[self.category_id[rows]]

    def named(self, wanted: Callable[[str], object], rows: Ints) -> Mask:
        """Which of some rows have a name for which `wanted` is true, asked once per distinct name of theirs."""
        numbers, chosen = self.name_id[rows], np.zeros(len(self.names), dtype=np.bool_)
        chosen[numbers] = True
        asked = np.flatnonzero(chosen)
        chosen[asked] = [bool(wanted(self.names[number])) for number in asked.tolist()]
        return chosen[numbers]

    def name(self, row: int) -> str:
        """The name of a row."""
        return self.names[int(self.name_id[row])]

    def names_of(self, rows: Ints) -> list[str]:
        """The name of each of some rows."""
        return [self.names[number] for number in self.name_id[rows].tolist()]

    @cached_property
    def _kinds(self) -> _Kinds:
        pair = self.category_id.astype(np.int64) * len(self.names) + self.name_id
        if len(self.names) * len(self.categories) <= 1 << 16:
            pair = pair.astype(np.uint16)  # which numpy sorts by radix
        order = np.argsort(pair, kind="stable").astype(np.int32)
        pair = pair[order]
        first = np.flatnonzero(np.append(True, pair[1:] != pair[:-1]) if len(pair) else pair)
        rows = order[first]
        return _Kinds(order, np.append(first, len(pair)).tolist(), self.category_id[rows], self.name_id[rows])


@dataclass(frozen=True, eq=False)
class _Kinds:
    """The rows sorted by category and name, `order`; kind n, of one category and one name, begins at `first[n]`."""

    order: Ids
    first: list[int]
    category_id: Ids
    name_id: Ids


@dataclass(frozen=True, eq=False)
class Collectives:
    """What events say of a collective: those with `Collective name`, and operators of c10d and gloo with their shapes.

    One row an event, int64, -1 where absent. `row` is its row in Columns; `kind`, `dtype`, `group`, `group_ranks`,
    `dims` and `types` index `words`: the collective's name, its element type, the process group's name and ranks, and
    `Input Dims` and `Input type` as the JSON text they were written as.
    """

    row: Ints
    kind: Ints
    in_elements: Ints
    out_elements: Ints
    dtype: Ints
    group_size: Ints
    group: Ints
    group_ranks: Ints
    sequence: Ints
    dims: Ints
    types: Ints
    words: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.row)

    def word(self, column: Ints, at: int) -> str | None:
        """The word that a column holds for one collective; None where it holds none."""
        number = int(column[at])
        return None if number == NONE else self.words[number]


@dataclass(frozen=True, eq=False)
class Operators:
    """Arguments of the first operators of a trace, as the file has them: those that figures take.

    `row`, ascending, is the operator's row in Columns; `number` autograd's sequence number, -1 for none; `text` the
    place of its other arguments among the texts. The texts follow each other in `written` (uint8), each up to its
    `end`; in each, the arguments are in the order of `KEPT_ARGUMENTS`, a `SEPARATOR` between two, empty where absent.
    The arguments of any other operator have to be read from the file.
    """

    row: Ints
    number: Ints
    text: Ints
    end: Ints
    written: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.row)

    def texts(self, numbers: Ints) -> list[tuple[bytes, ...]]:
        """The arguments of the texts of these numbers."""
        begins = np.append(0, self.end)[numbers].tolist()
        whole = self.written.data
        return [
            tuple(bytes(whole[begin:end]).split(SEPARATOR))
            for begin, end in zip(begins, self.end[numbers].tolist(), strict=True)
        ]


SEPARATOR = b"\0"  # which no JSON text holds
KEPT_ARGUMENTS = ("Input Dims", "Input dims", "Input type", "Concrete Inputs", "Input Strides")
_NO_NUMBERS = np.zeros(0, dtype=np.int64)
NO_OPERATORS = Operators(_NO_NUMBERS, _NO_NUMBERS, _NO_NUMBERS, _NO_NUMBERS, np.zeros(0, dtype=np.uint8))


@dataclass(frozen=True, eq=False)
class Memory:
    """Allocations and frees, in the order of the file: int64, bytes; negative sizes are frees; -1 where absent.

    `device_type` is torch's `c10::DeviceType` (0 CPU, 1 CUDA). `allocated_bytes` and `reserved_bytes` are the totals of
    that device after it.
    """

    ts_ns: Ints
    size_bytes: Ints
    device_type: Ints
    device: Ints
    allocated_bytes: Ints
    reserved_bytes: Ints
    address: Ints

    def __len__(self) -> int:
        return len(self.ts_ns)


@dataclass(frozen=True, eq=False)
class Counters:
    """Values of counters from a moment on. `series` indexes `words`, each "counter: key"; `value` is float64."""

    ts_ns: Ints
    series: Ints
    value: NDArray[np.float64]
    words: tuple[str, ...]


def _chosen(words: tuple[str, ...], wanted: Callable[[str], object]) -> Mask:
    return np.fromiter((bool(wanted(word)) for word in words), dtype=np.bool_, count=len(words))
