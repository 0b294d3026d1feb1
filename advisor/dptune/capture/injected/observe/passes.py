"""Where in training a call is made: inside a backward pass, or while a CUDA graph is captured."""

from __future__ import annotations

import torch


def is_in_pass() -> bool:
    """Whether a backward pass runs on this thread."""
    return bool(torch._C._current_graph_task_id() != -1)


def is_captured() -> bool:
    """Whether a CUDA graph is captured, which allows no reading."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
