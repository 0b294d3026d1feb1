"""Debug environment variables that are on, from calls of the CUDA or HIP runtime."""

from __future__ import annotations

import re

import numpy as np

from dptune.measure.host.launches import UNLAUNCHED
from dptune.measure.inferred.finding import Inferred
from dptune.measure.inferred.hosts import HostEvents
from dptune.measure.steps.windows import OUTSIDE
from dptune.trace.kernels import KERNEL_CATEGORIES, LAUNCH_CATEGORIES

_LONG_NS = 20_000  # a launch takes 3 to 10 us, with the profiler too: one that holds such a kernel waited for it
_LEAST_KERNELS = 20
_NEARLY_ALL, _MOST = 0.95, 0.5
_ALLOCATES = re.compile(r"(cuda|hip)Malloc$")
_FREES = re.compile(r"(cuda|hip)Free$")
_TENSORS = re.compile(r"aten::(empty|empty_strided|empty_like)$")
_EACH = 0.5  # calls of the driver for each tensor: some tensors are of the CPU; a cache, even if emptied, takes 0.1


def switches(host: HostEvents) -> list[Inferred]:
    """The debug variables that are on, as an environment; nothing unless the trace shows both of them to be on or off.

    No event shows that anomaly detection or TORCH_DISTRIBUTED_DEBUG is on.
    """
    blocking, uncached = _launches_block(host), _is_uncached(host)
    if blocking is None or uncached is None:
        return []
    found = {"CUDA_LAUNCH_BLOCKING": blocking, "PYTORCH_NO_CUDA_MEMORY_CACHING": uncached}
    return [Inferred.of("environment", {name: "1" for name, on in found.items() if on}, "medium")]


def _launches_block(host: HostEvents) -> bool | None:
    """Whether launches return only when their kernel has ended; None if too few long kernels show it.

    If most kernels end after the call that launched them has returned, launches do not block.
    """
    columns = host.columns
    within, length_ns = np.zeros(0, dtype=np.bool_), np.zeros(0, dtype=np.int64)
    for device in host.view.devices:
        ran = device.operations
        if ran.on_cpu:
            continue
        chosen = (device.launched_in != OUTSIDE) & (ran.launch != UNLAUNCHED)
        chosen &= columns.of_category(KERNEL_CATEGORIES, ran.rows)
        chosen[chosen] = columns.ts_ns[ran.launch[chosen]] <= columns.ts_ns[ran.rows[chosen]]  # by clocks that agree
        waited = columns.ends(ran.launch[chosen]) >= columns.ends(ran.rows[chosen])
        within, length_ns = np.append(within, waited), np.append(length_ns, columns.dur_ns[ran.rows[chosen]])
    if len(within) < _LEAST_KERNELS:
        return None
    if within.mean() < _MOST:
        return False
    long = within[length_ns >= _LONG_NS]
    return True if len(long) >= _LEAST_KERNELS and long.mean() >= _NEARLY_ALL else None


def _is_uncached(host: HostEvents) -> bool | None:
    """Whether each tensor takes a driver call; None if the trace shows no calls or no tensors."""
    tensors = len(host.rows(_TENSORS))
    if not tensors or not len(host.columns.rows(LAUNCH_CATEGORIES)):
        return None
    return all(len(host.calls(pattern)) >= _EACH * tensors for pattern in (_ALLOCATES, _FREES))
