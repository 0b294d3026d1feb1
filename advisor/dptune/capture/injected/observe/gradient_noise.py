"""Squares of gradient norms, small and large, from which the gradient noise scale is estimated.

Small: what one backward pass of this rank adds to the gradient, from hooks on the parameters, before ranks reduce it.
Large: the gradient of the step, once the last pass has ended, before it is clipped, unscaled or used. They are kept as
tensors on their device and read when the window is over, so that no step waits for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.optim import Optimizer

from dptune.capture.injected.observe.places import Places
from dptune.runfile.noise import NoiseFacts


class GradientNoise:
    """Watches backward passes from `begin` to `end`. The caller calls `after_pass` and `end_step`."""

    def __init__(self, places: Places) -> None:
        self._parameters = [parameter for parameter in _parameters(places) if parameter.requires_grad]
        self._hooks: list[Any] = []
        self._pass: torch.Tensor | None = None
        self._passes: list[torch.Tensor] = []
        self._large: torch.Tensor | None = None
        self._steps: list[tuple[list[torch.Tensor], torch.Tensor]] = []

    def begin(self) -> None:
        """Hook into the parameters. Raises ValueError where the gradients of this script cannot be read."""
        if not self._parameters:
            raise ValueError("no parameters with gradients were found")
        if any(
            hasattr(parameter, "_local_tensor") or hasattr(parameter, "_is_flat_param")
            for parameter in self._parameters
        ):
            raise ValueError("parameters and gradients are sharded")
        self._hooks = [param.register_hook(self._added) for param in self._parameters]  # type: ignore[no-untyped-call]

    def _added(self, gradient: torch.Tensor) -> None:
        square = _square(gradient)
        self._pass = square if self._pass is None else self._pass + square.to(self._pass.device)

    def after_pass(self) -> None:
        """A backward pass has ended, and with it the reduction over ranks."""
        if self._pass is None:
            return
        self._passes.append(self._pass)
        self._pass = None
        squares = [_square(parameter.grad) for parameter in self._parameters if parameter.grad is not None]
        self._large = sum((square.to(squares[0].device) for square in squares[1:]), squares[0]) if squares else None

    def end_step(self) -> None:
        """An optimizer step has ended."""
        if self._passes and self._large is not None:
            self._steps.append((self._passes, self._large))
        self._passes, self._large = [], None

    def end(self) -> NoiseFacts:
        """What was seen; the hooks are gone."""
        for hook in self._hooks:
            hook.remove()
        steps = [([float(square) for square in passes], float(large)) for passes, large in self._steps]
        return NoiseFacts(of_passes=[passes for passes, _ in steps], of_steps=[large for _, large in steps])


def _square(gradient: torch.Tensor) -> torch.Tensor:
    values = gradient.detach()
    values = values.coalesce().values() if values.is_sparse else values
    return values.float().square().sum(dtype=torch.float64)


def _parameters(places: Places) -> Iterator[torch.Tensor]:
    """Those that DDP reduces; of a script without it those of its optimizers, each once."""
    modules = places.ddp()
    found = [parameter for module in modules for parameter in module.parameters()]
    if not modules:
        groups = [group for optimizer in places.alive(Optimizer) for group in optimizer.param_groups]
        found = [param for group in groups for param in group["params"]]
    yield from {id(param): param for param in found}.values()
