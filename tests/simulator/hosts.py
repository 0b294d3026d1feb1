"""The training scripts of ranks: each does its actions one after another, and blocks where a script would."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tests.simulator.actions import (
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
from tests.simulator.devices import CudaEvent, Item, Stream
from tests.simulator.timeline import HostEvent, SyncRecord, nanoseconds

if TYPE_CHECKING:
    from tests.simulator.engine import Simulation

STEP_COST_US = 30.0  # Python between two steps
_HOST_STEP = site_hash("host step")


class Loader:
    """Batches of a rank's workers: each worker has `prefetch` of them in the making."""

    def __init__(self) -> None:
        self.drawn = 0
        self.requested_us: list[float] = []
        self.ready_us: list[float] = []

    def ready(self, action: NextBatch, now_us: float, decode_us: float) -> float:
        """When the next batch is ready. As it is taken, the worker starts a further batch."""
        if not self.requested_us:
            self.requested_us = [now_us] * (action.workers * action.prefetch)
        number = self.drawn
        self.drawn += 1
        worker_free = self.ready_us[number - action.workers] if number >= action.workers else 0.0
        self.ready_us.append(max(worker_free, self.requested_us[number]) + decode_us)
        self.requested_us.append(max(now_us, self.ready_us[number]))
        return self.ready_us[number]


class Host:
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
        self.events: dict[str, CudaEvent] = {}
        self.loader = Loader()
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
            self.simulation.machine.noise.host_step, _HOST_STEP, self.step, self.rank
        )
        self.timeline.step_starts_ns.append(nanoseconds(self.now_us))
        self._open(f"ProfilerStep#{self.step}", "user_annotation", {})

    def _open(self, name: str, category: str, arguments: dict[str, Any]) -> None:
        simulation = self.simulation
        event = HostEvent(
            name,
            category,
            self.thread,
            nanoseconds(self.now_us),
            0,
            arguments,
            external=next(simulation.external[self.rank]),
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
                nanoseconds(start_us),
                nanoseconds(self.now_us),
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
        """Do what follows, up to the next call that affects the device: it is done at its time."""
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
                    self.open.pop().end_ns = nanoseconds(self.now_us)
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
            event.end_ns = nanoseconds(self.now_us)
        self.open.clear()
        self.step += 1
        self.position = 0
        if self.step == self.simulation.steps:
            self.timeline.step_starts_ns.append(nanoseconds(self.now_us))
            self.timeline.idle_from_ns = nanoseconds(self.now_us)
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
        item = Item(
            work=work,
            step=self.step,
            correlation=correlation,
            external=self.open[-1].external,
            duration_us=simulation.duration_us(work, self.step, self.rank),
            earliest_us=self.call_started_us + simulation.latency_us(work, self.step, self.rank),
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
                event = self.events[action.event] = CudaEvent(action.stream, correlation)
                self._put(device.stream(action.stream), Item(recorded=event))
            else:
                self._put(device.stream(action.stream), Item(awaited=self.events[action.event]))

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
                event = self.events[action.event] = CudaEvent(action.stream, correlation)
                self._call("cudaEventRecord", self.call_started_us, correlation)
                self._put(device.stream(action.stream), Item(recorded=event))
            case Wait():
                correlation = next(simulation.correlation[self.rank])
                event = self.events[action.event]
                self._call("cudaStreamWaitEvent", self.call_started_us, correlation)
                self.timeline.syncs.append(
                    SyncRecord(
                        "Stream Wait Event",
                        action.stream,
                        nanoseconds(self.call_started_us),
                        nanoseconds(self.now_us),
                        correlation,
                        event.stream,
                        event.correlation,
                    )
                )
                self._put(device.stream(action.stream), Item(awaited=event))
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

    def _put(self, stream: Stream, item: Item) -> None:
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
            SyncRecord(
                "Stream Sync", action.stream, nanoseconds(self.call_started_us), nanoseconds(self.now_us), correlation
            )
        )
        self.position += 1
        # what follows is done at its time, not at the time of the event that woke the host
        simulation.at(self.now_us, self.proceed)
