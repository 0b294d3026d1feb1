"""Run the scripts of all ranks: a discrete-event simulation.

- A host does one action after another. A launch takes its time, then the operation is in the queue of its stream; where
  the queue is full the call blocks. A synchronization blocks until the stream is empty.
- A stream does one operation after another. An operation starts `launch_latency_us` after its launch at the earliest,
  `queued_gap_us` after the one before, and after the events that its stream was told to wait for.
- A collective occupies its stream from its start; data is transferred once its last rank has started.
- Compute and communication of a device slow each other. Speeds are constant between changes of what runs; an
  operation ends when its work is done.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
from tests.simulator.actions import (
    COLLECTIVE,
    COMPUTE,
    Action,
    Begin,
    Busy,
    End,
    Graph,
    Launch,
    NextBatch,
    Record,
    Synchronize,
    Thread,
    Wait,
    Work,
    site_hash,
)
from tests.simulator.machine import Machine
from tests.simulator.timeline import DeviceEvent, HostEvent, SyncRecord, Timeline

STEP_COST_US = 30.0  # Python between two steps
_TABLE = 1 << 16
_NORMAL = np.random.default_rng(45).standard_normal(_TABLE).clip(-3, 3).tolist()


def _ns(at_us: float) -> int:
    return round(at_us * 1e3)


def _mixed(number: int) -> int:
    """The finalizer of MurmurHash3, which spreads 32 bits over 32 bits."""
    number = ((number ^ (number >> 16)) * 0x85EBCA6B) & 0xFFFFFFFF
    number = ((number ^ (number >> 13)) * 0xC2B2AE35) & 0xFFFFFFFF
    return number ^ (number >> 16)


class _Noise:
    """Factors on durations: the same for the same site, step and rank."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._bases: dict[tuple[int, int], int] = {}

    def factor(self, deviation: float, site: int, step: int, rank: int = 0) -> float:
        if not deviation:
            return 1.0
        base = self._bases.get((step, rank))
        if base is None:
            base = self._bases[step, rank] = _mixed(_mixed(_mixed(self.seed) ^ step) ^ rank)
        mixed = ((site ^ base) * 0x85EBCA6B) & 0xFFFFFFFF
        mixed = ((mixed ^ (mixed >> 13)) * 0xC2B2AE35) & 0xFFFFFFFF
        return math.exp(deviation * _NORMAL[mixed >> 16])


@dataclass(slots=True)
class _Event:
    """A CUDA event, recorded once."""

    stream: int
    correlation: int
    fired: bool = False
    waiting: list[_Stream] | None = None


@dataclass(slots=True)
class _Item:
    """What lies in the queue of a stream: an operation, an event to record, or one to wait for."""

    launched_us: float
    work: Work | None = None
    recorded: _Event | None = None
    awaited: _Event | None = None
    step: int = 0
    correlation: int = 0
    external: int = 0
    duration_us: float = 0.0


class _Stream:
    """A FIFO stream of a device."""

    __slots__ = ("device", "free_us", "number", "on_empty", "on_room", "pending", "queue", "running", "woken_us")

    def __init__(self, device: _Device, number: int) -> None:
        self.device = device
        self.number = number
        self.queue: deque[_Item] = deque()
        self.pending = 0  # operations launched and not started
        self.free_us = -1e18  # earliest start of the next operation
        self.running: _Running | None = None
        self.on_room: Callable[[], None] | None = None  # the host, blocked at a full queue
        self.on_empty: Callable[[], None] | None = None  # the host, blocked until all is done
        self.woken_us = -1.0

    @property
    def empty(self) -> bool:
        """Whether all that was asked of it is done."""
        return self.running is None and not self.queue


class _Running:
    """An operation that runs."""

    __slots__ = ("collective", "event", "left_us", "since_us", "speed", "stream", "version")

    def __init__(self, stream: _Stream, event: DeviceEvent, left_us: float, since_us: float) -> None:
        self.stream = stream
        self.event = event
        self.left_us = left_us
        self.since_us = since_us
        self.speed = 0.0
        self.version = 0
        self.collective: _Collective | None = None


class _Device:
    """A card: what runs on it now."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.streams: dict[int, _Stream] = {}
        self.compute: list[_Running] = []
        self.waiting = 0  # collectives that wait for other ranks
        self.transferring: list[_Collective] = []

    def stream(self, number: int) -> _Stream:
        if number not in self.streams:
            self.streams[number] = _Stream(self, number)
        return self.streams[number]


class _Collective:
    """One collective of all ranks."""

    __slots__ = ("left_us", "members", "since_us", "slowed_by", "speed", "version")

    def __init__(self) -> None:
        self.members: list[_Running] = []
        self.left_us = 0.0
        self.since_us = 0.0
        self.speed = 0.0
        self.slowed_by = 0  # members whose device computes
        self.version = 0


class _Loader:
    """Batches of a rank's workers: each worker has `prefetch` of them in the making."""

    def __init__(self) -> None:
        self.drawn = 0
        self.requested_us: list[float] = []
        self.ready_us: list[float] = []

    def ready(self, action: NextBatch, now_us: float, decode_us: float) -> float:
        """When the next batch is there, and note that a further one was asked for as it is taken."""
        if not self.requested_us:
            self.requested_us = [now_us] * (action.workers * action.prefetch)
        number = self.drawn
        self.drawn += 1
        worker_free = self.ready_us[number - action.workers] if number >= action.workers else 0.0
        self.ready_us.append(max(worker_free, self.requested_us[number]) + decode_us)
        self.requested_us.append(max(now_us, self.ready_us[number]))
        return self.ready_us[number]


class _Host:
    """The training script of a rank."""

    def __init__(self, simulation: Simulation, rank: int, actions: Sequence[Action]) -> None:
        self.simulation = simulation
        self.rank = rank
        self.actions = actions
        self.position = 0
        self.step = 0
        self.now_us = 0.0
        self.thread = "main"
        self.open: list[HostEvent] = []
        self.events: dict[str, _Event] = {}
        self.loader = _Loader()
        self.timeline = simulation.timelines[rank]
        self.call_started_us = 0.0
        machine = simulation.machine
        self.operator_extra_us = machine.host.profiler_operator_us if simulation.traced else 0.0
        self.call_extra_us = machine.host.profiler_call_us if simulation.traced else 0.0

    def start(self) -> None:
        self._begin_step()
        self.proceed()

    def _begin_step(self) -> None:
        self.host_factor = self.simulation.noise.factor(
            self.simulation.machine.noise.host_step, site_hash("host step"), self.step, self.rank
        )
        self.timeline.step_starts_ns.append(_ns(self.now_us))
        self._open(f"ProfilerStep#{self.step}", "user_annotation", {})

    def _open(self, name: str, category: str, arguments: dict[str, Any]) -> None:
        simulation = self.simulation
        event = HostEvent(
            name, category, self.thread, _ns(self.now_us), 0, arguments, external=next(simulation.external[self.rank])
        )
        self.open.append(event)
        self.timeline.host.append(event)

    def _call(self, name: str, start_us: float, correlation: int) -> None:
        """A call of the runtime from then until now."""
        external = self.open[-1].external if self.open else 0
        self.timeline.host.append(
            HostEvent(
                name,
                "cuda_driver" if name.startswith("cu") and not name.startswith("cuda") else "cuda_runtime",
                self.thread,
                _ns(start_us),
                _ns(self.now_us),
                {},
                external,
                correlation,
            )
        )

    def _cost(self, cost_us: float, site: int) -> float:
        noise = self.simulation.noise
        return (
            cost_us
            * self.host_factor
            * noise.factor(self.simulation.machine.noise.operator, site, self.step, self.rank)
        )

    def proceed(self) -> None:
        """Do what follows, up to the next call that the device notices: that one is done when its time has come."""
        actions, simulation = self.actions, self.simulation
        while True:
            if self.position == len(actions):
                if not self._end_step():
                    return
                continue
            action = actions[self.position]
            match action:
                case Begin():
                    self._open(action.name, action.category, action.arguments)
                    self.now_us += self._cost(action.cost_us, action.site) + 0.6 * self.operator_extra_us
                case End():
                    self.now_us += action.cost_us * self.host_factor + 0.4 * self.operator_extra_us
                    self.open.pop().end_ns = _ns(self.now_us)
                case Busy():
                    self._busy(action)
                case Thread():
                    self.thread = action.name
                case NextBatch():
                    self._next_batch(action)
                case Launch() | Graph():
                    self.call_started_us = self.now_us
                    site = action.work.site if isinstance(action, Launch) else action.site
                    self.now_us += self._cost(simulation.machine.host.launch_us, site) + self.call_extra_us
                    simulation.at(self.now_us, self._launch)
                    return
                case Record() | Wait() | Synchronize():
                    self.call_started_us = self.now_us
                    self.now_us += simulation.machine.host.event_us + self.call_extra_us
                    simulation.at(self.now_us, self._act)
                    return
            self.position += 1

    def _end_step(self) -> bool:
        self.now_us += STEP_COST_US
        for event in self.open:
            event.end_ns = _ns(self.now_us)
        self.open.clear()
        self.step += 1
        self.position = 0
        if self.step == self.simulation.steps:
            self.timeline.step_starts_ns.append(_ns(self.now_us))
            self.timeline.idle_from_ns = _ns(self.now_us)
            return False
        self._begin_step()
        return True

    def _busy(self, action: Busy) -> None:
        if action.rotates and self.step % action.rotates != self.rank:
            return
        noise = self.simulation.noise
        if action.sleeps:
            self.now_us += action.cost_us * noise.factor(action.spread, action.site, self.step)
        else:
            self.now_us += self._cost(action.cost_us, action.site)

    def _next_batch(self, action: NextBatch) -> None:
        decode_us = self._cost(action.decode_us, action.site)
        if not action.workers:
            self.now_us += decode_us
        else:
            self.now_us = max(self.now_us, self.loader.ready(action, self.now_us, decode_us))

    def _launch(self) -> None:
        """Put the operation into its stream, or block until there is room."""
        action = self.actions[self.position]
        simulation = self.simulation
        if isinstance(action, Graph):
            self._launch_graph(action)
        else:
            assert isinstance(action, Launch)
            stream = simulation.devices[self.rank].stream(action.work.stream)
            if stream.pending >= simulation.machine.device.queue_depth:
                stream.on_room = self._unblocked
                return
            correlation = next(simulation.correlation[self.rank])
            self._call(action.call, self.call_started_us, correlation)
            self._enqueue(action.work, correlation)
        self.position += 1
        self.proceed()

    def _enqueue(self, work: Work, correlation: int) -> None:
        simulation = self.simulation
        stream = simulation.devices[self.rank].stream(work.stream)
        stream.pending += 1
        item = _Item(
            self.call_started_us,
            work=work,
            step=self.step,
            correlation=correlation,
            external=self.open[-1].external,
            duration_us=simulation.duration_us(work, self.step, self.rank),
        )
        self._put(stream, item)

    def _launch_graph(self, graph: Graph) -> None:
        """All of a graph, whose operations have the correlation of its launch."""
        device = self.simulation.devices[self.rank]
        correlation = next(self.simulation.correlation[self.rank])
        self._call("cudaGraphLaunch", self.call_started_us, correlation)
        for action in graph.actions:
            if isinstance(action, Launch):
                self._enqueue(action.work, correlation)
            elif isinstance(action, Record):
                event = self.events[action.event] = _Event(action.stream, correlation)
                self._put(device.stream(action.stream), _Item(self.now_us, recorded=event))
            else:
                self._put(device.stream(action.stream), _Item(self.now_us, awaited=self.events[action.event]))

    def _unblocked(self) -> None:
        self.now_us = max(self.now_us, self.simulation.now_us)
        self._launch()

    def _act(self) -> None:
        action = self.actions[self.position]
        simulation = self.simulation
        device = simulation.devices[self.rank]
        match action:
            case Record():
                correlation = next(simulation.correlation[self.rank])
                event = self.events[action.event] = _Event(action.stream, correlation)
                self._call("cudaEventRecord", self.call_started_us, correlation)
                self._put(device.stream(action.stream), _Item(self.now_us, recorded=event))
            case Wait():
                correlation = next(simulation.correlation[self.rank])
                event = self.events[action.event]
                self._call("cudaStreamWaitEvent", self.call_started_us, correlation)
                self.timeline.syncs.append(
                    SyncRecord(
                        "Stream Wait Event",
                        action.stream,
                        _ns(self.call_started_us),
                        _ns(self.now_us),
                        correlation,
                        event.stream,
                        event.correlation,
                    )
                )
                self._put(device.stream(action.stream), _Item(self.now_us, awaited=event))
            case Synchronize():
                stream = device.stream(action.stream)
                if stream.empty:
                    self._synchronized()
                else:
                    stream.on_empty = self._synchronized
                return
            case _:
                raise AssertionError(action)
        self.position += 1
        self.proceed()

    def _put(self, stream: _Stream, item: _Item) -> None:
        stream.queue.append(item)
        self.simulation.pump(stream)

    def _synchronized(self) -> None:
        action = self.actions[self.position]
        assert isinstance(action, Synchronize)
        simulation = self.simulation
        self.now_us = max(self.now_us, simulation.now_us)
        correlation = next(simulation.correlation[self.rank])
        self._call("cudaStreamSynchronize", self.call_started_us, correlation)
        self.timeline.syncs.append(
            SyncRecord("Stream Sync", action.stream, _ns(self.call_started_us), _ns(self.now_us), correlation)
        )
        self.position += 1
        # what follows is done at its time, not at the time of the event that woke the host
        simulation.at(self.now_us, self.proceed)


class Simulation:
    """All ranks, for a number of steps, with the profiler or without."""

    def __init__(self, machine: Machine, scripts: Sequence[Sequence[Action]], steps: int, traced: bool = True) -> None:
        self.machine = machine
        self.steps = steps
        self.traced = traced
        self.now_us = 0.0
        self.noise = _Noise(machine.noise.seed)
        self.timelines = [Timeline(rank) for rank in range(len(scripts))]
        self.devices = [_Device(rank) for rank in range(len(scripts))]
        self.correlation = [count(1) for _ in scripts]
        self.external = [count(1) for _ in scripts]
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._collectives: dict[tuple[int, int], _Collective] = {}
        self._started_collectives: dict[tuple[int, int], int] = {}
        self._hosts = [_Host(self, rank, actions) for rank, actions in enumerate(scripts)]

    def at(self, time_us: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (time_us, next(self._order), action))

    def run(self) -> list[Timeline]:
        for host in self._hosts:
            host.start()
        while self._agenda:
            self.now_us, _, action = heapq.heappop(self._agenda)
            action()
        stuck = [rank for rank, device in enumerate(self.devices) if any(not s.empty for s in device.streams.values())]
        if stuck or any(host.step < self.steps for host in self._hosts):
            raise RuntimeError(f"the simulated ranks wait for each other for ever: {stuck}")
        return self.timelines

    def duration_us(self, work: Work, step: int, rank: int) -> float:
        noise = self.machine.noise
        if work.kind == COLLECTIVE:
            return work.duration_us * self.noise.factor(noise.collective, work.site, step)
        factor = self.noise.factor(noise.kernel, work.site, step, rank)
        return work.duration_us * factor * self.noise.factor(noise.device_step, site_hash("device step"), step, rank)

    def pump(self, stream: _Stream) -> None:
        """Start what can start."""
        device = self.machine.device
        while stream.queue and stream.running is None:
            item = stream.queue[0]
            if item.recorded is not None:
                stream.queue.popleft()
                self._fire(item.recorded)
                continue
            if item.awaited is not None:
                if not item.awaited.fired:
                    if item.awaited.waiting is None:
                        item.awaited.waiting = []
                    item.awaited.waiting.append(stream)
                    return
                stream.queue.popleft()
                continue
            start_us = max(item.launched_us + device.launch_latency_us, stream.free_us)
            if start_us > self.now_us:
                if stream.woken_us != start_us:
                    stream.woken_us = start_us
                    self.at(start_us, lambda: self.pump(stream))
                return
            stream.queue.popleft()
            self._begin(stream, item)
        if stream.empty and stream.on_empty is not None:
            host, stream.on_empty = stream.on_empty, None
            host()

    def _fire(self, event: _Event) -> None:
        event.fired = True
        waiting, event.waiting = event.waiting or [], None
        for stream in waiting:
            stream.free_us = max(stream.free_us, self.now_us + self.machine.device.wait_gap_us)
            self.pump(stream)

    def _begin(self, stream: _Stream, item: _Item) -> None:
        work = item.work
        assert work is not None
        event = DeviceEvent(work, item.step, item.correlation, item.external, _ns(self.now_us), 0)
        self.timelines[stream.device.rank].device.append(event)
        running = stream.running = _Running(stream, event, item.duration_us, self.now_us)
        stream.pending -= 1
        if work.kind == COLLECTIVE:
            self._join(running)
        elif work.kind == COMPUTE:
            stream.device.compute.append(running)
            self._compute_changed(stream.device)
            if len(stream.device.compute) == 1:
                self._slow_transfers(stream.device, 1)
        else:
            self.at(self.now_us + item.duration_us, lambda: self._end(running))
        if stream.on_room is not None:
            self.at(self.now_us, stream.on_room)
            stream.on_room = None

    def _join(self, running: _Running) -> None:
        """A rank starts a collective: the nth of its stream is the nth of the other ranks."""
        device, number = running.stream.device, running.stream.number
        place = (device.rank, number)
        order = self._started_collectives[place] = self._started_collectives.get(place, -1) + 1
        collective = self._collectives.setdefault((number, order), _Collective())
        collective.members.append(running)
        running.collective = collective
        device.waiting += 1
        self._compute_changed(device)
        if len(collective.members) < len(self.devices):
            return
        del self._collectives[number, order]
        collective.left_us = running.left_us
        collective.since_us = self.now_us
        for member in collective.members:
            owner = member.stream.device
            member.event.transfer_ns = _ns(self.now_us)
            owner.waiting -= 1
            owner.transferring.append(collective)
            collective.slowed_by += bool(owner.compute)
            self._compute_changed(owner)
        self._links_changed(collective)

    def _links_changed(self, collective: _Collective) -> None:
        """Speeds of all collectives that share a device with this one."""
        touched = {id(collective): collective} if collective.members[0].collective else {}
        for member in collective.members:
            touched |= {id(other): other for other in member.stream.device.transferring}
        for other in touched.values():
            self._transfer_changed(other)

    def _transfer_changed(self, collective: _Collective) -> None:
        sharing = max(len(member.stream.device.transferring) for member in collective.members)
        slowed = self.machine.device.transfer_beside_compute if collective.slowed_by else 1.0
        speed = 1.0 / (max(1, sharing) * slowed)
        if speed == collective.speed:
            return
        collective.left_us -= (self.now_us - collective.since_us) * collective.speed
        collective.since_us = self.now_us
        collective.speed = speed
        collective.version += 1
        version = collective.version
        self.at(self.now_us + max(0.0, collective.left_us) / speed, lambda: self._transferred(collective, version))

    def _transferred(self, collective: _Collective, version: int) -> None:
        if version != collective.version:
            return
        collective.version += 1
        for member in collective.members:
            member.stream.device.transferring.remove(collective)
        self._links_changed_after(collective)
        for member in collective.members:
            self._compute_changed(member.stream.device)
        for member in collective.members:
            self._end(member)

    def _links_changed_after(self, collective: _Collective) -> None:
        touched: dict[int, _Collective] = {}
        for member in collective.members:
            touched |= {id(other): other for other in member.stream.device.transferring}
        for other in touched.values():
            self._transfer_changed(other)

    def _slow_transfers(self, device: _Device, more: int) -> None:
        """A device starts (1) or stops (-1) to compute."""
        for collective in device.transferring:
            before = bool(collective.slowed_by)
            collective.slowed_by += more
            if bool(collective.slowed_by) != before:
                self._transfer_changed(collective)

    def _compute_changed(self, device: _Device) -> None:
        behaviour = self.machine.device
        slowed = 1.0
        if device.transferring:
            slowed = behaviour.compute_beside_transfer
        elif device.waiting:
            slowed = behaviour.compute_beside_waiting
        if len(device.compute) > 1:
            slowed *= behaviour.compute_beside_compute * (len(device.compute) - 1)
        speed = 1.0 / slowed
        for running in device.compute:
            if running.speed != speed:
                running.left_us -= (self.now_us - running.since_us) * running.speed
                running.since_us = self.now_us
                running.speed = speed
                running.version += 1
                self._schedule_end(running)

    def _schedule_end(self, running: _Running) -> None:
        version = running.version

        def end() -> None:
            if running.version == version:
                running.version += 1
                running.stream.device.compute.remove(running)
                self._compute_changed(running.stream.device)
                if not running.stream.device.compute:
                    self._slow_transfers(running.stream.device, -1)
                self._end(running)

        self.at(self.now_us + max(0.0, running.left_us) / running.speed, end)

    def _end(self, running: _Running) -> None:
        stream = running.stream
        running.event.end_ns = _ns(self.now_us)
        stream.running = None
        stream.free_us = self.now_us + self.machine.device.queued_gap_us
        self.pump(stream)
