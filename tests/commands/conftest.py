from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dptune import config
from dptune.advice import Report
from dptune.commands.shared import reading
from dptune.trace.loading.cache import FOLDER
from dptune.trace.run import Run


def gpu_events(rank: int) -> list[dict[str, Any]]:
    """Four steps of 1 ms on one GPU: a matrix product of 0.5 ms, then an all-reduce of 0.3 ms beside nothing."""
    events: list[dict[str, Any]] = []
    for step in range(4):
        begin = 1_000_000 + step * 1_000
        common = {"ph": "X", "pid": 100 + rank, "tid": 7}
        events.append({**common, "cat": "user_annotation", "name": f"ProfilerStep#{step}", "ts": begin, "dur": 990})
        work = (("ampere_sgemm_128x64", 10, 500), ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 510, 300))
        for number, (name, offset, duration) in enumerate(work):
            correlation = step * 10 + number + 1
            launch = {"correlation": correlation}
            events.append(
                {
                    **common,
                    "cat": "cuda_runtime",
                    "name": "cudaLaunchKernel",
                    "ts": begin + number + 1,
                    "dur": 1,
                    "args": launch,
                }
            )
            where = {"device": rank, "stream": 7 + number, "correlation": correlation}
            kernel = {"ph": "X", "cat": "kernel", "name": name, "pid": rank, "tid": 7 + number, "args": where}
            events.append({**kernel, "ts": begin + offset, "dur": duration})
    return events


def write_trace(path: Path, rank: int = 0, world: int = 2) -> Path:
    """A small trace as torch.profiler writes it."""
    trace = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": rank, "name": "NVIDIA A100-SXM4-40GB"}],
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world},
        "traceEvents": gpu_events(rank),
    }
    data = json.dumps(trace).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    """A folder of the traces of two ranks."""
    folder = tmp_path / "traces"
    folder.mkdir()
    for rank in range(2):
        write_trace(folder / f"rank{rank}_trace.json", rank)
    return folder


@pytest.fixture(scope="module")
def reports() -> dict[str, tuple[Run, Report]]:
    """Of recordings, by what is in their files and how they were read."""
    return {}


@pytest.fixture
def read_once(reports: dict[str, tuple[Run, Report]], monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read again by the same name with the same options, also in another test, is as it was."""
    read = reading.run_and_report

    def once(paths: Sequence[str], *more: Any, engine: Any = None, **options: Any) -> tuple[Run, Report]:
        if not paths:  # the latest recording, whichever that is by now
            return read(paths, *more, engine=engine, **options)
        places = sorted({file for path in paths for file in (Path(path), *Path(path).rglob("*")) if file.is_file()})
        files = [(file, hashlib.sha256(file.read_bytes()).digest()) for file in places if file.parent.name != FOLDER]
        key = repr((paths, more, engine, options, config.load(), files))
        if key not in reports:
            reports[key] = read(paths, *more, engine=engine, **options)
        run, report = reports[key]
        return run, report.model_copy(deep=True)

    monkeypatch.setattr(reading, "run_and_report", once)
