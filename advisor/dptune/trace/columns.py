"""What a trace holds, as numpy columns: complete events, one row each, and tables beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dptune.trace.schema import NONE

Ints = NDArray[np.int64]
Ids = NDArray[np.int32]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Columns:
    """Events of phase X, in the order of the file.

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

    def of_category(self, wanted: Iterable[str], rows: Ints | None = None) -> Mask:
        """Which rows (of all, or of some) have one of the categories, or the one word, as the file writes them."""
        wanted = frozenset({wanted} if isinstance(wanted, str) else wanted)
        ids = self.category_id if rows is None else self.category_id[rows]
        return _chosen(self.categories, lambda category: category in wanted)[ids]

    def named(self, wanted: Callable[[str], object], rows: Ints | None = None) -> Mask:
        """Which rows (of all, or of some) have a name for which `wanted` is true, asked once per distinct name."""
        return _chosen(self.names, wanted)[self.name_id if rows is None else self.name_id[rows]]

    def name(self, row: int) -> str:
        """The name of a row."""
        return self.names[int(self.name_id[row])]


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

    def __len__(self) -> int:
        return len(self.ts_ns)


def _chosen(words: tuple[str, ...], wanted: Callable[[str], object]) -> Mask:
    return np.fromiter((bool(wanted(word)) for word in words), dtype=np.bool_, count=len(words))
