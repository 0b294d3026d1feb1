"""Times a small matrix product and convolution on the CPU, in the 16-bit dtypes that the script uses and in fp32.

Instructions alone do not show it: on a CPU with AVX512-FP16 torch 2.13 multiplies matrices in fp16 as fast as in fp32,
and takes a hundred times as long for the gradients of a convolution. Nothing random is drawn, and no graph is recorded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch.optim import Optimizer

from dptune.capture.injected.observe import process_rank
from dptune.capture.injected.observe.places import Places
from dptune.runfile.facts import DtypeSpeedFacts

_HALVES: Mapping[str, torch.dtype] = MappingProxyType({"float16": torch.float16, "bfloat16": torch.bfloat16})
_WIDTH = 192  # a product that takes 0.1 to 0.3 ms in fp32, and 20 ms without instructions for it
_LEAST, _MOST = 3, 7  # repeats: another process may have had the core in one
_ENOUGH_NS = 5_000_000  # for the repeats beyond the least


def measured(places: Places) -> list[DtypeSpeedFacts]:
    """One record per dtype and operator; none where the script computes on no CPU, or in fp32. It takes 0.1 s."""
    if process_rank.device_kind() != "cpu":
        return []
    speeds = []
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        for name in sorted(_used(places)):
            for operator, prepare in (("matrix product", _product), ("convolution", _convolution)):
                whole, half = (_shortest_ns(prepare(dtype)) for dtype in (torch.float32, _HALVES[name]))
                speeds.append(DtypeSpeedFacts(name, operator, half, whole))
    return speeds


def _used(places: Places) -> set[str]:
    """The 16-bit dtypes of autocast and of parameters."""
    used = {(places.autocast or "").removeprefix("cpu:")}
    for optimizer in places.alive(Optimizer):
        used |= {
            str(parameter.dtype).removeprefix("torch.")
            for group in optimizer.param_groups
            for parameter in group["params"]
        }
    return used & _HALVES.keys()


def _product(dtype: torch.dtype) -> Callable[[], Any]:
    rows, weight = (torch.ones(_WIDTH, _WIDTH, dtype=dtype) for _ in range(2))
    return lambda: (torch.nn.functional.linear(rows, weight), rows @ weight, rows.t() @ weight)


def _convolution(dtype: torch.dtype) -> Callable[[], Any]:
    images, weight = torch.ones(4, 16, 8, 8, dtype=dtype), torch.ones(16, 16, 3, 3, dtype=dtype)
    geometry = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False])

    def run() -> None:
        found = torch.nn.functional.conv2d(images, weight, padding=1)
        torch.ops.aten.convolution_backward(found, images, weight, None, *geometry)

    return run


def _shortest_ns(run: Callable[[], Any]) -> int:
    run()  # the first call prepares
    times: list[int] = []
    while len(times) < _LEAST or (len(times) < _MOST and sum(times) < _ENOUGH_NS):
        begun = time.perf_counter_ns()
        run()
        times.append(time.perf_counter_ns() - begun)
    return min(times)
