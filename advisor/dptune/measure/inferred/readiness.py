"""When the gradients of a backward pass become ready: those that DDP could send by then.

On the host a gradient is there when autograd's AccumulateGrad node of its parameter begins. On a GPU it is ready when
the kernels that the host had launched for the pass by then have ended. Times of the profiler, which slows the host.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

import numpy as np

from dptune.measure.host.launches import UNLAUNCHED
from dptune.measure.inferred.hosts import HostEvents
from dptune.measure.intervals import Ints
from dptune.measured import Trait
from dptune.trace.kernels import KERNEL_CATEGORIES, Work

_LEAST = 4  # gradients: of fewer, no share is worth a line


def readiness(host: HostEvents) -> Iterator[Trait]:
    """When the first, half and all gradients of the usual backward pass are ready, from its start."""
    counts = host.gradients_by_pass()
    if not counts:
        return
    usual = round(median(counts))
    found = [ready_ns for ready_ns in ready_by_pass(host) if len(ready_ns) == usual]
    if usual < _LEAST or not found:
        return
    first, half, last = (median(float(each[at]) for each in found) / 1e6 for at in (0, (usual - 1) // 2, -1))
    on = "host" if _on_host(host) else "GPU"
    value = f"{usual} per backward pass: first ready {first:.3g} ms after the pass starts, half {half:.3g} ms, last "
    yield Trait(name="gradients", value=f"{value}{last:.3g} ms (traced times on the {on})", confidence="medium")


def ready_by_pass(host: HostEvents) -> list[Ints]:
    """Of each backward pass with nodes and gradients, when each gradient is ready, ascending: ns since it began."""
    columns = host.columns
    of_gradients, of_nodes = host.pass_of(host.gradients), host.pass_of(host.backward)
    launched_ns, started_ns, ended_ns = _kernels(host)
    found = []
    for number in np.intersect1d(of_gradients, of_nodes).tolist():
        begin_ns = int(columns.ts_ns[host.backward[of_nodes == number]].min())
        at_ns = columns.ts_ns[host.gradients[of_gradients == number]]
        if _on_host(host):
            found.append(np.sort(at_ns - begin_ns))
            continue
        first = int(np.searchsorted(launched_ns, begin_ns))
        last = np.searchsorted(launched_ns, at_ns) - 1
        if first < len(started_ns) and (last >= first).all():
            latest_ns = np.maximum.accumulate(ended_ns[first:])
            found.append(np.sort(latest_ns[last - first] - started_ns[first]))
    return found


def _on_host(host: HostEvents) -> bool:
    return all(device.operations.on_cpu for device in host.view.devices)


def _kernels(host: HostEvents) -> tuple[Ints, Ints, Ints]:
    """When the host launched each kernel that computes, when it started and when it ended, in order of launching."""
    columns, rows, launches = host.columns, [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    for device in host.view.devices:
        ran = device.operations
        if not ran.on_cpu:
            chosen = (ran.work == Work.COMPUTE) & (ran.launch != UNLAUNCHED)
            chosen &= columns.of_category(KERNEL_CATEGORIES, ran.rows)
            rows.append(ran.rows[chosen])
            launches.append(ran.launch[chosen])
    every, launch = np.concatenate(rows), np.concatenate(launches)
    order = np.argsort(columns.ts_ns[launch], kind="stable")
    every, launch = every[order], launch[order]
    return columns.ts_ns[launch], columns.ts_ns[every], columns.ends(every)
