"""The sizes of operators' inputs and their autograd numbers, read once for all figures that take them.

A file is read again for them, which costs as much as a pass over all of its text. Sizes are kept as they were written:
layers repeat, so a trace has few that differ.
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
from dptune.measure.views import once_for_each
from dptune.trace.columns import NONE
from dptune.trace.events import Trace
from dptune.trace.kernels import OPERATOR_CATEGORIES
from dptune.trace.kineto.arguments import chosen_arguments
from dptune.trace.kineto.repair import decoded
from dptune.trace.kineto.schema import ABSENT

MOST = 200_000  # of a trace's operators are read for all figures; of more, each figure reads those that it takes
_ANY = msgspec.json.Decoder(float_hook=float)  # as arguments are read by themselves
_LONGEST_DIGITS = 18  # of a number that is an int64 without a look at its value
_MOST_ELEMENTS = 2**62


class Called(msgspec.Struct, gc=False):
    """What is read of an operator; `former_dims` is how older torch wrote the name of `dims`."""

    number: msgspec.Raw = msgspec.field(default=ABSENT, name="Sequence number")
    dims: msgspec.Raw = msgspec.field(default=ABSENT, name="Input Dims")
    former_dims: msgspec.Raw = msgspec.field(default=ABSENT, name="Input dims")
    types: msgspec.Raw = msgspec.field(default=ABSENT, name="Input type")
    values: msgspec.Raw = msgspec.field(default=ABSENT, name="Concrete Inputs")
    strides: msgspec.Raw = msgspec.field(default=ABSENT, name="Input Strides")


_KEYS = Called.__struct_encode_fields__[1:]  # of what is written


@dataclass(frozen=True, eq=False)
class OperatorArguments:
    """Operators of a trace, ascending by row.

    `numbers` are autograd's sequence numbers, -1 for none. `written` is by row the place of its other arguments in
    `texts`, in the order of `Called`: b"" for one that it lacks.
    """

    rows: Ints
    numbers: Ints
    written: Ints
    texts: Sequence[tuple[bytes, ...]]
    _decoded: dict[int, dict[str, Any]] = field(default_factory=dict)
    _parts: dict[bytes, Any] = field(default_factory=dict)

    @staticmethod
    @once_for_each
    def of(trace: Trace) -> OperatorArguments | None:
        """All operators of the trace; None where it has more than MOST. Raises TraceError as `arguments` does."""
        rows = trace.columns.rows(OPERATOR_CATEGORIES)
        return None if len(rows) > MOST else OperatorArguments.read(trace, rows)

    @staticmethod
    def reading(trace: Trace, rows: Ints) -> OperatorArguments:
        """Operators that include those of these rows. Raises TraceError as `arguments` does."""
        known = OperatorArguments.of(trace)
        if known is None or not np.isin(rows, known.rows).all():
            return OperatorArguments.read(trace, np.unique(rows))
        return known

    @staticmethod
    def read(trace: Trace, rows: Ints) -> OperatorArguments:
        """Those of these rows, ascending. Raises TraceError as `arguments` does."""
        numbers, written = np.full(len(rows), -1, dtype=np.int64), np.zeros(len(rows), dtype=np.int64)
        texts: dict[tuple[bytes, ...], int] = {}
        for places, called in chosen_arguments(trace, rows.tolist(), Called):
            numbers[places] = [_number(bytes(each.number)) for each in called]
            found = [_texts(each) for each in called]
            written[places] = [texts.setdefault(text, len(texts)) for text in found]
        return OperatorArguments(rows, numbers, written, tuple(texts))

    @cached_property
    def elements(self) -> Ints:
        """How many elements the inputs of each operator have together; 0 without sizes."""
        sizes = [_elements(decoded(_ANY, dims)) if dims else 0 for dims, *_ in self.texts]
        return np.array(sizes, dtype=np.int64)[self.written] if sizes else self.written

    def places(self, rows: Ints) -> Ints:
        """Where these rows are among the ones read."""
        return np.searchsorted(self.rows, rows)

    def arguments(self, rows: Ints) -> list[dict[str, Any]]:
        """Those of these rows but their numbers, in the order asked for; not to be changed: rows alike share them."""
        return [self._arguments(text) for text in self.written[self.places(rows)].tolist()]

    def argument(self, key: str, rows: Ints) -> list[Any]:
        """One of them, by its name in the file, in the order asked for; None for a row without; not to be changed."""
        place = _KEYS.index(key)
        parts = [self.texts[text][place] for text in self.written[self.places(rows)].tolist()]
        return [self._part(part) if part else None for part in parts]

    def _arguments(self, text: int) -> dict[str, Any]:
        if text not in self._decoded:
            parts = zip(_KEYS, self.texts[text], strict=True)
            self._decoded[text] = {key: self._part(part) for key, part in parts if part}
        return self._decoded[text]

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


def _number(text: bytes) -> int:
    if text.isdigit() and len(text) <= _LONGEST_DIGITS:
        return int(text)
    number = decoded(_ANY, text) if text else None
    return number if isinstance(number, int) and -(2**63) <= number < 2**63 else NONE


def _elements(dims: Any) -> int:
    return min(elements_of(dims), _MOST_ELEMENTS)
