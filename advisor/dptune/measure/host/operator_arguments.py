"""The sizes of operators' inputs and their autograd numbers, for all figures that take them.

They are kept while a file is read. Where they were not, as of a trace whose columns were kept from before, the file is
read again for them, which costs as much as a pass over all of its text. Sizes are kept as they were written: layers
repeat, so a trace has few that differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import msgspec
import numpy as np

from dptune.measure.communication.shapes import elements_of
from dptune.measure.intervals import Ints
from dptune.measure.once import once_for_each
from dptune.trace.columns import KEPT_ARGUMENTS, NO_OPERATORS, NONE, Operators
from dptune.trace.events import Trace
from dptune.trace.kernels import OPERATOR_CATEGORIES
from dptune.trace.kineto.arguments import chosen_arguments
from dptune.trace.kineto.operators import sequence_number
from dptune.trace.kineto.repair import decoded
from dptune.trace.kineto.schema import ABSENT

MOST = 200_000  # of a trace's operators are read again for all figures; of more, each figure reads those that it takes
_ANY = msgspec.json.Decoder(float_hook=float)  # as arguments are read by themselves
_MOST_ELEMENTS = 2**62


class Called(msgspec.Struct, gc=False):
    """What is read of an operator; `former_dims` is how older torch wrote the name of `dims`."""

    number: msgspec.Raw = msgspec.field(default=ABSENT, name="Sequence number")
    dims: msgspec.Raw = msgspec.field(default=ABSENT, name="Input Dims")
    former_dims: msgspec.Raw = msgspec.field(default=ABSENT, name="Input dims")
    types: msgspec.Raw = msgspec.field(default=ABSENT, name="Input type")
    values: msgspec.Raw = msgspec.field(default=ABSENT, name="Concrete Inputs")
    strides: msgspec.Raw = msgspec.field(default=ABSENT, name="Input Strides")


@dataclass(frozen=True, eq=False)
class OperatorArguments:
    """Operators of a trace, ascending by row.

    `numbers` are autograd's sequence numbers, -1 for none. `written` is by row the number of the text of its other
    arguments: first those of `kept`, then those of `read`, in the order of KEPT_ARGUMENTS, b"" for one that it lacks.
    """

    rows: Ints
    numbers: Ints
    written: Ints
    read: Sequence[tuple[bytes, ...]]
    kept: Operators = NO_OPERATORS
    _decoded: dict[int, dict[str, Any]] = field(default_factory=dict)
    _parts: dict[bytes, Any] = field(default_factory=dict)

    @staticmethod
    @once_for_each
    def of(trace: Trace) -> OperatorArguments | None:
        """All operators of the trace; None where over MOST were not kept. Raises TraceError as `arguments` does."""
        rows = trace.columns.rows(OPERATOR_CATEGORIES)
        return None if len(rows) - len(trace.operators) > MOST else OperatorArguments.of_rows(trace, rows)

    @staticmethod
    def reading(trace: Trace, rows: Ints) -> OperatorArguments:
        """Operators that include those of these rows. Raises TraceError as `arguments` does."""
        known = OperatorArguments.of(trace)
        if known is None or not np.isin(rows, known.rows).all():
            return OperatorArguments.of_rows(trace, np.unique(rows))
        return known

    @staticmethod
    def of_rows(trace: Trace, rows: Ints) -> OperatorArguments:
        """Those of these rows, ascending; from the file what was not kept. Raises TraceError as `arguments` does."""
        kept = trace.operators
        numbers, written = np.full(len(rows), NONE, dtype=np.int64), np.zeros(len(rows), dtype=np.int64)
        at = np.searchsorted(kept.row, rows)
        known = at < len(kept)
        known[known] = kept.row[at[known]] == rows[known]
        numbers[known], written[known] = kept.number[at[known]], kept.text[at[known]]
        missing = np.flatnonzero(~known)
        texts: dict[tuple[bytes, ...], int] = {}
        for places, called in chosen_arguments(trace, rows[missing].tolist(), Called):
            chosen = missing[places]
            numbers[chosen] = [sequence_number(bytes(each.number)) for each in called]
            found = [_texts(each) for each in called]
            written[chosen] = [len(kept.end) + texts.setdefault(text, len(texts)) for text in found]
        return OperatorArguments(rows, numbers, written, tuple(texts), kept)

    @cached_property
    def elements(self) -> Ints:
        """How many elements the inputs of each operator have together; 0 without sizes."""
        numbers, place = np.unique(self.written, return_inverse=True)
        sizes = [_elements(decoded(_ANY, dims)) if dims else 0 for dims, *_ in self.texts(numbers)]
        return np.array(sizes, dtype=np.int64)[place] if sizes else self.written

    def places(self, rows: Ints) -> Ints:
        """Where these rows are among the ones read."""
        return np.searchsorted(self.rows, rows)

    def texts(self, numbers: Ints) -> list[tuple[bytes, ...]]:
        """The texts of these numbers."""
        kept = len(self.kept.end)
        found = iter(self.kept.texts(numbers[numbers < kept]))
        return [self.read[number - kept] if number >= kept else next(found) for number in numbers.tolist()]

    def arguments(self, rows: Ints) -> list[dict[str, Any]]:
        """Those of these rows but their numbers, in the order asked for; not to be changed: rows alike share them."""
        numbers = self.written[self.places(rows)].tolist()
        missing = [number for number in dict.fromkeys(numbers) if number not in self._decoded]
        for number, text in zip(missing, self.texts(np.array(missing, dtype=np.int64)), strict=True):
            parts = zip(KEPT_ARGUMENTS, text, strict=True)
            self._decoded[number] = {key: self._part(part) for key, part in parts if part}
        return [self._decoded[number] for number in numbers]

    def argument(self, key: str, rows: Ints) -> list[Any]:
        """One of them, by its name in the file, in the order asked for; None for a row without; not to be changed."""
        place = KEPT_ARGUMENTS.index(key)
        parts = [text[place] for text in self.texts(self.written[self.places(rows)])]
        return [self._part(part) if part else None for part in parts]

    def _part(self, part: bytes) -> Any:
        """Types and values are alike in many operators whose sizes differ."""
        if part not in self._parts:
            self._parts[part] = value_of(part)
        return self._parts[part]


def value_of(written: bytes) -> Any:
    """What an argument is, from the text it is written as; None for what is no JSON."""
    return decoded(_ANY, written)


def operator_arguments(trace: Trace, rows: Ints) -> list[dict[str, Any]]:
    """Sizes, types, values and strides of the inputs of operators, in the order asked for; not to be changed.

    Raises TraceError where the file cannot be read.
    """
    return OperatorArguments.reading(trace, rows).arguments(rows) if len(rows) else []


def _texts(called: Called) -> tuple[bytes, ...]:
    each = called.dims, called.former_dims, called.types, called.values, called.strides
    return tuple(map(bytes, each))


def _elements(dims: Any) -> int:
    return min(elements_of(dims), _MOST_ELEMENTS)
