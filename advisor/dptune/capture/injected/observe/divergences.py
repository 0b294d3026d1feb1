"""Finds calls of `kl_div` whose input holds no log-probabilities, or whose target is of the wrong kind.

In warm-up steps, through the mode of `same_results`: autograd shows a `kl_div` only as a product and a difference. The
values decide. Probabilities lie between 0 and 1 and their sum over the classes is 1, log-probabilities are at most 0
and the sum of their exponentials is 1. The outputs of a layer count if they are neither, and nothing normalizes them
elsewhere. Unnormalized values that come from anything else are left out: they may be log-densities, or masked.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch

from dptune.capture.injected.observe.loss_graph import only_input
from dptune.capture.injected.observe.places import users_line
from dptune.capture.injected.observe.probability_kinds import APPLIED, LAYERS, is_layout
from dptune.runfile.probability_losses import INPUT, KL_DIV, LOG_TARGET, SWAPPED, TARGET, ProbabilityLossFacts

_MOST = 2**20  # values that are looked at
_ROUNDING = 0.01  # of sums of 16-bit numbers
_HOPS = 16  # changes of layout and of scale between a layer and the loss
_LINES = 64
_SCALED = ("MulBackward", "DivBackward", "ToCopyBackward")
_PROBABILITIES, _LOGARITHMS, _NEGATIVE, _LAYER = "probabilities", "log-probabilities", "negative values", "layer"


@dataclass
class _Line:
    calls: int = 0
    found: ProbabilityLossFacts | None = None


class Divergences:
    """The lines of the script that call `kl_div` with gradients, and what they give it."""

    def __init__(self) -> None:
        self._lines: dict[str, _Line] = {}
        self._normalized_apart = False

    def before(self, func: Any, name: str, args: Any, kwargs: Any) -> None:
        """Nothing is needed from before a call."""

    def after(self, token: None, call: tuple[str, Any, Any, Any], spent_ns: int, frame: FrameType | None) -> None:
        """Look at what a `kl_div` was given."""
        name, args, kwargs, result = call
        self._normalized_apart |= name == "logsumexp"
        if name != KL_DIV or not isinstance(result, torch.Tensor) or not result.requires_grad:
            return
        given = [*args[:2], *(kwargs[key] for key in ("input", "target") if key in kwargs)]
        where = users_line(frame)
        if where is None or len(given) != 2 or not (where in self._lines or len(self._lines) < _LINES):
            return
        line = self._lines.setdefault(where, _Line())
        line.calls += 1
        kinds = _fault(given[0], given[1], bool(kwargs.get("log_target")))
        if kinds is None:
            return
        applied, argument = kinds
        line.found = line.found or ProbabilityLossFacts(applied, KL_DIV, loss_where=where, argument=argument)
        line.found.passes += (line.found.applied, line.found.argument) == kinds

    def ticked(self, step_ns: int, forward_ns: int) -> None:
        """Calls of all steps count."""

    def end(self) -> None:
        """What was found stays."""

    def facts(self) -> list[ProbabilityLossFacts]:
        """The lines all of whose calls have the same fault."""
        found = []
        for line in self._lines.values():
            if line.found is not None and line.found.passes == line.calls:
                line.found.passes_seen = line.calls
                if line.found.applied != _LAYER or not self._normalized_apart:
                    found.append(line.found)
        return found


def _fault(given: Any, target: Any, log_target: bool) -> tuple[str, str] | None:
    """What is given, and for which argument, as `applied` and `argument` of the facts; None for nothing certain."""
    if type(given) is not torch.Tensor or type(target) is not torch.Tensor or not given.numel():
        return None
    of_input, of_target = _kind(given), _kind(target)
    applied, of_layer = _source(given)
    if of_input == _PROBABILITIES and of_target == _LOGARITHMS and not log_target:
        return _PROBABILITIES, SWAPPED
    if applied is not None or of_input == _PROBABILITIES:
        return applied or _PROBABILITIES, INPUT
    if not log_target and of_target == _LOGARITHMS:
        return _LOGARITHMS, TARGET
    if not log_target and _is_negative(target):
        return _NEGATIVE, TARGET
    if log_target and of_target == _PROBABILITIES:
        return _PROBABILITIES, LOG_TARGET
    if of_layer and of_input is None and of_target is not None and bool((_some(given) > _ROUNDING).any()):
        return _LAYER, INPUT
    return None


def _is_negative(target: torch.Tensor) -> bool:
    """Whether several values are negative; the same number again may be padding."""
    values = _some(target)
    negative = values[values < -_ROUNDING]
    return negative.numel() > 1 and bool(negative.min() < negative.max())


def _kind(tensor: torch.Tensor) -> str | None:
    """Whether a tensor holds probabilities or log-probabilities over one of its dimensions; None for neither."""
    if not tensor.is_floating_point() or not tensor.numel():
        return None
    values = _some(tensor)
    if bool((values >= 0).all()):
        kind, distribution = _PROBABILITIES, values
    elif bool((values <= _ROUNDING).all()):
        kind, distribution = _LOGARITHMS, values.exp()
    else:
        return None
    sums = (distribution.sum(dim) for dim in range(distribution.dim()) if distribution.shape[dim] > 1)
    return kind if any(bool(((each - 1).abs() < _ROUNDING).all()) for each in sums) else None


def _some(tensor: torch.Tensor) -> torch.Tensor:
    """Its first rows, in single precision; of each row all values."""
    rows = max(1, _MOST * len(tensor) // tensor.numel()) if tensor.dim() > 1 else None
    return tensor.detach()[:rows].float()


def _source(tensor: torch.Tensor) -> tuple[str | None, bool]:
    """The softmax or sigmoid that returned it, in whatever layout, and whether a layer did, in whatever scale."""
    node, scaled = tensor.grad_fn, False
    for _ in range(_HOPS):
        if node is None:
            break
        name = node.name()
        if name in APPLIED:
            return (None if scaled else APPLIED[name]), False
        if name in LAYERS:
            return None, True
        scaled |= name.startswith(_SCALED[:2])
        if not is_layout(name) and not name.startswith(_SCALED):
            break
        node = only_input(node)
    return None, False
