"""Finds ratios of a new to an old policy that stay exactly 1, so that clipping them has no effect.

As in proximal policy optimization: `exp(log_prob - old)` or `prob / old`, weighed by advantages and clipped. In warm-up
steps only: before a backward pass the part of its graph that is nearest to the loss is read, with the ratios that it
keeps. Where it shows such ratios, torch notes the lines of the next forward pass, as in its anomaly mode, but checks no
values. Some values of the parameters below the ratio show whether an update came between two passes, and what the first
layer was given whether samples came before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from dptune.capture.injected.observe.compared_values import some_inputs
from dptune.capture.injected.observe.graph_passes import GraphPasses
from dptune.capture.injected.observe.loss_graph import below, constant_factor, consumers
from dptune.capture.injected.observe.loss_masks import saved_tensor
from dptune.capture.injected.observe.node_lines import node_line
from dptune.runfile.policy_ratios import PolicyRatioFacts

_NODES = 1_000  # of a graph, the nearest to the loss
_BELOW = 20_000  # functions of a ratio that are followed to the parameters
_HOPS = 8  # between a ratio and what it is made of, or what clips it
_TENSORS = 8  # of the parameters that are compared
_ROWS, _VALUES = 4_096, 64  # of the first layer's input that are compared
_LEAST_DISTINCT = 0.9  # of the rows: states of a small world come again by chance
_RATIOS = ("ExpBackward", "DivBackward")
_DIFFERENCE = "SubBackward"
_CLAMP = "ClampBackward"
_CLIPPING = (_CLAMP, *("MinimumBackward", "MaximumBackward", "WhereBackward", "ClampMinBackward", "ClampMaxBackward"))
_SELECTED = ("MinBackward0", "MaxBackward0", "AminBackward", "AmaxBackward")  # among stacked losses
_WEIGHED = "MulBackward"
_BETWEEN = (
    *("MulBackward", "NegBackward", "ViewBackward", "UnsafeViewBackward", "ReshapeAliasBackward", "SqueezeBackward"),
    *("UnsqueezeBackward", "ExpandBackward", "CloneBackward", "ToCopyBackward", "AliasBackward", "StackBackward"),
    "TBackward",
)
_OF_DIFFERENCE = (
    *(*_BETWEEN, _CLAMP, "SumBackward", "MeanBackward", "DivBackward", "IndexBackward", "MaskedFillBackward"),
    *("WhereBackward", "SelectBackward", "SliceBackward", "MaskedSelectBackward", "NanToNumBackward"),
)
# Functions of a first layer: the place of its input among what it was given, and the name under which it is saved.
_FIRST = {
    "AddmmBackward": (1, "mat1"),
    "MmBackward": (0, "self"),
    "ConvolutionBackward": (0, "input"),
    "EmbeddingBackward": (None, "indices"),
}


class _Ratio(NamedTuple):
    node: Any
    values: torch.Tensor


class PolicyRatios(GraphPasses[PolicyRatioFacts]):
    """Reads the graphs of the first backward passes."""

    def __init__(self) -> None:
        super().__init__()
        self._parameters: dict[int, torch.Tensor] = {}  # some values of each in the pass before
        self._samples: set[int] = set()  # that passes had

    def end(self) -> None:
        """Read no more passes, and keep no values."""
        super().end()
        self._parameters, self._samples = {}, set()

    def _read(self, roots: Any) -> None:
        ratios = list(_ratios(roots))
        if not ratios:
            return
        known = self._found.setdefault("ratio", PolicyRatioFacts())
        known.passes += 1
        known.ones += all(bool((ratio.values == 1).all()) for ratio in ratios)
        known.samples = max(known.samples, *(ratio.values.numel() for ratio in ratios))
        known.where = known.where or node_line(ratios[0].node)
        functions = below(ratios[0].node, _BELOW)
        known.updates += self._are_updated(functions)
        known.seen_again = max(known.seen_again, self._again(functions))

    def _are_updated(self, functions: Sequence[Any]) -> bool:
        """Whether a parameter has other values than in the pass before."""
        leaves = {id(node.variable): node.variable for node in functions if hasattr(node, "variable")}
        compared = [*leaves][: _TENSORS // 2] + [*leaves][-_TENSORS // 2 :]
        values = {key: some_inputs([leaves[key]]) for key in compared}
        before, self._parameters = self._parameters, values
        return any(not torch.equal(values[key], before[key]) for key in values.keys() & before.keys())

    def _again(self, functions: Sequence[Any]) -> float:
        """The share of the samples that an earlier pass had; 0 where it cannot be known."""
        rows = _rows(functions)
        distinct = set(rows)
        if len(rows) < 2 or len(distinct) < _LEAST_DISTINCT * len(rows):
            return 0.0
        share = len(distinct & self._samples) / len(distinct)
        self._samples |= distinct
        return share


def _ratios(roots: Any) -> Iterator[_Ratio]:
    """The ratios that are weighed by constants that vary, and clipped."""
    tensors = [roots] if isinstance(roots, torch.Tensor) else list(roots)
    readers = consumers((tensor.grad_fn for tensor in tensors), _NODES)
    for node in readers:
        if not node.name().startswith(_RATIOS):
            continue
        above = _above(node, readers)
        clips = [each for each in above if each.name().startswith((*_CLIPPING, *_SELECTED))]
        weighed = any(each.name().startswith(_WEIGHED) and _varies(constant_factor(each)) for each in above)
        values = _values(node, clips)
        if weighed and values is not None and values.numel() > 1 and any(map(_clips, clips)):
            yield _Ratio(node, values)


def _above(node: Any, readers: dict[Any, list[Any]]) -> list[Any]:
    """What computes on a ratio, weighs it or clips it."""
    found: dict[Any, None] = {}
    waiting = [(reader, 1) for reader in readers.get(node, [])]
    while waiting:
        reader, hops = waiting.pop()
        if reader in found or hops > _HOPS:
            continue
        if reader.name().startswith((*_BETWEEN, *_CLIPPING, *_SELECTED)):
            found[reader] = None
            waiting += [(each, hops + 1) for each in readers.get(reader, [])]
    return list(found)


def _clips(node: Any) -> bool:
    """Whether it may change a ratio: limits are around 1."""
    least, most = getattr(node, "_saved_min", None), getattr(node, "_saved_max", None)
    if node.name().startswith("ClampBackward1"):
        return (least is None or 0 <= least < 1) and (most is None or most > 1) and (least, most) != (None, None)
    return True


def _values(node: Any, clips: Sequence[Any]) -> torch.Tensor | None:
    """The ratios: the exponential of a difference keeps them, and what clips a quotient."""
    if node.name().startswith("ExpBackward"):
        return saved_tensor(node, "result") if _of_difference(node) else None
    clamps = [each for each in clips if each.name().startswith("ClampBackward1") and each.next_functions[0][0] is node]
    return saved_tensor(clamps[0], "self") if clamps else None


def _of_difference(node: Any) -> bool:
    waiting, seen = [(following, 1) for following, _ in node.next_functions], set()
    while waiting:
        following, hops = waiting.pop()
        if following is None or following in seen or hops > _HOPS:
            continue
        seen.add(following)
        if following.name().startswith(_DIFFERENCE):
            return True
        if following.name().startswith(_OF_DIFFERENCE):
            waiting += [(each, hops + 1) for each, _ in following.next_functions]
    return False


def _varies(factor: torch.Tensor | None) -> bool:
    """Advantages do; a mask may, too, and a factor of the whole loss does not."""
    return factor is not None and factor.numel() > 1 and bool((factor != factor.flatten()[0]).any())


def _rows(functions: Sequence[Any]) -> list[int]:
    """Hashes of some values of each row of the first layer's input."""
    for node in functions:
        for name, (place, saved) in _FIRST.items():
            if not node.name().startswith(name) or (place is not None and node.next_functions[place][0] is not None):
                continue
            given = saved_tensor(node, saved)
            if given is not None and given.dim() > 1 and given.numel():
                flat = given[:_ROWS].flatten(1)
                some = flat[:, :: -(-flat.shape[1] // _VALUES)].to("cpu", torch.float64)
                return [hash(tuple(row)) for row in some.tolist()]
    return []
