"""Small sets of 2 to 4 ranks that mutated sets are made of: public ones and samples, cut down, and made ones."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ..measure import handmade as by_hand  # noqa: TID252 - tests are no installed package
from .pieces import REAL, ROOT, SAMPLES

FINDINGS = ROOT.parent / "shared" / "findings" / "traces"
PUBLIC = ("torchrec_resnet18_2xv100", "torchrec_4xv100", "torchrec_straggler_4xv100", "nanogpt_8xh100")
MOST_RANKS = 4
STEPS = 3
MOST_EVENTS = 260  # of a rank that is cut down, beside its collectives and steps
_COLLECTIVE = ("nccl", "gloo", "c10d", "record_param_comms", "AllReduce", "all_to_all")

Event = dict[str, Any]


@dataclass(frozen=True)
class RankFile:
    """One trace: its events and the rest of its text."""

    events: list[Event]
    header: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def encoded(self) -> list[str]:
        """Each event as it is written: most are not touched."""
        return [json.dumps(event) for event in self.events]


@dataclass(frozen=True)
class RankSet:
    """The traces of a run by the names of their files, and what else its folder holds, as parsed JSON."""

    traces: dict[str, RankFile]
    others: dict[str, Any] = field(default_factory=dict)


def made() -> dict[str, RankSet]:
    """The sets that are made here, by name."""
    return {f"made/{name}": rank_set for name, rank_set in _made()}


def bases() -> dict[str, RankSet]:
    """Every set by name; those of folders that are absent are left out."""
    found = made()
    for folder in [*sorted(FINDINGS.glob("made_*")), *(REAL / name for name in PUBLIC)]:
        files = sorted(folder.glob("*.json.gz"))[:MOST_RANKS]
        if files:
            found[f"{folder.parent.name}/{folder.name}"] = RankSet({file.name: _cut(file) for file in files})
    for folder in sorted(file.parent for file in SAMPLES.glob("*/run.json")):  # those of one rank lie deeper
        traces = {file.name.removesuffix(".gz"): _cut(file) for file in sorted(folder.glob("*.trace.json.gz"))}
        packed = {f"{name}.gz": trace for name, trace in traces.items()}  # gzip is recognized by content
        others = {file.name: json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))}
        found[f"sample_traces/{folder.name}"] = RankSet(packed, others)
    return found


def is_collective(event: Event) -> bool:
    """Whether an event belongs to a collective, by its name."""
    name = event.get("name")
    return isinstance(name, str) and any(word in name for word in _COLLECTIVE)


def _cut(file: Path) -> RankFile:
    """The first steps of a trace: their collectives, what launched those, and a sample of everything else."""
    header = json.loads(gzip.decompress(file.read_bytes()))
    events = header.pop("traceEvents")
    ends = sorted(
        float(event["ts"]) + float(event["dur"])
        for event in events
        if event.get("cat") == "user_annotation" and str(event.get("name")).startswith("ProfilerStep")
    )
    end = ends[min(STEPS, len(ends)) - 1] if ends else math.inf
    inside = [event for event in events if event.get("ph") == "M" or float(event.get("ts", 0)) < end]
    linked = {_correlation(event) for event in inside if is_collective(event)} - {None}
    kept = [
        event
        for event in inside
        if is_collective(event) or "ProfilerStep" in str(event.get("name")) or _correlation(event) in linked
    ]
    ids = set(map(id, kept))
    rest = [event for event in inside if id(event) not in ids]
    ids.update(map(id, rest[:: max(1, len(rest) // MOST_EVENTS)]))
    return RankFile([event for event in inside if id(event) in ids], header)


def _correlation(event: Event) -> Any:
    args = event.get("args")
    return args.get("correlation") if isinstance(args, dict) else None


def _made() -> Iterator[tuple[str, RankSet]]:
    kinds: dict[str, Callable[[int], list[Event]]] = {
        "ddp": lambda rank: _gpu(rank, [("allreduce", 4096), ("allreduce", 1024)], described=True),
        "ddp_without_arguments": lambda rank: _gpu(rank, [("allreduce", 4096), ("allreduce", 1024)], described=False),
        "fsdp": lambda rank: _gpu(
            rank, [("_allgather_base", 2048), ("_allgather_base", 512), ("_reduce_scatter_base", 2048)], described=True
        ),
        "all_to_all": lambda rank: _gpu(rank, [("all_to_allv", 100 * (rank + 1)), ("all_to_allv", 77)], described=True),
        "gloo": _gloo,
    }
    for kind, events in kinds.items():
        for ranks in (2, 3, 4):
            traces = {}
            for rank in range(ranks):
                backend = "gloo" if kind == "gloo" else "nccl"
                groups = [{"pg_name": "0", "pg_desc": "default_pg", "pg_size": ranks, "ranks": [*range(ranks)]}]
                header = {"backend": backend, "rank": rank, "world_size": ranks, "pg_config": groups}
                traces[f"rank{rank}.json"] = RankFile(events(rank), {"schemaVersion": 1, "distributedInfo": header})
            yield f"{kind}_{ranks}", RankSet(traces)


def _gpu(rank: int, collectives: list[tuple[str, int]], *, described: bool) -> list[Event]:
    """Steps of a millisecond: forward and backward kernels on one stream, collectives on another."""
    events: list[Event] = []
    number = 0
    for step in range(STEPS):
        begin = 1000 * step + 10 * rank
        events.append(by_hand.step(step, 1000 * step, 1000 * step + 1000))
        for each in range(6):
            number += 1
            at = begin + 40 * each
            events.append(by_hand.operator("aten::mm", at, at + 20))
            events += by_hand.launched(f"gemm_{each % 3}", at + 2, begin + 100 * each, begin + 100 * each + 90, number)
        for each, (kind, elements) in enumerate(collectives):
            number += 1
            start, end = begin + 200 + 220 * each, 1000 * step + 420 + 220 * each
            arguments = {"In msg nelems": elements, "Out msg nelems": elements, "Group size": 2, "dtype": "Float"}
            arguments |= {"Collective name": kind, "Process Group Name": "0", "Process Group Ranks": "[0, 1]"}
            arguments |= {"Seq": len(collectives) * step + each}
            events.append(by_hand.launch(number, begin + 260 + each, begin + 261 + each))
            arguments = arguments if described else {}
            name = by_hand.NCCL if kind == "allreduce" else "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
            events.append(by_hand.on_device("kernel", name, start, end, number, stream=20, **arguments))
    return events


def _gloo(rank: int) -> list[Event]:
    """Steps of a millisecond on a CPU: a loader, forward, backward, two all-reduces, an optimizer."""
    events: list[Event] = []
    for step in range(STEPS):
        at = 1000 * step
        events += [
            by_hand.step(step, at, at + 1000),
            by_hand.annotation(by_hand.LOADER, at + 1, at + 60),
            by_hand.operator("aten::addmm", at + 70, at + 250 + 20 * rank),
            by_hand.operator(by_hand.BACKWARD, at + 280 + 20 * rank, at + 600, thread=2),
            by_hand.annotation("Optimizer.step#AdamW.step", at + 900, at + 990),
            by_hand.operator("aten::_fused_adamw_", at + 905, at + 980),
        ]
        for each in range(2):
            start = at + 400 + 180 * each + 15 * rank
            shape = {"Input Dims": [[1000 + each]], "Input type": ["float"]}
            events.append(by_hand.operator("c10d::allreduce_", start - 20, start - 10, thread=2, **shape))
            end = at + 560 + 180 * each
            events.append(by_hand.annotation("gloo:all_reduce", start, end, thread=3, **shape))
    return events
