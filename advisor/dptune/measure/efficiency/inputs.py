"""The arguments of operators, from their texts: of thousands whose sizes differ, types and values are alike."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from dptune.measure.efficiency.formulas import Arguments, Shape, shapes_of, texts_of
from dptune.measure.host.operator_arguments import OperatorArguments, value_of
from dptune.measure.intervals import Ints
from dptune.trace.kineto.repair import REFUSED

_SHAPES: Any = msgspec.json.Decoder(list[tuple[int, ...]])
_OF_WHOLE_NUMBERS = b"0123456789[], "  # a list of such that the decoder takes has no number below 0 and no fraction


def called_with(read: OperatorArguments, rows: Ints) -> list[Arguments]:
    """The arguments of each operator, in the order asked for; those that are alike share one object."""

    @cache
    def texts(written: bytes) -> list[str]:
        return texts_of(value_of(written)) if written else []

    def parsed(written: tuple[bytes, ...]) -> Arguments:
        dims, former_dims, types, values, _ = written
        shapes, lists = _sizes(dims or former_dims)
        return Arguments(shapes, texts(types), texts(values), lists)

    numbers = read.written[read.places(rows)].tolist()
    known = {number: parsed(read.texts[number]) for number in dict.fromkeys(numbers)}
    return [known[number] for number in numbers]


def _sizes(written: bytes) -> tuple[list[Shape | None], dict[int, list[Shape]]]:
    if not written.translate(None, _OF_WHOLE_NUMBERS):
        try:
            return _SHAPES.decode(written), {}
        except REFUSED:  # lists of tensors, and what holds more than sizes
            pass
    return shapes_of(value_of(written) if written else None)
