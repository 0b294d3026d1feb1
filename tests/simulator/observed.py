"""A recorded run as scripts: its launches, host times and kernel durations; the engine has to find the starts.

What is kept of the recording: the host time between two calls, the duration of each operation alone, the order of
launches, and which calls wait. A collective's duration is that of the rank that waited shortest for the others. What is
not kept: when any operation started, how long launches blocked at a full queue, how long collectives waited.

An operation on NCCL's stream waits for what was launched on the compute stream before it. Calls of
`cudaStreamWaitEvent` that do not belong to a launch of NCCL make the compute stream wait for collectives: reductions in
the order of their launches first, then gathers (modded-nanogpt waits for its futures in this order).
"""

from __future__ import annotations

import gzip
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
from tests.simulator import machine
from tests.simulator.account import Account, account
from tests.simulator.actions import COLLECTIVE, COMPUTE, COPY, Action, Busy, Launch, Record, Synchronize, Wait, Work
from tests.simulator.engine import Simulation
from tests.simulator.machine import Machine
from tests.simulator.timeline import DeviceEvent, Timeline

Event = Mapping[str, Any]
_KINDS = {"kernel": COMPUTE, "gpu_memcpy": COPY, "gpu_memset": COPY}
_NCCL_CALLS = 4  # events and waits before the launch of a kernel of NCCL that belong to it, and as many after it
COLLECTIVES = 1000  # their stream here: the recorded number differs between ranks
MOST_LAUNCH_US = 30.0  # a launch that takes longer waits for room in the queue


@dataclass(frozen=True)
class _Recording:
    """One rank's events in the steps that are compared, in order of their starts."""

    calls: list[Event]
    operations: dict[int, Event]  # of the device, by correlation
    starts_us: float

    def launched(self) -> list[Event]:
        found = (self.operations.get(call["args"].get("correlation", -1)) for call in self.calls)
        return [operation for operation in found if operation is not None]


def _is_collective(operation: Event) -> bool:
    return "nccl" in operation["name"].lower()


def _read(path: Path, first: int, steps: int) -> _Recording:
    with gzip.open(path) as file:
        events = [event for event in msgspec.json.decode(file.read())["traceEvents"] if event.get("ph") == "X"]
    marks = [event for event in events if event["name"].startswith("ProfilerStep#")]
    marks = sorted((event for event in marks if event["cat"] == "user_annotation"), key=lambda event: event["ts"])
    begin = marks[first]["ts"]
    end = marks[first + steps - 1]["ts"] + marks[first + steps - 1]["dur"]
    calls = [event for event in events if event["cat"] in ("cuda_runtime", "cuda_driver")]
    calls = sorted((call for call in calls if begin <= call["ts"] < end), key=lambda event: event["ts"])
    operations = {event["args"]["correlation"]: event for event in events if event["cat"] in _KINDS}
    return _Recording(calls, operations, begin)


@dataclass(frozen=True)
class Observed:
    """A run to simulate, and the recorded account of each rank."""

    machine: Machine
    scripts: list[list[Action]]
    accounts: list[Account]

    def simulated(self) -> list[Account]:
        """The account of each rank, from the first operation to the end of the last."""
        timelines = Simulation(self.machine, self.scripts, steps=1, traced=False).run()
        return [_whole(timeline) for timeline in timelines]


def _whole(timeline: Timeline) -> Account:
    kept = [operation for operation in timeline.device if operation.work.name != "backlog"]
    low, high = min(operation.start_ns for operation in kept), max(operation.end_ns for operation in kept)
    return account(replace(timeline, device=kept), (low, high))


def observed(paths: Sequence[Path], first: int, steps: int, like: Machine) -> Observed:
    """Steps of a recording of all ranks; the machine has the card and constants of `like` but for what is measured."""
    recordings = [_read(path, first, steps) for path in paths]
    collectives = [[op for op in rank.launched() if _is_collective(op)] for rank in recordings]
    durations = [min(op["dur"] for op in together) for together in zip(*collectives, strict=True)]
    launches = [call["dur"] for rank in recordings for call in rank.calls if "aunch" in call["name"]]
    found = replace(
        like.without_noise(),
        host=replace(like.host, launch_us=median(launches), event_us=1.0),
        device=replace(
            like.device,
            compute_beside_transfer=1.0,
            compute_beside_waiting=1.0,
            transfer_beside_compute=1.0,
            compute_beside_compute=1.0,
            queued_gap_us=_queued_gap_us(recordings),
        ),
    )
    begin = min(rank.calls[0]["ts"] for rank in recordings)
    scripts = [_script(rank, durations, found.host, begin) for rank in recordings]
    return Observed(found, scripts, [_recorded(rank) for rank in recordings])


def _queued_gap_us(recordings: Sequence[_Recording]) -> float:
    """The median gap before operations that were launched long before the one before them ended."""
    gaps: list[float] = []
    for rank in recordings:
        streams = defaultdict(list)
        calls = {call["args"].get("correlation"): call["ts"] for call in rank.calls}
        for operation in rank.launched():
            if not _is_collective(operation):
                streams[operation["args"]["stream"]].append(operation)
        for operations in streams.values():
            operations.sort(key=lambda operation: operation["ts"])
            for before, after in pairwise(operations):
                end = before["ts"] + before["dur"]
                if calls[after["args"]["correlation"]] + 50 < end:
                    gaps.append(after["ts"] - end)
    return median(gaps)


def _recorded(rank: _Recording) -> Account:
    """The account of what was recorded, by the same arithmetic."""
    device = []
    for operation in rank.launched():
        kind = COLLECTIVE if _is_collective(operation) else _KINDS[operation["cat"]]
        start_us = operation["ts"] - rank.starts_us
        work = Work(kind, operation["name"], operation["args"]["stream"], operation["dur"], 0)
        device.append(DeviceEvent(work, 0, 0, 0, round(start_us * 1e3), round((start_us + operation["dur"]) * 1e3)))
    return _whole(Timeline(0, device=device))


def _script(rank: _Recording, durations: Sequence[float], host: machine.Host, begin_us: float) -> list[Action]:
    """`begin_us`: when the first of the ranks, which share a clock, made its first call."""
    launched = rank.launched()
    stream = launched[0]["args"]["stream"]
    backlog_us = min(operation["ts"] for operation in launched) - rank.calls[0]["ts"]
    actions: list[Action] = [
        Busy(rank.calls[0]["ts"] - begin_us, 0),
        Launch(Work(COMPUTE, "backlog", stream, max(1.0, backlog_us), 0)),
    ]
    transfers = deque(durations)
    started: dict[str, deque[str]] = {"reduce": deque(), "gather": deque()}
    belong = _of_nccl(rank)
    now_us = rank.calls[0]["ts"]
    for number, call in enumerate(rank.calls):
        actions.append(Busy(max(0.0, call["ts"] - now_us), 0))
        now_us = call["ts"] + call["dur"]
        operation = rank.operations.get(call["args"].get("correlation", -1))
        if operation is not None:
            actions += _launch(operation, f"{number}", stream, transfers, started)
            if "aunch" not in call["name"]:
                actions.append(Busy(max(0.0, min(call["dur"], MOST_LAUNCH_US) - host.launch_us), 0))
        elif call["name"] == "cudaStreamWaitEvent" and number not in belong:
            waited = started["reduce"] or started["gather"]
            if waited:
                actions.append(Wait(waited.popleft(), stream))
        elif call["name"] in ("cudaStreamSynchronize", "cudaDeviceSynchronize"):
            actions.append(Synchronize(stream))
        else:
            actions.append(Busy(call["dur"], 0))
    return actions


def _launch(
    operation: Event, name: str, stream: int, transfers: deque[float], started: Mapping[str, deque[str]]
) -> list[Action]:
    if not _is_collective(operation):
        number = operation["args"]["stream"]
        return [Launch(Work(_KINDS[operation["cat"]], operation["name"], number, operation["dur"], 0))]
    number = COLLECTIVES
    event = f"collective {name}"
    started["reduce" if "Reduce" in operation["name"] else "gather"].append(event)
    return [
        Record(f"before {event}", stream),
        Wait(f"before {event}", number),
        Launch(Work(COLLECTIVE, operation["name"], number, transfers.popleft(), 0)),
        Record(event, number),
    ]


def _of_nccl(rank: _Recording) -> set[int]:
    """Places of the events and waits around launches of NCCL's kernels."""
    events = [number for number, call in enumerate(rank.calls) if "Event" in call["name"]]
    found: set[int] = set()
    for number, call in enumerate(rank.calls):
        operation = rank.operations.get(call["args"].get("correlation", -1))
        if operation is not None and _is_collective(operation):
            found |= set([event for event in events if event < number][-_NCCL_CALLS:])
            found |= set([event for event in events if event > number][:_NCCL_CALLS])
    return found
