"""Stage 6: changes of two ranks over NCCL: predicted from the recordings of stage ranks, then run, and traced."""

from __future__ import annotations

import gzip
import json
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Any, NamedTuple

from tests.gpu import reports, sharing
from tests.gpu.place import SCRIPTS, Place
from tests.gpu.stages.ranks import BASE

_SMALL = ("--batch", "2", "--tokens", "8", "--width", "32", "--layers", "2")


class Change(NamedTuple):
    """Options of ranks.py beside those of its base, and the change as knobs of dptune; none where no knob sets it."""

    base: str
    options: tuple[str, ...] = ()
    knobs: tuple[str, ...] = ()


_FOUR = ("--batch", "16", "--accumulate", "4")
_FSDP = ("--strategy", "fsdp")
CHANGES = {
    "ddp": Change("ddp"),
    "ddp bucket 1": Change("ddp", ("--bucket-mb", "1"), ("ddp.bucket_cap_mb=1",)),
    "ddp bucket 5": Change("ddp", ("--bucket-mb", "5"), ("ddp.bucket_cap_mb=5",)),
    "ddp bucket 100": Change("ddp", ("--bucket-mb", "100"), ("ddp.bucket_cap_mb=100",)),
    "ddp bf16 hook": Change("ddp", ("--hook", "bf16"), ("ddp.comm_hook=bf16",)),
    "ddp bf16": Change("ddp", ("--precision", "bf16"), ("precision.autocast=bf16",)),
    "ddp tf32": Change("ddp", ("--precision", "tf32"), ("precision.float32_matmul=high",)),
    "ddp fused": Change("ddp", ("--optimizer", "fused"), ("optimizer.fused=true",)),
    "ddp loop": Change("ddp", ("--optimizer", "loop"), ("optimizer.foreach=false",)),
    "ddp batch 128": Change("ddp", ("--batch", "128"), ("loader.batch_size=128",)),
    "ddp batch 16": Change("ddp", ("--batch", "16"), ("loader.batch_size=16",)),
    "ddp bucket view": Change("ddp", ("--bucket-view",), ("ddp.gradient_as_bucket_view=true",)),
    "ddp static graph": Change("ddp", ("--static-graph",), ("ddp.static_graph=true",)),
    "ddp find unused": Change("ddp", ("--find-unused",), ("ddp.find_unused_parameters=true",)),
    "ddp late host": Change("ddp", ("--late-ms", "8")),
    "ddp late compute": Change("ddp", ("--late-compute", "2")),
    "ddp accumulate": Change("ddp", _FOUR),
    "ddp accumulate no_sync": Change("ddp", (*_FOUR, "--no-sync")),
    "fsdp": Change("fsdp", _FSDP),
    "fsdp keep": Change("fsdp", (*_FSDP, "--keep")),
    "fsdp two layers": Change("fsdp", (*_FSDP, "--unit", "2")),
    "fsdp one unit": Change("fsdp", (*_FSDP, "--unit", "0")),
    "fsdp prefetch 2": Change("fsdp", (*_FSDP, "--prefetch", "2")),
    "fsdp bf16": Change("fsdp", (*_FSDP, "--precision", "bf16")),
    "fsdp bf16 reduce": Change("fsdp", (*_FSDP, "--precision", "bf16", "--reduce-bf16")),
    "fsdp tf32": Change("fsdp", (*_FSDP, "--precision", "tf32"), ("precision.float32_matmul=high",)),
    "fsdp batch 16": Change("fsdp", (*_FSDP, "--batch", "16"), ("loader.batch_size=16",)),
    "fsdp accumulate": Change("fsdp", (*_FSDP, *_FOUR)),
    "fsdp accumulate no sync": Change("fsdp", (*_FSDP, *_FOUR, "--no-sync")),
    "ddp again": Change("ddp"),
    "fsdp again": Change("fsdp", _FSDP),
}
_REHEARSED = ("ddp", "ddp bucket 1", "fsdp")


def run(place: Place) -> None:
    """Predict, run, compare."""
    place.case("predicted", lambda: _predicted(place))
    place.case("measured", lambda: _measured(place))
    place.case("compared", lambda: _compared(place))


def _predicted(place: Place) -> dict[str, Any]:
    asked = {name: change for name, change in CHANGES.items() if change.knobs} if not place.small else {}

    def of(change: Change) -> dict[str, Any]:
        return place.predict(place.runs / f"ranks-nccl-{change.base}", *change.knobs)

    with ThreadPoolExecutor(12) as pool:
        return dict(zip(asked, pool.map(of, asked.values()), strict=True))


def _measured(place: Place) -> dict[str, Any]:
    sizes = _SMALL if place.small else BASE
    words = {
        name: [*sizes, *change.options] for name, change in CHANGES.items() if not place.small or name in _REHEARSED
    }
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    amount = ("--rounds", "1", "--warmup", "1", "--steps", "3", "--traced", "1") if place.small else ()
    backend = ("--device", place.device, "--backend", "gloo" if place.small else "nccl")
    traces = ("--traces", str(place.runs))
    script = [str(SCRIPTS / "pairs.py"), *backend, *amount, *traces, json.dumps(words)]
    if place.small:
        done = place.run([*torchrun, *script], partial=True)
    else:
        with sharing.shares(place, 2) as half:
            done = place.run([*torchrun, *script], {**sharing.hosts(), **half}, partial=True)
    found: dict[str, Any] = done.last_json
    return {**found, "cut_off": done.cut_off, "traced_steps": _traced_steps(place)}


def _traced_steps(place: Place) -> dict[str, list[int]]:
    """How many marks of steps the traces of each variant hold, a number for each rank."""
    found: dict[str, list[int]] = {}
    for path in sorted(place.runs.glob("pairs-*/rank-*.json.gz")):
        with gzip.open(path, "rt", encoding="utf-8", errors="replace") as source:
            marks = set(re.findall(r"ProfilerStep#\d+", source.read()))
        found.setdefault(path.parent.name, []).append(len(marks))
    return found


def _compared(place: Place) -> dict[str, Any]:
    """Steps of the later rank, as multiples of the base's, beside what was predicted."""
    rounds = place.figures["measured"]["medians_ms"]
    steps = {name: median(map(max, each)) for name, each in rounds.items() if each}
    found = {}
    for name, predicted in place.figures["predicted"].items():
        base = CHANGES[name].base
        if name not in steps or base not in steps or not predicted.get("measured_ms"):
            continue
        scaled = steps[name] / steps[base] * predicted["measured_ms"]
        error = predicted["step_ms"] / scaled - 1 if predicted.get("step_ms") else None
        inside = reports.inside(predicted, scaled)
        found[name] = {"times_base": steps[name] / steps[base], "error": error, "inside": inside}
    return found
