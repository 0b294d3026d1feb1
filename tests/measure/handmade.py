"""Traces written by hand, as Kineto writes them. Times in microseconds, and those of events are [start, end)."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from dptune.measure import measure
from dptune.measured import Measured
from dptune.trace import load
from dptune.trace.run import Run

US = 1000  # nanoseconds
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
BACKWARD = "autograd::engine::evaluate_function: AddmmBackward0"

Event = dict[str, Any]


def event(category: str, name: str, start: float, end: float, thread: int = 1, **args: Any) -> Event:
    where = {"ph": "X", "cat": category, "name": name, "pid": 9, "tid": thread}
    return {**where, "ts": start, "dur": end - start, "args": args}


def annotation(name: str, start: float, end: float, thread: int = 1, **args: Any) -> Event:
    return event("user_annotation", name, start, end, thread, **args)


def step(number: int, start: float, end: float) -> Event:
    return annotation(f"ProfilerStep#{number}", start, end)


def operator(name: str, start: float, end: float, thread: int = 1, **args: Any) -> Event:
    return event("cpu_op", name, start, end, thread, **args)


def python(name: str, start: float, end: float, thread: int = 1) -> Event:
    return event("python_function", name, start, end, thread)


def call(name: str, start: float, end: float, correlation: int | None = None, thread: int = 1) -> Event:
    """A call of the CUDA runtime; with a correlation it launches something."""
    args = {} if correlation is None else {"correlation": correlation}
    return event("cuda_runtime", name, start, end, thread, **args)


def launch(correlation: int, start: float, end: float, thread: int = 1) -> Event:
    return call("cudaLaunchKernel", start, end, correlation, thread)


def on_device(
    category: str, name: str, start: float, end: float, correlation: int, stream: int = 7, device: int = 0, **args: Any
) -> Event:
    return event(category, name, start, end, stream, **args, device=device, stream=stream, correlation=correlation) | {
        "pid": device
    }


def kernel(name: str, start: float, end: float, correlation: int, stream: int = 7, device: int = 0) -> Event:
    return on_device("kernel", name, start, end, correlation, stream, device)


def launched(
    name: str, called: float, start: float, end: float, correlation: int, stream: int = 7, thread: int = 1
) -> list[Event]:
    """A kernel and the call that launched it, which takes a microsecond."""
    return [launch(correlation, called, called + 1, thread), kernel(name, start, end, correlation, stream)]


def all_reduce(start: float, end: float, correlation: int, elements: int, group: str, group_size: int) -> Event:
    """NCCL's kernel of one process group, of so many floats."""
    told = {"Collective name": "allreduce", "In msg nelems": elements, "Out msg nelems": elements, "dtype": "Float"}
    told |= {"Group size": group_size, "Process Group Name": group}
    return on_device("kernel", NCCL, start, end, correlation, **told)


def copy(kind: str, start: float, end: float, correlation: int, stream: int = 7, **args: Any) -> Event:
    """A copy of a kind such as `HtoD (Pinned -> Device)`."""
    return on_device("gpu_memcpy", f"Memcpy {kind}", start, end, correlation, stream, **args)


def allocation(at: float, size: int, allocated: int, reserved: int, device_type: int = 1, device: int = 0) -> Event:
    """An allocation, or with a negative size a release, and what is allocated and reserved after it, in bytes."""
    args = {"Bytes": size, "Device Type": device_type, "Device Id": device, "Addr": at}
    args |= {"Total Allocated": allocated, "Total Reserved": reserved}
    return {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 9, "tid": 1, "ts": at, "args": args}


# Of each operation: the host's pause before it, from its launch to its begin, how long it takes, its stream, and
# whether the host then waits for all that runs.
DRAWN = st.tuples(st.integers(1, 40), st.integers(0, 60), st.integers(1, 80), st.integers(0, 2), st.booleans())


def drawn(parts: Iterable[tuple[int, int, int, int, bool]]) -> tuple[list[Event], list[int]]:
    """Kernels on three streams, launched in order; and when the host comes to each, and everything is over."""
    events: list[Event] = []
    host, free, moments = 0, [0, 0, 0], []
    for number, (pause, latency, took, stream, waits) in enumerate(parts, 1):
        moments.append(host)
        host += pause
        events += [operator("aten::mm", host, host + 3), launch(number, host + 1, host + 2)]
        begin = max(host + 2 + latency, free[stream])
        free[stream] = begin + took
        events.append(kernel(f"k{stream}", begin, free[stream], number, stream=7 + stream))
        host += 3
        if waits:
            events.append(call("cudaDeviceSynchronize", host, max(host + 1, *free)))
            host = max(host + 1, *free)
    return events, [*moments, max(host, *free) + 1]


def write(path: Path, events: list[Event], **header: Any) -> None:
    text = json.dumps({"schemaVersion": 1, **header, "traceEvents": events}).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)


def load_events(folder: Path, *ranks: list[Event], backend: str = "nccl", **header: Any) -> Run:
    """The run of one trace a rank, by the events of each."""
    for rank, events in enumerate(ranks):
        told = (
            {"distributedInfo": {"backend": backend, "rank": rank, "world_size": len(ranks)}} if len(ranks) > 1 else {}
        )
        write(folder / f"{rank}.json", events, **told, **header)
    return load([folder])


def measure_events(folder: Path, *ranks: list[Event], **header: Any) -> Measured:
    """The figures of one trace a rank."""
    return measure(load_events(folder, *ranks, **header))
