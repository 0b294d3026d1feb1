"""Run the scripts of all ranks: a discrete-event simulation.

- A host does one action after another. A launch takes its time, then the operation is in the queue of its stream; where
  the queue is full the call blocks. A synchronization blocks until the stream is empty.
- A stream does one operation after another. An operation starts `launch_latency_us` after its launch at the earliest,
  `queued_gap_us` after the one before, and after the events that its stream waits for.
- A collective occupies its stream from its start; data is transferred once its last rank has started.
- Compute and communication of a device slow each other. Speeds are constant between changes of what runs; an
  operation ends when its work is done.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from itertools import count

from tests.simulator.actions import COLLECTIVE, COMPUTE, Action, Work, site_hash
from tests.simulator.devices import Collective, CudaEvent, Device, Item, Running, Stream
from tests.simulator.hosts import Host
from tests.simulator.machine import Machine
from tests.simulator.noise import Factors
from tests.simulator.timeline import DeviceEvent, Timeline, nanoseconds

_LATENCY, _GAP, _DEVICE_STEP = site_hash("latency"), site_hash("gap"), site_hash("device step")


class Simulation:
    """All ranks, for a number of steps, with the profiler or without."""

    def __init__(self, machine: Machine, scripts: Sequence[Sequence[Action]], steps: int, traced: bool = True) -> None:
        self.machine = machine
        self.steps = steps
        self.traced = traced
        self.now_us = 0.0
        self.noise = Factors(machine.noise.seed)
        self.timelines = [Timeline(rank) for rank in range(len(scripts))]
        self.devices = [Device(rank) for rank in range(len(scripts))]
        self.correlation = [count(1) for _ in scripts]
        self.external = [count(1) for _ in scripts]
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._collectives: dict[tuple[int, int], Collective] = {}
        self._started_collectives: dict[tuple[int, int], int] = {}
        self._hosts = [Host(self, rank, actions) for rank, actions in enumerate(scripts)]

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
        return work.duration_us * factor * self.noise.factor(noise.device_step, _DEVICE_STEP, step, rank)

    def latency_us(self, work: Work, step: int, rank: int) -> float:
        """From the call that launches to the start on an idle device."""
        factor = self.noise.factor(self.machine.noise.gap, work.site ^ _LATENCY, step, rank)
        return self.machine.device.launch_latency_us * factor

    def pump(self, stream: Stream) -> None:
        """Start what can start."""
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
            start_us = max(item.earliest_us, stream.free_us)
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

    def _fire(self, event: CudaEvent) -> None:
        event.fired = True
        waiting, event.waiting = event.waiting or [], None
        for stream in waiting:
            stream.free_us = max(stream.free_us, self.now_us + self.machine.device.wait_gap_us)
            self.pump(stream)

    def _begin(self, stream: Stream, item: Item) -> None:
        work = item.work
        assert work is not None
        event = DeviceEvent(work, item.step, item.correlation, item.external, nanoseconds(self.now_us), 0)
        self.timelines[stream.device.rank].device.append(event)
        running = stream.running = Running(stream, event, item.duration_us, self.now_us)
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

    def _join(self, running: Running) -> None:
        """A rank starts a collective: the nth of its stream is the nth of the other ranks."""
        device, number = running.stream.device, running.stream.number
        place = (device.rank, number)
        order = self._started_collectives[place] = self._started_collectives.get(place, -1) + 1
        collective = self._collectives.setdefault((number, order), Collective())
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
            member.event.transfer_ns = nanoseconds(self.now_us)
            owner.waiting -= 1
            owner.transferring.append(collective)
            collective.slowed_by += bool(owner.compute)
            self._compute_changed(owner)
        self._links_changed(collective.members)

    def _links_changed(self, members: Sequence[Running]) -> None:
        """The speeds of all collectives that share a device with these."""
        devices = [member.stream.device for member in members]
        touched = {id(collective): collective for device in devices for collective in device.transferring}
        for collective in touched.values():
            self._transfer_changed(collective)

    def _transfer_changed(self, collective: Collective) -> None:
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

    def _transferred(self, collective: Collective, version: int) -> None:
        if version != collective.version:
            return
        collective.version += 1
        for member in collective.members:
            member.stream.device.transferring.remove(collective)
        self._links_changed(collective.members)
        for member in collective.members:
            self._compute_changed(member.stream.device)
        for member in collective.members:
            self._end(member)

    def _slow_transfers(self, device: Device, more: int) -> None:
        """A device starts (1) or stops (-1) to compute."""
        for collective in device.transferring:
            before = bool(collective.slowed_by)
            collective.slowed_by += more
            if bool(collective.slowed_by) != before:
                self._transfer_changed(collective)

    def _compute_changed(self, device: Device) -> None:
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

    def _schedule_end(self, running: Running) -> None:
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

    def _end(self, running: Running) -> None:
        stream = running.stream
        running.event.end_ns = nanoseconds(self.now_us)
        stream.running = None
        event = running.event
        noise, rank = self.machine.noise.gap, stream.device.rank
        factor = self.noise.factor(noise, event.work.site ^ _GAP, event.step, rank)
        stream.free_us = self.now_us + self.machine.device.queued_gap_us * factor
        self.pump(stream)
