"""Activation checkpointing off: what a script or a library wants checkpointed is called, and nothing else.

Libraries take torch's function by name as they are imported, so that it is replaced as soon as torch has it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

from dptune.capture.injected.applying.requested import asked
from dptune.capture.injected.imports import imports

_NAME = "memory.checkpointing"


def checkpointing(value: bool) -> None:
    """Call functions without a checkpoint; which ones to checkpoint is not known from outside."""
    if value:
        asked.refuse(_NAME, "it can be switched off but not on: only the script knows which parts to checkpoint")
    else:
        imports.after("torch.utils.checkpoint", _without)


def _without(module: ModuleType) -> None:
    checkpoint = module.checkpoint
    options = {
        name
        for name, parameter in inspect.signature(checkpoint).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY or name in ("use_reentrant", "preserve_rng_state")
    }

    @functools.wraps(checkpoint)
    def called(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return function(*args, **{name: kwarg for name, kwarg in kwargs.items() if name not in options})

    setattr(module, "checkpoint", called)  # noqa: B010 - of a module of that name only


APPLIERS: dict[str, Callable[[Any], None]] = {_NAME: checkpointing}
