"""torch's switches for precision. The script may set them as it begins: they are set again before its first pass."""

from __future__ import annotations

import functools
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from dptune.capture.injected.applying.requested import asked

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def switch(name: str, path: str, value: Any) -> None:
    """Set a global switch of torch, by its path, now and before the first backward pass."""
    _turn(path, value)
    backward = torch.autograd.backward
    turned = False

    @functools.wraps(backward)
    def after_turning(*args: Any, **kwargs: Any) -> None:
        nonlocal turned
        if not turned:
            turned = True
            _turn_again(name, path, value)
        backward(*args, **kwargs)

    torch.autograd.backward = after_turning


def _turn(path: str, value: Any) -> None:
    within, _, name = path.rpartition(".")
    if within:
        setattr(attrgetter(within)(torch), name, value)
    else:
        getattr(torch, f"set_{name}")(value)


def _turn_again(name: str, path: str, value: Any) -> None:
    try:
        _turn(path, value)
    except Exception as error:  # torch refuses, where the script uses its newer switches for the same
        asked.refuse(name, f"torch refuses it in the script: {error}")


def autocast(value: str) -> None:
    """Run what DistributedDataParallel wraps, without the loss, in bf16 or fp16 where that is safe.

    `off` disables every autocast of the script, and of the libraries that it uses.
    """
    dtype = DTYPES.get(value)
    if dtype is None:
        _without_autocast()
        return
    enter: Any = DistributedDataParallel.forward

    @functools.wraps(enter)
    def cast(this: Any, *args: Any, **kwargs: Any) -> Any:
        with torch.autocast(this.device_type, dtype=dtype):
            return enter(this, *args, **kwargs)

    DistributedDataParallel.forward = cast  # type: ignore[method-assign, assignment]


def _without_autocast() -> None:
    construct: Any = torch.autocast.__init__

    @functools.wraps(construct)
    def disabled(this: Any, *args: Any, **kwargs: Any) -> None:
        construct(this, *args, **kwargs)
        this._enabled = False

    torch.autocast.__init__ = disabled  # type: ignore[method-assign, assignment]


APPLIERS: dict[str, Callable[[Any], None]] = {"precision.autocast": autocast}
