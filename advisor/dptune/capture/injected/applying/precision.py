"""torch's switches for precision. The script may set them as it begins: they are set again before its first pass."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from dptune.capture.injected.applying.constructing import follow

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def _switch(turn: Callable[[Any], None]) -> Callable[[Any], None]:
    def apply(value: Any) -> None:
        turn(value)
        backward = torch.autograd.backward
        turned = False

        @functools.wraps(backward)
        def after_turning(*args: Any, **kwargs: Any) -> None:
            nonlocal turned
            if not turned:
                turned = True
                turn(value)
            backward(*args, **kwargs)

        torch.autograd.backward = after_turning

    return apply


def autocast(value: str) -> None:
    """Run what DistributedDataParallel wraps, without the loss, in bf16 or fp16 where that is safe; `off` in none."""

    def wrap(module: Any) -> None:
        forward, kind = module.module.forward, next(module.parameters()).device.type

        @functools.wraps(forward)
        def cast(*args: Any, **kwargs: Any) -> Any:
            with torch.autocast(kind, dtype=DTYPES.get(value), enabled=value in DTYPES):
                return forward(*args, **kwargs)

        module.module.forward = cast

    follow(DistributedDataParallel, wrap)


def _cudnn(name: str) -> Callable[[Any], None]:
    return lambda value: setattr(torch.backends.cudnn, name, value)


APPLIERS: dict[str, Callable[[Any], None]] = {
    "precision.float32_matmul": _switch(torch.set_float32_matmul_precision),
    "precision.autocast": autocast,
    "cudnn.benchmark": _switch(_cudnn("benchmark")),
    "cudnn.allow_tf32": _switch(_cudnn("allow_tf32")),
}
