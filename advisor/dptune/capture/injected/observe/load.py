"""Reads how much CPU time this job and the whole machine have used, and how long this job's threads waited for a core.

On Linux all of it is in /proc; elsewhere psutil is asked, where the script's environment has it. Reading takes some
milliseconds on a machine with a thousand processes, outside of the steps that are timed.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dptune.capture.injected.observe.stolen_time import Ticks
from dptune.runfile.load import LoadFacts

_PROC = Path("/proc")
_MOST_PROCESSES = 20_000  # of more, finding this one's children takes too long
_LEAST_NS = 300_000_000  # of wall time: the kernel counts CPU time in ticks of 10 ms
_S = 1_000_000_000


@dataclass(frozen=True)
class Waits:
    """CPU time and run-queue wait of the threads of this process by their number, ns; those of the training thread."""

    ran: dict[str, int]
    waited: dict[str, int]
    training: str


@dataclass(frozen=True)
class Reading:
    """All counters at one moment; None for each that the system does not have."""

    wall_ns: int
    machine_ns: int | None
    job_ns: int | None
    waits: Waits | None
    preempted: int | None

    @classmethod
    def now(cls) -> Reading:
        """The counters as they stand, of the thread that calls."""
        machine_ns, children_ns = _linux() if _PROC.joinpath("self", "stat").exists() else _elsewhere()
        return cls(
            wall_ns=time.perf_counter_ns(),
            machine_ns=machine_ns,
            job_ns=None if children_ns is None else time.process_time_ns() + children_ns,
            waits=_waits(),
            preempted=_preempted(),
        )

    def until(self, later: Reading) -> LoadFacts | None:
        """What was used from this reading to a later one; None where that is too short to tell."""
        wall_ns = later.wall_ns - self.wall_ns
        if wall_ns < _LEAST_NS:
            return None
        found = LoadFacts(
            wall_ns=wall_ns,
            cores=os.cpu_count() or 1,
            machine_ns=_less(later.machine_ns, self.machine_ns),
            job_ns=_less(later.job_ns, self.job_ns),
            preempted=_less(later.preempted, self.preempted),
        )
        if self.waits is not None and later.waits is not None:
            found.ran_ns, found.waited_ns = (
                sum(now - before.get(thread, 0) for thread, now in after.items())
                for before, after in ((self.waits.ran, later.waits.ran), (self.waits.waited, later.waits.waited))
            )
            training = later.waits.training
            if training == self.waits.training:
                found.training_waited_ns = later.waits.waited[training] - self.waits.waited[training]
        return found


def _less(later: int | None, earlier: int | None) -> int | None:
    return None if later is None or earlier is None else max(0, later - earlier)


def _linux() -> tuple[int | None, int | None]:
    """CPU time of the machine and of this process's children, those that have ended too."""
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    ticks = Ticks.now()
    machine_ns = None if ticks is None else ticks.ran * _S // ticks_per_s
    try:
        return machine_ns, _children_ticks() * _S // ticks_per_s
    except (OSError, ValueError, IndexError):
        return machine_ns, None


def _children_ticks() -> int:
    processes = [name for name in os.listdir(_PROC) if name.isdecimal()]  # noqa: PTH208 - each call is in the trace
    if len(processes) > _MOST_PROCESSES:
        raise ValueError("too many processes")
    stats = {int(name): fields for name in processes if (fields := _stat(name))}
    parents = {process: int(fields[1]) for process, fields in stats.items()}
    own_pid = os.getpid()
    children = {own_pid}
    grown = True
    while grown:
        found = {process for process, parent in parents.items() if parent in children} - children
        children |= found
        grown = bool(found)
    of_ended = sum(map(int, stats[own_pid][13:15]))
    return of_ended + sum(int(ticks) for process in children - {own_pid} for ticks in stats[process][11:15])


def _stat(process: str) -> list[bytes]:
    """The fields of /proc/PID/stat from the state on; empty where the process has ended meanwhile.

    In few calls: a profiler that records Python functions is running while a detailed window is closed.
    """
    try:
        with open(f"{_PROC}/{process}/stat", "rb", buffering=0) as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []


def _elsewhere() -> tuple[int | None, int | None]:
    with contextlib.suppress(Exception):
        psutil: Any = importlib.import_module("psutil")
        times = psutil.cpu_times()
        machine = sum(getattr(times, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq", "interrupt"))
        children = sum(sum(child.cpu_times()[:2]) for child in psutil.Process().children(recursive=True))
        return round(machine * _S), round(children * _S)
    return None, None


def _waits() -> Waits | None:
    """By thread of this process, from its schedstat: time on a core and time on a run queue."""
    training = str(threading.get_native_id())
    found = dict(_schedstats())
    if training not in found:
        return None
    ran = {thread: times[0] for thread, times in found.items()}
    return Waits(ran, {thread: times[1] for thread, times in found.items()}, training)


def _schedstats() -> Iterator[tuple[str, tuple[int, int]]]:
    with contextlib.suppress(OSError, ValueError):
        for task in (_PROC / "self" / "task").iterdir():
            with contextlib.suppress(OSError):  # it has ended meanwhile
                ran, waited, _ = (task / "schedstat").read_text().split()
                yield task.name, (int(ran), int(waited))


def _preempted() -> int | None:
    try:
        import resource

        return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw
    except (ImportError, AttributeError, OSError, ValueError):  # not Linux
        return None
