"""The gradients that an optimizer step has used, followed until the next step: cleared, or added to."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from dptune.capture.injected.observe.tensor_samples import differ, elements, is_readable

_NODES = 5_000  # of a graph that are looked at


@dataclass
class _Gradient:
    """Of one parameter: its memory, and its values as the step or a pass left them; the rest is read at the end."""

    parameter: weakref.ref[Any]
    key: int
    memory: Any
    left: torch.Tensor
    added: torch.Tensor  # whether a pass has changed it
    zero: torch.Tensor  # whether it was zero before one
    cleared: torch.Tensor  # whether something else has changed it before passes did, or set it to zero
    of_module: bool  # by its type
    is_leaf: bool = False  # where it is not: whether a graph was seen in which autograd adds to it


class UsedGradients:
    """Gradients after one step, until the next of the same optimizer.

    They are cleared if before a pass, or before the next step, one of them is None, in other memory, changed or zero.
    """

    def __init__(self, parameters: Iterable[weakref.ref[Any]]) -> None:
        found = [_gradient(parameter) for ref in parameters if (parameter := ref()) is not None]
        self._gradients = [gradient for gradient in found if gradient is not None]
        self._gone = not self._gradients

    def before_pass(self, leaves: Callable[[], Collection[int]]) -> None:
        """A backward pass begins; `leaves` are the ids of the tensors that it accumulates gradients in."""
        for gradient, now in self._values():
            is_zero = (now == 0).all()
            changed = differ(now, gradient.left) & ~gradient.added
            gradient.cleared = gradient.cleared | changed | (is_zero & (gradient.left != 0).any())
            gradient.zero = gradient.zero | is_zero
            gradient.left = now
            gradient.is_leaf = gradient.is_leaf or (not gradient.of_module and gradient.key in leaves())

    def after_pass(self) -> None:
        """It has ended, or the optimizer steps inside it."""
        for gradient, now in self._values():
            gradient.added = gradient.added | differ(now, gradient.left)
            gradient.left = now

    def before_step(self) -> None:
        """The next step begins: passes have not added to gradients that the script has replaced."""
        self._gone = self._gone or not all(map(_is_there, self._gradients))

    def _values(self) -> Sequence[tuple[_Gradient, torch.Tensor]]:
        """Each gradient with its values; none once one of them is gone."""
        self.before_step()
        parameters = [] if self._gone else [(gradient, gradient.parameter()) for gradient in self._gradients]
        return [(gradient, elements(parameter.grad)) for gradient, parameter in parameters if parameter is not None]

    def is_cleared(self) -> bool:
        """Waits for the device."""
        return self._gone or any(bool(gradient.cleared) for gradient in self._gradients)

    def has_old(self, modules: Callable[[], Collection[int]]) -> bool:
        """Whether autograd has added to one of them that was not zero; `modules`: ids of parameters of modules.

        Copies of parameters, as of 16-bit ones in 32 bits, get their gradients from the script.
        """
        return any(
            bool(gradient.added)
            and not bool(gradient.zero)
            and (gradient.is_leaf or (gradient.of_module and gradient.key in modules()))
            for gradient in self._gradients
        )


def _gradient(parameter: Any) -> _Gradient | None:
    if parameter.grad is None or not is_readable(parameter.grad):
        return None
    values = elements(parameter.grad)
    no = torch.zeros((), dtype=torch.bool, device=values.device)
    return _Gradient(
        weakref.ref(parameter),
        id(parameter),
        _memory(parameter.grad),
        values,
        no,
        no,
        no,
        isinstance(parameter, nn.Parameter),
    )


def _is_there(gradient: _Gradient) -> bool:
    parameter = gradient.parameter()
    return parameter is not None and parameter.grad is not None and _memory(parameter.grad) == gradient.memory


def _memory(gradient: Any) -> Any:
    """FSDP makes new tensors of the same memory."""
    local = getattr(gradient, "_local_tensor", gradient)
    return (local.data_ptr(), local.numel()) if local.layout == torch.strided else id(gradient)


def leaves(roots: Any) -> set[int]:
    """The ids of the tensors in which a pass from these accumulates gradients; of a large graph some."""
    tensors = roots if isinstance(roots, (list, tuple)) else [roots]
    waiting = deque(node for tensor in tensors if (node := tensor.grad_fn) is not None)
    seen, found = set(waiting), set[int]()
    while waiting and len(seen) < _NODES:
        for following, _ in waiting.popleft().next_functions:
            if following is None or following in seen:
                continue
            seen.add(following)
            waiting.append(following)
            if (leaf := getattr(following, "variable", None)) is not None:
                found.add(id(leaf))
    return found
