"""Reads how many targets the losses of backward passes count, and what the losses are divided by.

From the nodes of the autograd graph between the start of a pass and its losses, in warm-up steps and in the untraced
window. A cross entropy saves its count; a sum over a mask saves the mask. Counts and divisors stay on their device and
are read between windows, so no step waits for them.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from dptune.capture.injected.observe.loss_graph import LOSSES, consumers, shape_of, signed
from dptune.capture.injected.observe.loss_masks import VIEWS, masked, readable
from dptune.capture.injected.observe.loss_terms import Factors, terms
from dptune.capture.injected.observe.passes import is_captured, is_in_pass
from dptune.capture.injected.observe.places import Places, users_line
from dptune.runfile.target_counts import TargetCountFacts

_PASSES = 64  # that are read
_LOSSES = 4  # of a pass
_NODES = 256  # of a graph, the nearest to the loss
_HOPS = 8  # from a sum to the losses of single targets
_MEAN, _SUM = 1, 2  # as torch numbers reductions
_MEANS, _SUMS = ("MeanBackward",), ("SumBackward",)
_SELECTIONS = ("IndexBackward", "MaskedSelectBackward")
_PRODUCT = "MulBackward"


class _Counted(NamedTuple):
    """A loss with the number of its targets. `mean`: whether it is divided by that already."""

    loss: str
    classes: int
    targets: torch.Tensor
    mean: bool
    factors: Factors


class _Read(NamedTuple):
    """Of one pass: its number, the optimizer steps and the batches drawn before it, and its losses."""

    made: int
    steps: int
    drawn: int
    found: list[_Counted]


_Key = tuple[str, int, str | None]


class TargetCounts:
    """By loss, the count of each backward pass and the factor of its mean."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._watching = False
        self._passes = self._steps = 0
        self._read: dict[_Key, list[_Read]] = defaultdict(list)

    def begin(self) -> None:
        """Watch from now on, except code that torch.compile hides."""
        self._watching = not self._places.compiled

    def end(self) -> None:
        """Watch no more."""
        self._watching = False

    def stepped(self) -> None:
        """An optimizer has made a step."""
        self._steps += 1

    def before_pass(self, roots: Any) -> None:
        """A backward pass is about to start at these tensors."""
        if not self._watching or self._passes >= _PASSES or is_captured() or is_in_pass():
            return
        with contextlib.suppress(Exception), torch.no_grad():  # a graph may be anything
            made, self._passes = self._passes, self._passes + 1
            tensors = (roots,) if isinstance(roots, torch.Tensor) else tuple(roots)
            line = users_line(sys._getframe(1))
            by_loss: dict[_Key, list[_Counted]] = defaultdict(list)
            for tensor in tensors:
                for each in _counted(tensor.grad_fn):
                    by_loss[each.loss, each.classes, line].append(each)
            for key, found in by_loss.items():
                if key in self._read or len(self._read) < _LOSSES:
                    self._read[key].append(_Read(made, self._steps, self._places.draws.total(), found))

    def facts(self) -> list[TargetCountFacts]:
        """The counts so far, read from their devices."""
        loaders = sum(drawn > 0 for drawn in self._places.draws.values())
        return [_facts(key, loaders, passes) for key, passes in self._read.items()]


def _facts(key: _Key, loaders: int, passes: list[_Read]) -> TargetCountFacts:
    facts = TargetCountFacts(*key, loaders)
    for made, steps, drawn, found in passes:
        count, weight = (sum(values) for values in zip(*map(_count_and_weight, found), strict=True))
        if math.isfinite(count) and math.isfinite(weight):
            facts.passes.append(made)
            facts.steps.append(steps)
            facts.drawn.append(drawn)
            facts.counts.append(count)
            facts.weights.append(weight)
    return facts


def _count_and_weight(loss: _Counted) -> tuple[float, float]:
    count, factor = float(loss.targets), 1.0
    for number, power in loss.factors:
        value = abs(float(number))
        factor *= value**power if value else math.nan
    return count, factor if loss.mean else factor * count


def _counted(root: Any) -> Iterator[_Counted]:
    """The losses that a pass starts from, with their constant factors."""
    for factors, node in terms(root, ends=(*_MEANS, *_SUMS)) if root is not None else ():
        name, kept = node.name(), [(number.clone(), power) for number, power in factors]
        inner = next((following for following, _ in node.next_functions if following is not None), None)
        if name.startswith(LOSSES):
            if node._saved_reduction in (_MEAN, _SUM) and _is_plain(node):
                count = node._saved_total_weight.detach()
                yield _Counted(name, _classes(node), count, node._saved_reduction == _MEAN, kept)
        elif name.startswith((*_MEANS, *_SUMS)) and inner is not None:
            if math.prod(shape_of(inner)) == 1:  # of a loss that is one number
                yield from (each._replace(factors=kept + each.factors) for each in _counted(inner))
            elif (single := _of_singles(inner, name.startswith(_MEANS))) is not None:
                yield single._replace(factors=kept)


def _of_singles(node: Any, mean: bool) -> _Counted | None:
    """What is counted where a mask selects among the losses of single targets; None without a mask."""
    loss = _losses_below(node)
    if mean and not node.name().startswith(_SELECTIONS):
        return None  # over positions that do not count, too
    if loss is None:
        mask = None if mean else _mask(node)
        if mask is None:
            return None
        is_mask = ((mask == 0) | (mask == 1)).all()
        return _Counted(_PRODUCT, 0, torch.where(is_mask, mask.sum().float(), math.nan), mean, [])
    ignored = (loss._saved_target == signed(loss._saved_ignore_index)).reshape(-1)
    dropped = masked(loss, ignored, consumers([node], _NODES))
    return _Counted(loss.name(), _classes(loss), (~(ignored | dropped)).sum(), mean, [])


def _losses_below(node: Any) -> Any | None:
    """The cross entropies of single targets that a mask, or nothing, changes."""
    for _ in range(_HOPS):
        if node is None:
            return None
        name = node.name()
        if name.startswith(LOSSES):
            return node if node._saved_reduction not in (_MEAN, _SUM) and _is_plain(node) else None
        if not name.startswith((*VIEWS, *_SELECTIONS, _PRODUCT, "MaskedFillBackward", "WhereBackward")):
            return None
        inputs = [following for following, _ in node.next_functions if following is not None]
        node = inputs[0] if len(inputs) == 1 else None
    return None


def _mask(node: Any) -> torch.Tensor | None:
    """The numbers by which a product multiplies."""
    inputs = [following for following, _ in node.next_functions]
    if not node.name().startswith(_PRODUCT) or len(inputs) != 2 or inputs.count(None) != 1:
        return None
    saved = "self" if inputs[0] is None else "other"
    mask = getattr(node, f"_saved_{saved}") if readable(node, saved) else None
    if type(mask) is not torch.Tensor or mask.numel() < 2:
        return None
    return mask.detach()


def _is_plain(loss: Any) -> bool:
    """Whether its classes have no weights, and its targets can be read."""
    return loss._saved_weight is None and readable(loss, "target") and type(loss._saved_target) is torch.Tensor


def _classes(loss: Any) -> int:
    shape = next((shape_of(following) for following, _ in loss.next_functions if following is not None), ())
    return shape[1] if len(shape) > 1 else 0
