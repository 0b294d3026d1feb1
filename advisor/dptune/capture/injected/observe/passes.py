"""Where in training a call is made: inside a backward pass, or while a CUDA graph is captured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch


def is_in_pass() -> bool:
    """Whether a backward pass runs on this thread."""
    return bool(torch._C._current_graph_task_id() != -1)


def is_captured() -> bool:
    """Whether a CUDA graph is captured, which allows no reading."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def has_closure(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether the arguments of an optimizer's step, of which the first is the optimizer, have a closure."""
    return any(map(callable, (*args[1:], *kwargs.values())))


def is_plain_step(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether an optimizer's step with these arguments runs eagerly, outside of backward passes, without a closure."""
    if torch.compiler.is_compiling() or is_captured() or is_in_pass():
        return False
    return not has_closure(args, kwargs)
