"""How much of the machine's cores a job and all other processes used while a window was open, and who had to wait."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class LoadFacts:
    """CPU time around one window of one rank, ns. None where the system does not count it.

    `wall_ns` is how long was counted, `cores` how many the machine has. `machine_ns` is the CPU time of all processes
    of the machine, `job_ns` that of this rank's process and its children (loader workers). `ran_ns` is the CPU time of
    this rank's own threads, `waited_ns` how long they were ready to run and waited for a core: both are sums over
    threads. `training_waited_ns` is that wait of the training thread alone, and `preempted` how many times another
    thread took the core from it.
    """

    wall_ns: int
    cores: int
    machine_ns: int | None = None
    job_ns: int | None = None
    ran_ns: int | None = None
    waited_ns: int | None = None
    training_waited_ns: int | None = None
    preempted: int | None = None
