"""The cores that preparing batches takes and leaves, and how many workers keep up within them."""

from __future__ import annotations

import math

from dptune.measured import PreparingFigures
from dptune.rule import RunView
from dptune_rules.input.loader_waits import batches_per_step

MOST_WORKERS = 16  # where the cores are not known
COMPUTED_SHARE = 0.5  # of the wait: above it preparing a batch takes a core, below it sleeps (storage, network)


def spare_share(run: RunView) -> float:
    """Share of a step in which the busiest rank does nothing but wait, for its batch or for others; 0 if not known.

    On a CPU, preparing a batch takes the cores of threads that communicate, and makes ranks wait for each other: a
    cheaper batch saves some of that, too.
    """
    busy = run.busy_ns(with_input=False)
    return max(0.0, 1 - max(busy.values()) / run.measured.step.time_ns) if busy else 0.0


def share_of_cores(run: RunView, preparing: PreparingFigures | None) -> float:
    """Share of a step that the cores of the host take for preparing batches; 1 if not known."""
    device = run.facts[0].device if run.facts else None
    if preparing is None or device is None or not device.usable_cores:
        return 1.0
    computed_ns = preparing.computed_share * preparing.batch_ns * batches_per_step(run) * run.ranks_here()
    return min(1.0, computed_ns / device.usable_cores / run.measured.step.time_ns)


def core_per_process(run: RunView, workers: int | None) -> float:
    """How much of a core each process has where all compute: less than that it does not compute for lack of cores.

    Other processes leave less.
    """
    device = run.facts[0].device if run.facts else None
    cores = device.usable_cores if device else None
    withheld = max((load.known("withheld_share") or 0.0 for load in run.measured.known("load") or []), default=0.0)
    each = min(1.0, cores / (run.ranks_here() * (1 + (workers or 0)))) if cores else 1.0
    return each * (1 - withheld)


def free_cores(run: RunView, computed: float | None, workers: int | None) -> int | None:
    """Cores that workers of one rank may take: its part of the host's; None where they are not known or not needed.

    A model on the CPU has its own threads' cores taken, unless a batch is mostly waited for, not computed.
    """
    if not run.facts or run.facts[0].device is None or not run.facts[0].device.usable_cores:
        return None
    device = run.facts[0].device
    if computed is not None and computed < COMPUTED_SHARE * core_per_process(run, workers):
        return None
    share = max(1, (device.usable_cores or 1) // run.ranks_here())
    return max(0, share - (device.torch_threads or 1)) if device.kind == "cpu" else share


def workers_that_keep_up(now: int, wait: float, cores: int | None) -> int | None:
    """How many workers keep up, and one to spare, within the cores; None where that is not more than now."""
    most = MOST_WORKERS if cores is None else cores
    then = min(keep_up(now, wait) + 1, most)
    return then if then > now else None


def keep_up(now: int, wait: float) -> int:
    """How many workers prepare batches as fast as steps consume them."""
    return math.ceil((now or wait) / max(1 - wait, 1e-9))


def computed_share_of(run: RunView, preparing: PreparingFigures | None, workers: int | None) -> float | None:
    """The part of preparing batches in which it computes; None where that is not known."""
    if preparing:
        return preparing.computed_share
    # With workers the training thread sleeps while it waits, whatever they do.
    return None if workers else run.measured.input.known("computed_share")
