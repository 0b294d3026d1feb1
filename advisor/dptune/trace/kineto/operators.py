"""The arguments of operators, kept while a file is read: reading them later takes another pass over the file."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptune.trace.columns import NONE, SEPARATOR, Ints, Operators
from dptune.trace.kineto.buffers import Table
from dptune.trace.kineto.repair import decoded
from dptune.trace.kineto.schema import ABSENT, TypedArgs

MOST_OPERATORS = 1_000_000  # are kept: 24 MB of numbers
MOST_BYTES = 2**27  # of their texts
_MOST_KNOWN = 2**15  # texts among which an equal one is looked for; where so many differ, few repeat
_LONGEST_DIGITS = 18  # of a number that is an int64 without a look at its value
_ANY = msgspec.json.Decoder(float_hook=float)  # as arguments are read by themselves


class _Texts(dict[bytes, int]):
    """Numbers of distinct texts in the order they are first asked for. `new` are those since it was emptied."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.new: list[bytes] = []

    def __missing__(self, text: bytes) -> int:
        self[text] = number = self.count
        self.count += 1
        self.new.append(text)
        return number


class OperatorTable:
    """Collects the operators of blocks of typed events, up to the limits; `operators()` closes it."""

    def __init__(self) -> None:
        self._rows = Table({"row": np.int64, "number": np.int64, "text": np.int64})
        self._texts = _Texts()
        self._ends: list[Ints] = []
        self._written = bytearray()
        self._full = False

    def take(self, rows: Ints, args: Sequence[TypedArgs]) -> None:
        """The operators of these rows, ascending."""
        if self._full or not args:
            return
        texts = self._texts
        if len(texts) > _MOST_KNOWN:
            texts.clear()
        numbers = [
            texts[SEPARATOR.join((each.input_dims, each.former_dims, each.input_types, each.values, each.strides))]
            for each in args
        ]
        lengths = np.fromiter(map(len, texts.new), np.int64, len(texts.new))
        self._ends.append(np.cumsum(lengths) + len(self._written))
        self._written += b"".join(texts.new)
        texts.new.clear()
        self._rows.extend((rows, numbers_of(args), numbers))
        self._full = len(self._rows) >= MOST_OPERATORS or len(self._written) >= MOST_BYTES

    def operators(self) -> Operators:
        """What was kept."""
        ends = np.concatenate([np.zeros(0, dtype=np.int64), *self._ends])
        return Operators(**self._rows.columns(), end=ends, written=np.frombuffer(self._written, dtype=np.uint8))


def numbers_of(args: Sequence[TypedArgs]) -> NDArray[np.int64]:
    """The sequence number of each operator; -1 for none."""
    numbers = [NONE if each.number is ABSENT else sequence_number(bytes(each.number)) for each in args]
    return np.fromiter(numbers, np.int64, len(numbers))


def sequence_number(text: bytes) -> int:
    """The number that an operator has in autograd's order, from the text it is written as; -1 for none."""
    if text.isdigit() and len(text) <= _LONGEST_DIGITS:
        return int(text)
    number = decoded(_ANY, text) if text else None
    return number if isinstance(number, int) and -(2**63) <= number < 2**63 else NONE
