"""Many ranks, simulated event by event: tensor parallelism inside a host, data parallelism between hosts.

Each step: LAYERS times a GEMM and an all-reduce in the host that blocks, then an all-reduce with the ranks of the same
place on the other hosts, then the optimizer. What is planted is written beside, in microseconds.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dptune.trace import load
from dptune.trace.run import Run

from .handmade import NCCL, Event, kernel, launch, on_device, step, write

PER_HOST = 4
STEPS = 6
LAYERS = 3
GEMM, TENSOR, DATA, OPTIMIZER = 2_000, 300, 1_500, 500  # usual microseconds
NOISE = 0.005  # standard deviation of a kernel's time, of itself


@dataclass
class Planted:
    """By rank or group, what differs. `delays` gives the time that a rank idles before a step."""

    gemm_times: Mapping[int, float] = field(default_factory=dict)
    delays: Callable[[int, int], float] = lambda rank, step: 0.0
    data_times: Mapping[int, float] = field(default_factory=dict)  # by place in the host
    tensor_times: Mapping[int, float] = field(default_factory=dict)  # by host


def run(folder: Path, hosts: int, planted: Planted, name: Callable[[int], str] = "node{:02d}".format) -> Run:
    """The run of `hosts` times PER_HOST ranks."""
    write_traces(folder, hosts, planted, name)
    return load([folder], cached=False)


def write_traces(folder: Path, hosts: int, planted: Planted, name: Callable[[int], str] = "node{:02d}".format) -> None:
    """The trace of each rank, by its number."""
    ranks = hosts * PER_HOST
    tensor = [list(range(host * PER_HOST, (host + 1) * PER_HOST)) for host in range(hosts)]
    data = [list(range(place, ranks, PER_HOST)) for place in range(PER_HOST)]
    for rank, events in enumerate(_events(ranks, tensor, data, planted)):
        host, place = divmod(rank, PER_HOST)
        groups = [_listed("tp", "mesh_tp", tensor[host]), _listed(f"dp{place}", "mesh_dp", data[place])]
        about = {"backend": "nccl", "rank": rank, "world_size": ranks, "pg_config": groups}
        write(folder / f"{rank}.json", events, distributedInfo=about, host_name=name(host))


def _listed(name: str, description: str, ranks: list[int]) -> dict[str, Any]:
    return {"pg_name": name, "pg_desc": description, "pg_size": len(ranks), "ranks": ranks}


def _events(ranks: int, tensor: list[list[int]], data: list[list[int]], planted: Planted) -> list[list[Event]]:
    noise = random.Random(0)
    free = [1000.0] * ranks
    events: list[list[Event]] = [[] for _ in range(ranks)]
    numbers = [0] * ranks

    def add(rank: int, number: int, made: Callable[[int], Event], end: float) -> None:
        numbers[rank] += 1
        events[rank] += [launch(numbers[rank], 10 * number + 1, 10 * number + 2), made(numbers[rank])]
        free[rank] = end

    def compute(rank: int, number: int, kernel_name: str, usual: float, idle: float = 0.0) -> None:
        start = round(free[rank] + 1 + idle, 3)
        end = round(start + usual * noise.gauss(1, NOISE), 3)
        add(rank, number, lambda correlation: kernel(kernel_name, start, end, correlation), end)

    def collective(members: list[int], number: int, group: str, elements: int, usual: float) -> None:
        told = {"Collective name": "allreduce", "In msg nelems": elements, "Out msg nelems": elements}
        told |= {"dtype": "Float", "Group size": len(members), "Process Group Name": group}
        told |= {"Process Group Ranks": str(members)}
        starts = {rank: round(free[rank] + 1, 3) for rank in members}
        end = round(max(starts.values()) + usual * noise.gauss(1, NOISE), 3)
        for rank, start in starts.items():
            add(rank, number, lambda c, start=start: on_device("kernel", NCCL, start, end, c, 20, **told), end)

    for number in range(STEPS):
        for rank in range(ranks):
            events[rank].append(step(number, 10 * number, 10 * number + 9))
        for layer in range(LAYERS):
            for rank in range(ranks):
                idle = 0.0 if layer else planted.delays(rank, number)
                compute(rank, number, "gemm", GEMM * planted.gemm_times.get(rank, 1.0), idle)
            for host, members in enumerate(tensor):
                collective(members, number, "tp", 100_000, TENSOR * planted.tensor_times.get(host, 1.0))
        for place, members in enumerate(data):
            collective(members, number, f"dp{place}", 1_000_000, DATA * planted.data_times.get(place, 1.0))
        for rank in range(ranks):
            compute(rank, number, "adam", OPTIMIZER)
    return events
