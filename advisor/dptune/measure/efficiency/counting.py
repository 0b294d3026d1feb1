"""The operators of the steps that multiply matrices, each with its FLOPs, element type and phase.

Of nested operators, the innermost with known sizes counts: the outer ones have the full size of a tensor that is
sharded over ranks. What a convolution or fused attention calls counts as part of it.

Recomputation shows in autograd's sequence numbers: an operator has one if gradients are enabled. Inside a backward pass
they are enabled if a checkpointed module runs forward again, with the sizes of the forward pass, or with
`create_graph=True`, where gradients have numbers too. A compiled backward pass has no sequence numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

from dptune.errors import TraceError
from dptune.measure.communication.dtypes import dtype_of
from dptune.measure.device.kernel_kinds import MATRIX_WORK, kernel_kind
from dptune.measure.device.phases import bounds, host_phases
from dptune.measure.efficiency import convolutions
from dptune.measure.efficiency.formulas import FORMULAS, Arguments, Flops, Shape, possible
from dptune.measure.efficiency.inputs import called_with
from dptune.measure.host.enclosing import NOWHERE, Ranges
from dptune.measure.host.nesting import Nesting
from dptune.measure.host.operator_arguments import OperatorArguments
from dptune.measure.intervals import Ints, Mask
from dptune.measure.steps.windows import Step
from dptune.measure.views import RankView
from dptune.measured import FlopKind
from dptune.trace.columns import Columns
from dptune.trace.kernels import BACKWARD_NAME, OPERATOR_CATEGORIES, OPTIMIZER_STEP_NAME, RANGE_CATEGORIES

# Operators that multiply matrices and of which no formula is known.
_OTHER = re.compile(
    r"^(?!autograd::|torch::|aten::_thnn_|aten::_cudnn_rnn_flatten)"
    r"[\w.]+::[\w.]*(?:attention|flash|gemm|_mm|lstm|gru|rnn_layer|(?:cudnn|miopen)_rnn)\w*$"
)
_NAMES = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "float32": "fp32",
    "float64": "fp64",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
    "int8": "int8",
    "uint8": "int8",
}
_COMPILED_BACKWARD = re.compile(r"CompiledFunctionBackward")
_MOST = 100_000  # operators whose sizes are read: of more, those of the first steps
_PROBED = 20  # operators that show whether sizes were recorded
_MOST_FLOPS = 2**62  # of all steps: a device computes for an hour
UNKNOWN_TYPE = "unknown"

NO_OPERATORS = "no matrix product, convolution or attention ran"
NO_HOST = (
    "the trace lacks the host's operators, whose input sizes give the FLOPs: profile `ProfilerActivity.CPU` as well, "
    "with `record_shapes=True`"
)
NOT_OF_OPERATORS = (
    "no operator whose FLOPs are known launched the matrix kernels that ran (compiled or custom kernels, CUDA graphs)"
)
_NO_REAL_SIZES = "operator input sizes are not those of real tensors"
NO_SIZES = (
    "the trace has no sizes of operator inputs: set `record_shapes=True` in torch.profiler, or record with "
    "`dptune profile` and a detailed window"
)


class Operator(NamedTuple):
    """An operator that counts. `compiled`: it ran in a compiled backward pass.

    `recomputed`: a backward pass ran it again with gradients enabled. `with_graph`: it is a gradient that has a graph.
    """

    row: int
    kind: FlopKind
    flops: Flops
    dtype: str
    backward: bool
    recomputed: bool
    with_graph: bool
    optimizer: bool
    compiled: bool


@dataclass(frozen=True, eq=False)
class Counted:
    """Operators of these steps; `uncounted` names those whose FLOPs are not known, the most frequent first.

    `packed` names those of which only the least is known.
    """

    steps: Sequence[Step]
    operators: Sequence[Operator]
    uncounted: Sequence[str]
    packed: Sequence[str]


def count(view: RankView) -> Counted | str:
    """The operators of the steps of a rank, or why none can be counted."""
    columns = view.columns
    steps, rows = _of_steps(view)
    if not len(rows):
        return _why_none(view)
    try:
        first = OperatorArguments.of_rows(view.trace, rows[:_PROBED])
        if not any(Arguments.of(args).sized for args in first.arguments(first.rows)):
            return NO_SIZES
        read = OperatorArguments.reading(view.trace, rows)
    except TraceError as error:
        return str(error)
    called, numbers = called_with(read, rows), read.numbers[read.places(rows)]
    names = columns.names_of(rows)
    nesting = Nesting.of(Ranges.of_rows(columns, rows).parents())
    flops = list(_flops(names, called, nesting.above))
    chosen, unknown = _chosen(names, flops, nesting)
    if sum(known.total for at in chosen if (known := flops[at]) is not None) > _MOST_FLOPS:
        return _NO_REAL_SIZES
    phases = _Phases.of(columns, rows)
    # with a number of autograd, or inside an operator with one, as the kernels of a convolution are
    numbered = phases.backward & nesting.inherited(numbers >= 0)
    repeated = numbered & _repeats(names, called, ~phases.backward) if numbered.any() else numbered
    compiled, with_graph = phases.compiled, numbered & ~repeated
    marks = np.stack((phases.backward, repeated, with_graph, phases.optimizer, compiled), axis=1)[chosen].tolist()
    operators = [
        Operator(row, _kind(names[at]), known, _dtype(names[at], called[at]), *marked)
        for row, at, marked in zip(rows[chosen].tolist(), chosen, marks, strict=True)
        if (known := flops[at]) is not None
    ]
    packed = [names[at] for at in chosen if (known := flops[at]) is not None and known.least]
    return Counted(steps, operators, _most_frequent([names[at] for at in unknown]), _most_frequent(packed))


def _repeats(names: Sequence[str], called: Sequence[Arguments], forward: Mask) -> Mask:
    """Which operators have the name and the input sizes of one of the forward pass."""
    known: dict[tuple[Shape | None, ...], int] = {}
    sizes = {id(each): known.setdefault(tuple(each.shapes), len(known)) for each in called}
    keys = [(name, sizes[id(each)]) for name, each in zip(names, called, strict=True)]
    ran = {key for key, in_forward in zip(keys, forward.tolist(), strict=True) if in_forward}
    return np.array([key in ran for key in keys], dtype=np.bool_)


def _why_none(view: RankView) -> str:
    columns = view.columns
    if not len(columns.rows(OPERATOR_CATEGORIES)):
        return NO_HOST
    ran = [device.operations.rows for device in view.devices if not device.operations.on_cpu]
    matrix = any(columns.named(lambda name: kernel_kind(name) in MATRIX_WORK, rows).any() for rows in ran)
    return NOT_OF_OPERATORS if matrix else NO_OPERATORS


def _of_steps(view: RankView) -> tuple[list[Step], Ints]:
    """The first steps, up to a limit of operators but at least one, and the rows of these operators, ascending."""
    columns = view.columns
    rows = columns.rows(OPERATOR_CATEGORIES, _wanted)
    in_order = np.argsort(columns.ts_ns[rows], kind="stable")
    starts = columns.ts_ns[rows[in_order]]
    steps: list[Step] = []
    in_steps, count = np.zeros(len(rows), dtype=np.bool_), 0
    firsts, afters = (np.searchsorted(starts, ends).tolist() for ends in bounds(view.steps))
    for step, first, after in zip(view.steps, firsts, afters, strict=True):
        count += int((~in_steps[first:after]).sum())
        if steps and count > _MOST:
            break
        steps.append(step)
        in_steps[first:after] = True
    return steps, np.sort(rows[in_order[in_steps]])[:_MOST]


def _wanted(name: str) -> bool:
    return (
        name in FORMULAS
        or name in convolutions.OPERATORS
        or name in convolutions.FORMER_GRADIENT
        or _OTHER.match(name) is not None
    )


def _flops(names: Sequence[str], called: Sequence[Arguments], parents: Ints) -> Iterator[Flops | None]:
    gradients = np.zeros(len(names), dtype=np.int64)
    for name, parent in zip(names, parents.tolist(), strict=True):
        if name in convolutions.FORMER_GRADIENT and parent != NOWHERE:
            gradients[parent] += 1
    backward = convolutions.BACKWARD | convolutions.FORMER_BACKWARD
    backward_sizes = [
        convolutions.sizes_of_backward(name, each) for name, each in zip(names, called, strict=True) if name in backward
    ]
    outputs = convolutions.outputs_by_sizes([sizes for sizes in backward_sizes if sizes is not None])
    known: dict[tuple[str, int], Flops | None] = {}  # operators that are alike share one object
    for at, (name, each) in enumerate(zip(names, called, strict=True)):
        if name in backward:
            yield possible(convolutions.backward(name, each, int(gradients[at])))
            continue
        key = name, id(each)
        if key not in known:
            known[key] = possible(_flops_by_sizes(name, each, outputs))
        yield known[key]


def _flops_by_sizes(name: str, called: Arguments, outputs: Mapping[tuple[Shape, Shape], Shape | None]) -> Flops | None:
    if name in FORMULAS:
        return FORMULAS[name].flops(called)
    return convolutions.forward(called, outputs) if name in convolutions.FORWARD else None


def _chosen(names: Sequence[str], flops: Sequence[Flops | None], nesting: Nesting) -> tuple[list[int], list[int]]:
    """Which operators count, and which are known to multiply but are not counted, nor any inside them."""
    above = nesting.above
    known = np.fromiter((each is not None for each in flops), np.bool_, len(flops))
    kinds = np.array([_kind(name) for name in names], dtype=np.str_)
    former = np.fromiter((name in convolutions.FORMER_GRADIENT for name in names), np.bool_, len(names))
    inside = above != NOWHERE
    part = nesting.inherited(inside & known[above] & (kinds != kinds[above]))  # of a convolution or attention
    counted, counts_inside, shown, unknown = np.zeros((4, len(names)), dtype=np.bool_)
    for level in reversed(nesting.levels):
        counted[level] = ~counts_inside[level] & ~part[level] & known[level]
        counting = level[(counted[level] | counts_inside[level]) & inside[level]]
        counts_inside[above[counting]] = True
    for level in nesting.levels:
        in_shown = inside[level] & (counted[above[level]] | shown[above[level]])
        unknown[level] = ~in_shown & ~counts_inside[level] & ~counted[level] & ~former[level]
        shown[level] = in_shown | counted[level] | unknown[level]
    order = nesting.outer_first
    return order[::-1][counted[order[::-1]]].tolist(), order[unknown[order]].tolist()


def _kind(name: str) -> FlopKind:
    if name in FORMULAS:
        return FORMULAS[name].kind
    return "convolution" if name in convolutions.OPERATORS or name in convolutions.FORMER_GRADIENT else "attention"


def _dtype(name: str, called: Arguments) -> str:
    """The element type of the first factor."""
    at = FORMULAS[name].typed_by if name in FORMULAS else 0
    return _element_type(called.types[at]) if at < len(called.types) else UNKNOWN_TYPE


@cache
def _element_type(word: str) -> str:
    return element_type(dtype_of(word) or "")


def element_type(dtype: str) -> str:
    """The short name of a dtype of torch: `fp32` of `float32`."""
    return _NAMES.get(dtype, UNKNOWN_TYPE)


@dataclass(frozen=True, eq=False)
class _Phases:
    """Which operators run in a backward pass, a compiled backward pass, and an optimizer's own part of its step."""

    backward: Mask
    compiled: Mask
    optimizer: Mask

    @classmethod
    def of(cls, columns: Columns, rows: Ints) -> _Phases:
        def inside(pattern: re.Pattern[str]) -> Mask:
            return within(Ranges.of_rows(columns, columns.rows(RANGE_CATEGORIES, pattern.search)))

        def within(around: Ranges) -> Mask:
            return around.hold(columns.thread[rows], columns.ts_ns[rows])

        host = host_phases(columns)
        optimizer = inside(OPTIMIZER_STEP_NAME) if isinstance(host, str) else within(host.optimizer)
        return cls(inside(BACKWARD_NAME), inside(_COMPILED_BACKWARD), optimizer)


def _most_frequent(names: Sequence[str]) -> list[str]:
    return sorted(set(names), key=lambda name: (-names.count(name), name))
