"""Samples of a backward pass, from sizes of what operators take and of what is copied to the device.

Each source alone may mean something else: rows of a loss are tokens in a language model. Sources that agree give medium
confidence, a single one gives low confidence, and sources that contradict each other give nothing.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dptune.errors import TraceError
from dptune.measure.device.copy_kinds import copy_kind
from dptune.measure.efficiency.formulas import Arguments, Shape
from dptune.measure.efficiency.tokens import Tokens
from dptune.measure.host.operator_arguments import operator_arguments
from dptune.measure.inferred.hosts import HostEvents
from dptune.measure.steps.windows import OUTSIDE
from dptune.measured import InferredBatch
from dptune.measured.figure import decimals
from dptune.trace.kernels import Work

_CONVOLUTION = re.compile(r"aten::conv[123]d$")
_LINEAR = re.compile(r"aten::linear$")
_LOSS = re.compile(
    r"aten::(cross_entropy_loss|nll_loss(2d|_nd|_forward)?|binary_cross_entropy(_with_logits)?|mse_loss|l1_loss|"
    r"smooth_l1_loss|huber_loss)$"
)
_SEQUENCE = re.compile(r"aten::(embedding|_?scaled_dot_product_\w+|lstm|gru|rnn_tanh|rnn_relu)$")
_READ = re.compile("|".join(pattern.pattern for pattern in (_CONVOLUTION, _LINEAR, _LOSS, _SEQUENCE)))
_PASSES = 4  # whose operators are read, the first ones
_MOST = 20_000  # operators whose sizes are read
_MOST_CLASSES = 4096  # of a loss over samples: one over more may be over tokens
_WIDTHS = (1, 2, 4, 8)  # bytes of an element
_LABEL_BYTES = 8  # torch's losses take class indices as int64
_CHANNELS, _LEAST_SIDE = 3, 16  # of an image, in pixels
_MOST_SAMPLES = 10**9  # more is no size of real tensors


@dataclass(frozen=True)
class _Input:
    """What a forward pass takes: its samples, the source in words, and how many elements a copy of it may have."""

    samples: int
    words: str
    elements: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class _Passes:
    """Operators of the first forward passes that a backward pass follows, each with the number of its pass."""

    count: int
    calls: Sequence[tuple[int, str, Arguments]]

    def called(self, pattern: re.Pattern[str]) -> Iterator[Arguments]:
        """The arguments of all operators of a name."""
        return (called for _, name, called in self.calls if pattern.match(name))

    def first(self, pattern: re.Pattern[str]) -> Arguments | None:
        """Those of the first such operator of a pass, if its input has the same size in every pass."""
        first: dict[int, Arguments] = {}
        for number, name, called in self.calls:
            if pattern.match(name):
                first.setdefault(number, called)
        shapes = {called.shape(0) for called in first.values()}
        return first[0] if len(first) == self.count and len(shapes) == 1 else None


def batch(host: HostEvents, tokens: Tokens | None) -> InferredBatch | None:
    """Samples of each backward pass; None where the trace does not show them, or its sources disagree.

    Backward passes of one step that add different gradients, as those of a GAN, may share their samples.
    """
    counts, steps = host.gradients_by_pass(), len(host.view.steps)
    if not counts or (len(counts) > steps and len(set(counts)) > 1):
        return None
    passes = _read(host)
    length = tokens.shape[1] if tokens and tokens.shape else None
    inputs = [found for found in (_indices(tokens), _convolution(passes)) if found is not None]
    if len({found.samples for found in inputs}) > 1:
        return None
    rows = _rows(passes)
    copied = {size: times for size, times in _copied(host).items() if times >= max(steps, len(counts))}
    in_sequences = host.compiles or rows is None or any(True for _ in passes.called(_SEQUENCE))
    if not inputs and not in_sequences and (linear := _linear(passes)) is not None:
        inputs = [linear]
    if not inputs:
        return _alone(set() if in_sequences else rows or set(), copied)
    samples, sources = inputs[0].samples, [found.words for found in inputs]
    if rows:
        agreeing = rows & _expected(samples, length)
        if not agreeing:
            return None
        sources.append(f"loss: {max(agreeing):,} rows")
    sizes = {count * width for found in inputs for count in found.elements for width in _WIDTHS}
    if matching := sizes & copied.keys():
        sources.append(f"copy to the device: {_size(max(matching))}")
    return InferredBatch(
        samples=samples, length=length, confidence="medium" if len(sources) > 1 else "low", sources=sources
    )


def _size(count: int) -> str:
    return f"{decimals(count / 2**20)} MiB" if count >= 2**20 else f"{decimals(count / 2**10)} KiB"


def _expected(samples: int, length: int | None) -> set[int]:
    """Rows that a loss may have: one a sample, or one a token, perhaps without the last, which has no target."""
    return {samples} if length is None else {samples, samples * length, samples * (length - 1)}


def _read(host: HostEvents) -> _Passes:
    columns, starts_ns = host.columns, host.pass_starts_ns[:_PASSES]
    rows = host.rows(_READ)
    rows = rows[~host.inside(rows, host.backward)]
    number = np.searchsorted(starts_ns, columns.ts_ns[rows], side="right")
    rows, number = rows[number < len(starts_ns)], number[number < len(starts_ns)]
    if len(rows) > _MOST:
        return _Passes(len(starts_ns), [])
    try:
        found = operator_arguments(host.view.trace, rows)
    except TraceError:
        return _Passes(len(starts_ns), [])
    names = [columns.name(row) for row in rows.tolist()]
    called = [Arguments.of(args) for args in found]
    return _Passes(len(starts_ns), list(zip(number.tolist(), names, called, strict=True)))


def _indices(tokens: Tokens | None) -> _Input | None:
    if tokens is None or tokens.shape is None:
        return None
    samples, length = tokens.shape
    with_targets = samples * (length + 1)  # one token more
    return _Input(samples, f"token indices: {_words(tokens.shape)}", (samples * length, with_targets))


def _convolution(passes: _Passes) -> _Input | None:
    """Of the first convolution; None where a pass repeats it: its model runs several times, or as several replicas."""
    first = passes.first(_CONVOLUTION)
    shape, weight = (first.shape(0), first.shape(1)) if first is not None else (None, None)
    if shape is None or weight is None or not 2 < len(shape) == len(weight):
        return None
    alike = sum(called.shape(0) == shape and called.shape(1) == weight for called in passes.called(_CONVOLUTION))
    return _input(shape, "convolution") if alike == passes.count else None


def _linear(passes: _Passes) -> _Input | None:
    """Of the first linear layer; None where one takes more than a matrix: its rows would be those of sequences."""
    first = passes.first(_LINEAR)
    shape = first.shape(0) if first is not None else None
    if shape is None or any(len(called.shape(0) or ()) != 2 for called in passes.called(_LINEAR)):
        return None
    return _input(shape, "linear layer")


def _input(shape: Shape, layer: str) -> _Input | None:
    if not 0 < shape[0] <= _MOST_SAMPLES:
        return None
    return _Input(shape[0], f"input of the first {layer}: {_words(shape)}", (math.prod(shape),))


def _words(shape: Shape) -> str:
    return " x ".join(f"{length:,}" for length in shape)


def _rows(passes: _Passes) -> set[int] | None:
    """Rows of the losses; None where one has as many classes as a vocabulary has words."""
    shapes = [shape for called in passes.called(_LOSS) if (shape := called.shape(0)) is not None]
    if any(len(shape) == 2 and shape[1] > _MOST_CLASSES for shape in shapes):
        return None
    return {shape[0] for shape in shapes if 0 < shape[0] <= _MOST_SAMPLES}


def _copied(host: HostEvents) -> Counter[int]:
    """How often the steps copy how many bytes to a device."""
    columns, found = host.columns, Counter[int]()
    for device in host.view.devices:
        ran = device.operations
        rows = ran.rows[(ran.work == Work.COPY) & (device.launched_in != OUTSIDE)]
        found.update(int(columns.total_bytes[row]) for row in rows.tolist() if copy_kind(columns.name(row))[0] == "h2d")
    return found


def _alone(rows: set[int], copied: dict[int, int]) -> InferredBatch | None:
    """Of a single source: the rows of the loss, or the copies of images and their labels, if nothing else is copied."""
    found = {samples: f"loss: {samples:,} rows" for samples in rows}
    if len(copied) == 2 and len(set(copied.values())) == 1 and _are_images(*sorted(copied)):
        labels, images = sorted(copied)
        samples = labels // _LABEL_BYTES
        words = f"copies to the device: {labels:,} bytes (labels), {images:,} bytes (images)"
        found[samples] = "; ".join(filter(None, (found.get(samples), words)))
    if len(found) != 1:
        return None
    samples, words = found.popitem()
    return InferredBatch(samples=samples, length=None, confidence="low", sources=[words])


def _are_images(labels: int, images: int) -> bool:
    """Whether a label of each of these bytes comes with a square image of three channels."""
    samples, rest = divmod(labels, _LABEL_BYTES)
    if rest or not samples:
        return False
    pixels = [divmod(images, samples * _CHANNELS * width) for width in _WIDTHS]
    return any(over == 0 and math.isqrt(count) ** 2 == count >= _LEAST_SIDE**2 for count, over in pixels)
