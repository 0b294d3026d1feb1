"""Whether losses are multiplied by a constant before the backward pass, and whether their graph computes in fp16.

From the autograd graph of the first backward passes that follow fp16 autocast. No operator is replaced; code that
torch.compile or an autograd function of its own hides is not seen.
"""

from __future__ import annotations

import contextlib
import math
from typing import Any

import torch

from dptune.capture.injected.observe.loss_graph import consumers
from dptune.capture.injected.observe.loss_terms import Factors, terms
from dptune.capture.injected.observe.places import Places
from dptune.runfile.loss_scaling import LossScalingFacts

_PASSES = 4  # that are read


class LossScaling:
    """Reads the graphs of the first backward passes."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._watching = False
        self._half: list[bool] = []  # by pass
        self._paths: list[list[Factors]] = []  # by pass: from a root to each term of the loss

    def begin(self) -> None:
        """Read the backward passes from now on."""
        self._watching = True

    def before_pass(self, roots: Any, gradients: Any) -> None:
        """A backward pass is about to start at these tensors, with these gradients."""
        if not self._watching or len(self._half) >= _PASSES:
            return
        with contextlib.suppress(Exception):  # a graph may be anything
            if not (self._places.autocast or "").endswith(":float16"):
                return
            nodes = [root.grad_fn for root in _listed(roots)]
            given = [(each.detach(), 1) for each in _listed(gradients) if each is not None and each.numel() == 1]
            self._paths.append([given + factors for node in nodes for factors, _ in terms(node)])
            self._half.append(any(_is_half(node) for node in consumers(nodes)))

    def end(self) -> None:
        """Read no more."""
        self._watching = False

    def facts(self) -> LossScalingFacts | None:
        """None where no backward pass was read."""
        if not self._half:
            return None
        factor = min(max(map(_product, paths), default=1.0) for paths in self._paths)
        return LossScalingFacts(len(self._half), sum(self._half), factor)


def _listed(tensors: Any) -> tuple[Any, ...]:
    if tensors is None:
        return ()
    return (tensors,) if isinstance(tensors, torch.Tensor) else tuple(tensors)


def _product(factors: Factors) -> float:
    return math.prod(abs(float(number)) ** power for number, power in factors)


def _is_half(node: Any) -> bool:
    return any(each.dtype is torch.float16 for each in node._input_metadata)
