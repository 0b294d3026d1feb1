"""Stage 5: two ranks on one card: DDP and FSDP2 over NCCL, then both over gloo."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from tests.gpu import reports, sharing
from tests.gpu.place import Place

_SMALL = ("--batch", "2", "--tokens", "8", "--width", "32", "--layers", "2")
BASE = ("--batch", "64")  # so that half a card computes about as long as sockets transfer
_TWO = ("--nproc-per-node", "2")


def run(place: Place) -> None:
    """NCCL first: real NCCL kernels of DDP and FSDP2 are worth most."""
    if not place.small:
        _over_nccl(place)
    place.cases(
        {
            f"gloo {name}": partial(_recorded, place, f"gloo-{name}", words)
            for name, words in _gloo(place.small).items()
        },
        width=2,
    )


def _over_nccl(place: Place) -> None:
    """DDP, FSDP2 and the link between the ranks; once more without MPS where DDP does not run with it."""
    with sharing.shares(place, 2) as half:
        env = {**sharing.hosts(), **half}
        for strategy in ("ddp", "fsdp"):
            options: tuple[str, ...] = (*BASE, "--backend", "nccl", "--strategy", strategy)
            place.case(f"nccl {strategy}", partial(_recorded, place, f"nccl-{strategy}", options, env))
            if half and "nccl ddp" in place.failures:
                break
        else:
            place.case("links", lambda: _links(place, env))
            return
    sharing.refuse(place, place.failures.pop("nccl ddp"))
    _over_nccl(place)


def _gloo(small: bool) -> dict[str, tuple[str, ...]]:
    both = {"fsdp2": ("--strategy", "fsdp"), "no-sync": ("--accumulate", "2", "--no-sync")}
    if small:
        return {"fsdp2": both["fsdp2"]}  # stage link records DDP
    buckets = {f"bucket-{size}": ("--bucket-mb", size) for size in ("1", "25", "100")}
    return {**buckets, **both}


def _recorded(
    place: Place, name: str, options: tuple[str, ...], env: Mapping[str, str] | None = None
) -> dict[str, Any]:
    sizes = _SMALL if place.small else ()
    folder = place.record(name, "ranks.py", *sizes, *options, windows=_windows(place, options), env=env)
    report = place.report(folder)
    collectives = [
        {key: row[key] for key in ("kind", "dtype", "message_bytes", "calls_per_step", "median_ns", "transfer_ns")}
        for row in report["measured"]["collectives"]
    ]
    return {**reports.summary(report), "collectives": collectives, "strategy": list(options)}


def _windows(place: Place, options: tuple[str, ...]) -> tuple[str, ...]:
    """Fewer steps, so that traces stay small.

    Links are measured once, by a case of its own.
    """
    fewer = ("--no-links", *(() if place.small else ("--warmup", "3", "--untraced", "20", "--light", "6")))
    return (*_TWO, *fewer, *(("--nccl-log",) if "nccl" in options else ()))


def _links(place: Place, env: Mapping[str, str]) -> dict[str, Any]:
    target = place.out / "links.json"
    words = ("links", "-q", *_TWO, "--backend", "nccl", "--kinds", "all_reduce", "--max-size", "16m")
    words = (*words, "--seconds", "8", "--timeout", "15", "--repeats", "5")
    place.dptune(*words, "-o", str(target), env=env)
    found: dict[str, Any] = json.loads(target.read_text())
    return found
