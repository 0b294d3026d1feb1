"""Write a timeline as torch.profiler's Kineto file: the shapes of torch 2.11 on a GPU (sample_traces/gpu).

The profiler records from the start of a step of the script on: operations that were launched before have no launch
record. At its end it waits for the device.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.simulator.actions import COLLECTIVE, COMPUTE, COPY
from tests.simulator.machine import Machine
from tests.simulator.timeline import DeviceEvent, HostEvent, SyncRecord, Timeline

BASE_NS = 1_790_857_026_000_000_000
STARTED_NS = 4_935_312_058_000_000  # of the simulation, from BASE_NS
_CATEGORIES = {COMPUTE: "kernel", COLLECTIVE: "kernel", COPY: "gpu_memcpy"}


def _us(time_ns: int) -> str:
    return f"{time_ns // 1000}.{time_ns % 1000:03d}"


class _Writer:
    """One rank's events, as lines of JSON."""

    def __init__(self, timeline: Timeline, machine: Machine, ranks: int, first: int, steps: int) -> None:
        self.timeline = timeline
        self.machine = machine
        self.ranks = ranks
        self.first, self.last = first, first + steps - 1
        self.from_ns = timeline.step_starts_ns[first]
        self.until_ns = timeline.step_starts_ns[first + steps]
        self.pid = 1000 + timeline.rank
        self.threads = {"main": self.pid, "autograd": self.pid + 500}

    def lines(self) -> Iterator[str]:
        device_end_ns = self.from_ns
        correlations: set[int] = set()
        for host in self.timeline.host:
            if self.from_ns <= host.start_ns and host.end_ns <= self.until_ns:
                if host.correlation:
                    correlations.add(host.correlation)
                yield self._host(host)
        annotated: dict[int, tuple[int, int]] = {}
        for operation in self.timeline.device:
            if operation.step > self.last or operation.start_ns < self.from_ns:
                continue
            device_end_ns = max(device_end_ns, operation.end_ns)
            if operation.step >= self.first and operation.work.kind != COLLECTIVE:
                start_ns, end_ns = annotated.get(operation.step, (operation.start_ns, operation.end_ns))
                annotated[operation.step] = min(start_ns, operation.start_ns), max(end_ns, operation.end_ns)
            yield self._device(operation)
        for step, (start_ns, end_ns) in annotated.items():
            yield self._event("gpu_user_annotation", f"ProfilerStep#{step}", 0, 7, start_ns, end_ns, {})
        if self.machine.sync_records:
            yield from (self._sync(sync) for sync in self.timeline.syncs if sync.correlation in correlations)
        end_ns = max(self.until_ns, device_end_ns)
        waits = {"correlation": 10**8}
        name = "cudaDeviceSynchronize"
        yield self._event("cuda_runtime", name, self.pid, self.pid, self.until_ns + 1000, end_ns + 2000, waits)
        yield from self._metadata()

    def _event(
        self, category: str, name: str, pid: int, tid: int, start_ns: int, end_ns: int, arguments: Mapping[str, Any]
    ) -> str:
        return (
            f'{{"ph": "X", "cat": "{category}", "name": {json.dumps(name)}, "pid": {pid}, "tid": {tid}, '
            f'"ts": {_us(STARTED_NS + start_ns)}, "dur": {_us(end_ns - start_ns)}, "args": {json.dumps(arguments)}}}'
        )

    def _host(self, host: HostEvent) -> str:
        arguments: dict[str, Any] = {"External id": host.external}
        if host.correlation:
            arguments["correlation"] = host.correlation
        else:
            arguments |= {"Record function id": 0, **host.arguments}
            if not self.machine.shapes:
                arguments.pop("Input Dims", None)
                arguments.pop("Input type", None)
        thread = self.threads[host.thread]
        return self._event(host.category, host.name, self.pid, thread, host.start_ns, host.end_ns, arguments)

    def _device(self, operation: DeviceEvent) -> str:
        work = operation.work
        arguments: dict[str, Any] = {
            "External id": operation.external,
            "device": 0,
            "context": 1,
            "stream": work.stream,
            "correlation": operation.correlation,
        }
        if work.kind == COPY:
            length_ns = max(1, operation.end_ns - operation.start_ns)
            arguments |= {"bytes": work.copied_bytes, "memory bandwidth (GB/s)": work.copied_bytes / length_ns}
        else:
            arguments |= {"queued": 0, "grid": work.grid, "block": work.block, **work.arguments}
        return self._event(
            _CATEGORIES[work.kind], work.name, 0, work.stream, operation.start_ns, operation.end_ns, arguments
        )

    def _sync(self, sync: SyncRecord) -> str:
        arguments: dict[str, Any] = {
            "cuda_sync_kind": sync.name,
            "stream": sync.stream,
            "correlation": sync.correlation,
            "device": 0,
            "context": 1,
        }
        if sync.event_stream >= 0:
            arguments |= {
                "wait_on_stream": sync.event_stream,
                "wait_on_cuda_event_record_corr_id": sync.event_correlation,
                "wait_on_cuda_event_id": sync.event_correlation,
            }
        return self._event("cuda_sync", sync.name, 0, sync.stream, sync.start_ns, sync.end_ns, arguments)

    def _metadata(self) -> Iterator[str]:
        named = {"ph": "M", "ts": 0, "pid": self.pid, "tid": 0}
        yield json.dumps({"name": "process_name", **named, "args": {"name": "python3"}})
        yield json.dumps({"name": "process_labels", **named, "args": {"labels": "CPU"}})
        at = _us(STARTED_NS + self.until_ns)
        yield f'{{"name": "Record Window End", "ph": "i", "s": "g", "pid": "", "tid": "", "ts": {at}}}'

    def head(self) -> dict[str, Any]:
        card = self.machine.device.card
        group = {"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl", "pg_size": self.ranks}
        return {
            "schemaVersion": 1,
            "deviceProperties": [
                {
                    "id": 0,
                    "name": card.name,
                    "totalGlobalMem": card.memory_bytes,
                    "computeMajor": card.compute_capability[0],
                    "computeMinor": card.compute_capability[1],
                    "warpSize": 32,
                    "numSms": card.multiprocessors,
                }
            ],
            "distributedInfo": {
                "backend": "nccl",
                "rank": self.timeline.rank,
                "world_size": self.ranks,
                "pg_count": 1,
                "pg_config": [{**group, "ranks": list(range(self.ranks))}],
                "nccl_version": "2.28.9",
            },
            "displayTimeUnit": "ms",
            "baseTimeNanoseconds": BASE_NS,
        }


def write(timeline: Timeline, machine: Machine, ranks: int, first: int, steps: int, folder: Path) -> Path:
    """The trace of a rank: `steps` steps from the step `first` on."""
    writer = _Writer(timeline, machine, ranks, first, steps)
    head = json.dumps(writer.head())
    path = folder / f"rank-{timeline.rank:05d}.pt.trace.json.gz"
    with gzip.open(path, "wt", compresslevel=1) as file:
        file.write(f'{head[:-1]}, "traceEvents": [\n')
        file.write(",\n".join(writer.lines()))
        file.write("\n]}\n")
    return path
