"""Measures the peak of a CPU: dense matrix products with the run's threads, by all ranks of a host at once.

MFU and HFU refer to it, for no vendor states a peak for the cores and threads that a rank has. It runs after the last
window, when the script's steps are no longer timed: 0.3 s per dtype. Nothing random is drawn, and no graph is recorded.

The highest rate of all products counts. Small products fit into one time slice of the kernel, so other processes hardly
lower their rate; large ones keep many threads busy.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Sequence

import torch
from torch.distributed import distributed_c10d
from torch.optim import Optimizer

from dptune.capture.injected.observe import process_rank
from dptune.capture.injected.observe.load import Reading
from dptune.capture.injected.observe.places import Places
from dptune.runfile.cpu_peak import CpuPeakFacts, DtypePeakFacts

_DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
_WIDTHS = (256, 512, 1024, 2048)  # 48 MiB of fp32 at most
_LONG_NS = 20_000_000  # a product of this length needs no larger width
_SPENT_NS = 330_000_000  # per dtype: CPU time of other processes is counted in ticks of 10 ms, over at least 300 ms
_LEAST = 2  # products of the last width
_PATIENCE_S = 2.0  # for the other ranks to close their windows


def measured(places: Places, recorded: Sequence[int] | None) -> CpuPeakFacts | None:
    """The peak by dtype; None if the script does not compute on CPUs. `recorded`: ranks that measure, None for all."""
    if process_rank.device_kind() != "cpu":
        return None
    expected = _expected(recorded)
    found = CpuPeakFacts(torch.get_num_threads(), 1 if expected == 1 else _meet(expected), expected)
    before = Reading.now()
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        for name in _used(places):
            with contextlib.suppress(RuntimeError):  # a torch without products in that dtype
                found.dtypes.append(_peak(name))
    found.load = before.until(Reading.now())
    return found


def _used(places: Places) -> list[str]:
    """fp32, and what parameters and autocast compute in besides."""
    used = {"float32", (places.autocast or "").removeprefix("cpu:")}
    for optimizer in places.alive(Optimizer):
        used |= {
            str(parameter.dtype).removeprefix("torch.")
            for group in optimizer.param_groups
            for parameter in group["params"]
        }
    return [name for name in _DTYPES if name in used]


def _expected(recorded: Sequence[int] | None) -> int:
    """How many ranks of this host measure."""
    if not process_rank.together():
        return 1
    local = os.environ.get("LOCAL_WORLD_SIZE", "")
    here = int(local) if local.isdecimal() else process_rank.world_size()
    return here if recorded is None else min(here, len(recorded))


def _meet(expected: int) -> int:
    """Wait until all ranks of this host are here, but not for long; how many are."""
    come = 1
    with contextlib.suppress(Exception):  # the store is gone
        store, key = distributed_c10d._get_default_store(), f"dptune/peak/{socket.gethostname()}"
        deadline = time.monotonic() + _PATIENCE_S
        come = store.add(key, 1)
        while come < expected and time.monotonic() < deadline:
            time.sleep(0.005)
            come = store.add(key, 0)
    return come


def _peak(name: str) -> DtypePeakFacts:
    best = DtypePeakFacts(name, 0.0, 0, 0)
    deadline = time.perf_counter_ns() + _SPENT_NS
    for width in _WIDTHS:
        left, right, product = (torch.ones(width, width, dtype=_DTYPES[name], device="cpu") for _ in range(3))
        torch.mm(left, right, out=product)  # the first one prepares
        last = width == _WIDTHS[-1]
        timed = 0
        while timed < _LEAST or (last and time.perf_counter_ns() < deadline):
            begun = time.perf_counter_ns()
            torch.mm(left, right, out=product)
            took_ns = time.perf_counter_ns() - begun
            timed += 1
            rate = 2 * width**3 / took_ns * 1e9
            if rate > best.flops_per_s:
                best.flops_per_s, best.width = rate, width
            last = last or took_ns >= _LONG_NS
        best.products += timed
        if last:
            break
    return best
