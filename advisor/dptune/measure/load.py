"""The load of each machine while steps were recorded, from what its ranks counted.

What other processes use is what the machine used less what all ranks on it used. Threads wait for a core because other
processes run, or because the job itself has more threads than there are cores. Without the others the job could have
had at most the time that they ran: the smaller of that time and of the wait is the most that they withheld. Where half
of the cores are free on average, and the ranks may run on all of them, threads wait for the kernel to place them, and
not for others: two ranks on an H200 used 5.8 of 16 cores, others 0.6, and their threads waited for half a core.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from dptune.measured import LoadFigures
from dptune.runfile.facts import Facts
from dptune.runfile.load import LoadFacts

UNCOUNTED = "no window counted the CPU time of other processes"
UNRECORDED = "not all ranks were recorded, so their load cannot be separated from that of other processes"
CROWDED = 0.5  # of the cores in use or waited for, below which other processes withhold none

_NO_WAIT = "the kernel does not count how long threads wait for a core"


def load(facts: Sequence[Facts], world_size: int | None) -> list[LoadFigures] | str:
    """By machine and window, or why it is not known."""
    if world_size is not None and len(facts) < world_size:
        return UNRECORDED if facts else UNCOUNTED
    found = [
        figures
        for host in dict.fromkeys(rank.host for rank in facts)
        for window in ("untraced", "light", "detailed")
        if (figures := _of_window([rank for rank in facts if rank.host == host], host, window)) is not None
    ]
    return found or UNCOUNTED


def _of_window(ranks: Sequence[Facts], host: str, name: str) -> LoadFigures | None:
    counted = [window.load for rank in ranks if (window := rank.window(name)) is not None]
    loads = [rank_load for rank_load in counted if rank_load is not None and rank_load.wall_ns > 0]
    if len(loads) < len(ranks):
        return None
    machine, jobs, waits = (_cores(loads, field) for field in ("machine_ns", "job_ns", "waited_ns"))
    if machine is None or jobs is None:
        return None
    waiting = None if waits is None else sum(waits)
    return LoadFigures(
        host=host,
        window=name,
        cores=loads[0].cores,
        job_cores=sum(jobs),
        other_cores=max(0.0, mean(machine) - sum(jobs)),
        waiting_cores=waiting,
        withheld_share=withheld_share(ranks, loads),
        missing={} if waiting is not None else {"waiting_cores": _NO_WAIT, "withheld_share": _NO_WAIT},
    )


def withheld_share(ranks: Sequence[Facts], loads: Sequence[LoadFacts]) -> float | None:
    """What other processes withheld at most, as a share of the CPU time that the ranks of a machine used or waited for.

    `loads`: one per rank. None where the system does not count what it takes.
    """
    machine, jobs, waits = (_cores(loads, field) for field in ("machine_ns", "job_ns", "waited_ns"))
    if not loads or machine is None or jobs is None or waits is None:
        return None
    job, waiting = sum(jobs), sum(waits)
    withheld = min(waiting, max(0.0, mean(machine) - job))
    if mean(machine) + waiting <= CROWDED * loads[0].cores and _may_use_all(ranks, loads):
        withheld = 0.0
    needed = job + withheld
    return withheld / needed if needed else 0.0


def _may_use_all(ranks: Sequence[Facts], loads: Sequence[LoadFacts]) -> bool:
    """Whether no rank is kept to some of the cores, where others may be busy while the rest is free."""
    pairs = zip(ranks, loads, strict=True)
    return all(rank.device is not None and (rank.device.usable_cores or 0) >= load.cores for rank, load in pairs)


def _cores(loads: Sequence[LoadFacts], field: str) -> list[float] | None:
    """A count of each rank as cores; None where one of them does not have it."""
    counts = [getattr(rank_load, field) for rank_load in loads]
    return (
        None if None in counts else [count / rank_load.wall_ns for count, rank_load in zip(counts, loads, strict=True)]
    )
