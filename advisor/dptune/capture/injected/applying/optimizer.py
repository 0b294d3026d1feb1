"""Which implementation of its step an optimizer takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer

from dptune.capture.injected.applying.constructing import follow

_OTHER = {"fused": "foreach", "foreach": "fused"}


def _implementation(name: str) -> Callable[[Any], None]:
    """The one of two that exclude each other. Optimizers that know neither are left alone."""

    def apply(value: bool) -> None:
        def change(optimizer: Any) -> None:
            if name not in optimizer.defaults:
                return
            for group in (optimizer.defaults, *optimizer.param_groups):
                group[name] = value
                if value and _OTHER[name] in group:
                    group[_OTHER[name]] = False
            if name == "fused":
                optimizer._step_supports_amp_scaling = value

        follow(Optimizer, change)

    return apply


APPLIERS: dict[str, Callable[[Any], None]] = {
    name: _implementation(name.partition(".")[2]) for name in ("optimizer.fused", "optimizer.foreach")
}
