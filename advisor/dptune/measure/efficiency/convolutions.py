"""FLOPs of convolutions, forward and backward.

A convolution multiplies every number of its weight once per position of its output; a transposed one, per position of
its input. Each of its two gradients takes as many FLOPs. The output size follows from the settings in `Concrete
Inputs`; without them, from the gradient that a backward pass of the same sizes was given.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from dptune.measure.efficiency.formulas import Arguments, Flops, Shape

# (input, weight, bias, stride, padding, dilation, transposed, output_padding, groups, ...)
FORWARD = frozenset({"aten::convolution", "aten::_convolution", "aten::convolution_overrideable"})
# (grad_output, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups, output_mask)
BACKWARD = frozenset({"aten::convolution_backward", "aten::convolution_backward_overrideable"})
# (input, grad_output, weight, ...), with an operator inside for each gradient: torch before 1.11
FORMER_BACKWARD = frozenset(f"aten::{library}_convolution_backward" for library in ("cudnn", "miopen", "mkldnn"))
FORMER_GRADIENT = frozenset(f"{name}_{of}" for name in FORMER_BACKWARD for of in ("input", "weight", "weights"))
OPERATORS = FORWARD | BACKWARD | FORMER_BACKWARD


class Sizes(NamedTuple):
    """Shapes of the input, the weight and the output of a convolution."""

    inputs: Shape
    weight: Shape
    outputs: Shape

    @property
    def consistent(self) -> bool:
        """Whether these can be the shapes of a convolution."""
        return 2 < len(self.inputs) == len(self.weight) == len(self.outputs) and self.inputs[0] == self.outputs[0]

    def flops(self, *, transposed: bool) -> int:
        """FLOPs of the forward pass, which are also those of each gradient."""
        positions = math.prod((self.inputs if transposed else self.outputs)[2:])
        return 2 * self.inputs[0] * positions * math.prod(self.weight)


def sizes_of_backward(name: str, arguments: Arguments) -> Sizes | None:
    """The shapes that a backward pass was given."""
    order = (0, 2, 1) if name in FORMER_BACKWARD else (1, 2, 0)
    inputs, weight, outputs = (arguments.shape(at) for at in order)
    if inputs is None or weight is None or outputs is None:
        return None
    found = Sizes(inputs, weight, outputs)
    return found if found.consistent else None


def outputs_by_sizes(found: Iterable[Sizes]) -> dict[tuple[Shape, Shape], Shape | None]:
    """Output shapes by those of input and weight; None if two convolutions differ in it."""
    outputs: dict[tuple[Shape, Shape], Shape | None] = {}
    for sizes in found:
        key = sizes.inputs, sizes.weight
        outputs[key] = sizes.outputs if outputs.get(key, sizes.outputs) == sizes.outputs else None
    return outputs


def forward(arguments: Arguments, outputs: Mapping[tuple[Shape, Shape], Shape | None]) -> Flops | None:
    """FLOPs of a forward convolution; `outputs` are the output shapes that backward passes show."""
    inputs, weight = arguments.shape(0), arguments.shape(1)
    if inputs is None or weight is None or not 2 < len(inputs) == len(weight):
        return None
    transposed = arguments.value(6)
    if transposed == "True":
        return Flops(Sizes(inputs, weight, inputs).flops(transposed=True))
    spatial = _spatial(arguments, inputs, weight) if transposed == "False" else None
    known = (inputs[0], weight[0], *spatial) if spatial else outputs.get((inputs, weight))
    if known is None:
        return None
    sizes = Sizes(inputs, weight, known)
    return Flops(sizes.flops(transposed=_looks_transposed(sizes)))


def backward(name: str, arguments: Arguments, gradients_inside: int) -> Flops | None:
    """FLOPs of a backward pass; `gradients_inside` counts the operators in it that compute one gradient each."""
    sizes = sizes_of_backward(name, arguments)
    if sizes is None:
        return None
    if name in BACKWARD:
        mask, transposed = _list(arguments.value(10)), arguments.value(7) == "True"
        gradients = sum(wanted is True for wanted in mask[:2]) if len(mask) == 3 else 0
    else:
        gradients, transposed = gradients_inside, _looks_transposed(sizes)
    return Flops(gradients * sizes.flops(transposed=transposed)) if gradients else None


def _looks_transposed(sizes: Sizes) -> bool:
    """The first dimension of a weight is the output's channels, unless the convolution is transposed."""
    return sizes.outputs[1] != sizes.weight[0]


def _spatial(arguments: Arguments, inputs: Shape, weight: Shape) -> list[int] | None:
    """Size of the output without batch and channels."""
    settings = [_list(arguments.value(at)) for at in (3, 4, 5)]
    found = []
    for at, (size, taps) in enumerate(zip(inputs[2:], weight[2:], strict=True)):
        stride, padding, dilation = (_of_dimension(values, at) for values in settings)
        if stride is None or padding is None or dilation is None or stride < 1:
            return None
        found.append((size + 2 * padding - dilation * (taps - 1) - 1) // stride + 1)
    return found if min(found) >= 0 else None


def _list(text: str) -> list[object]:
    try:
        values = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return []
    return values if isinstance(values, list) else []


def _of_dimension(values: list[object], at: int) -> int | None:
    """A setting in one dimension; a single number holds for all dimensions."""
    value = values[0] if len(values) == 1 else values[at] if at < len(values) else None
    return value if type(value) is int else None
