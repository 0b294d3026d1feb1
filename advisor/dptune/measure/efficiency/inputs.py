"""The arguments of operators, from their texts: of thousands whose sizes differ, types and values are alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

import msgspec
import numpy as np

from dptune.measure.efficiency.formulas import Arguments, Shape, shapes_of, texts_of
from dptune.measure.host.operator_arguments import OperatorArguments, value_of
from dptune.measure.intervals import Ints
from dptune.trace.kineto.repair import REFUSED

_Sizes = tuple[list[Shape | None], dict[int, list[Shape]]]

_SHAPES: Any = msgspec.json.Decoder(list[tuple[int, ...]])
_ALL_SHAPES: Any = msgspec.json.Decoder(list[list[tuple[int, ...]]])
_OF_WHOLE_NUMBERS = b"0123456789[], "  # a list of such that the decoder takes has no number below 0 and no fraction
_NO_INPUTS = b"[]"
_NO_LISTS: dict[int, list[Shape]] = {}
AT_ONCE = 256  # texts that are decoded together


def called_with(read: OperatorArguments, rows: Ints) -> list[Arguments]:
    """The arguments of each operator, in the order asked for; those that are alike share one object."""

    @cache
    def texts(written: bytes) -> list[str]:
        return texts_of(value_of(written)) if written else []

    numbers, place = np.unique(read.written[read.places(rows)], return_inverse=True)
    written = read.texts(numbers)
    sizes = _all_sizes([dims or former_dims or _NO_INPUTS for dims, former_dims, *_ in written])
    known = [
        Arguments(shapes, texts(types), texts(values), lists)
        for (shapes, lists), (_, _, types, values, _) in zip(sizes, written, strict=True)
    ]
    return [known[number] for number in place.tolist()]


def _all_sizes(written: Sequence[bytes]) -> Iterator[_Sizes]:
    """Of each text; of many at once where every one of them is a list of sizes."""
    for at in range(0, len(written), AT_ONCE):
        part = written[at : at + AT_ONCE]
        joined = b"[" + b",".join(part) + b"]"
        found: list[list[Shape | None]] = []
        if not joined.translate(None, _OF_WHOLE_NUMBERS):
            with suppress(*REFUSED):  # lists of tensors, and what holds more than sizes
                found = _ALL_SHAPES.decode(joined)
        yield from ((shapes, _NO_LISTS) for shapes in found) if len(found) == len(part) else map(_sizes, part)


def _sizes(written: bytes) -> _Sizes:
    if not written.translate(None, _OF_WHOLE_NUMBERS):
        with suppress(*REFUSED):
            return _SHAPES.decode(written), _NO_LISTS
    return shapes_of(value_of(written))
