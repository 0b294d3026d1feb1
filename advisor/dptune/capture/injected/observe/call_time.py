"""Times what calling an operator takes on the host, of one that computes nothing.

What a wrapper of a model does in Python, and an optimizer for each tensor, takes longer where this does.
"""

from __future__ import annotations

import time

import torch

from dptune.capture.injected.observe import process_rank

_CALLS, _REPEATS = 200, 7  # another process may have had the core in one


def measured() -> float | None:
    """Of each call, ns: the shortest of several means, 2 ms in all. None if the script does not compute on CPUs."""
    if process_rank.device_kind() != "cpu":
        return None
    rows = torch.ones(2, 2, device="cpu")
    with torch.no_grad():
        return min(_took_ns(rows) for _ in range(_REPEATS)) / _CALLS


def _took_ns(rows: torch.Tensor) -> int:
    begun = time.perf_counter_ns()
    for _ in range(_CALLS):
        rows.transpose(0, 1)
    return time.perf_counter_ns() - begun
