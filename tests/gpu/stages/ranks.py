"""Stage 5: two ranks on one card: NCCL where it can be made to, DDP and FSDP2, then DDP over gloo."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tests.gpu import reports
from tests.gpu.place import Place

HOSTS = Path(__file__).parents[1] / "hosts"
# Each rank a host of its own, so that NCCL takes them; what is left to it between hosts are sockets.
SOCKETS = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1", "GLOO_SOCKET_IFNAME": "lo"}
SHARED = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", **SOCKETS}
_SMALL = ("--batch", "2", "--tokens", "8", "--width", "32", "--layers", "2")
_TWO = ("--nproc-per-node", "2")


def run(place: Place) -> None:
    """NCCL first: real NCCL kernels of DDP and FSDP2 are worth most."""
    if not place.small:
        place.case("nccl", lambda: _nccl(place))
        way = place.figures.get("nccl", {}).get("way")
        if way is not None:
            env = _environment(way)
            fsdp = ("--backend", "nccl", "--strategy", "fsdp")
            place.case("nccl fsdp2", lambda: _recorded(place, "nccl-fsdp2", fsdp, env))
            place.case("links", lambda: _links(place, env))
    place.cases(
        {
            f"gloo {name}": partial(_recorded, place, f"gloo-{name}", words)
            for name, words in _gloo(place.small).items()
        },
        width=2,
    )


def _gloo(small: bool) -> dict[str, tuple[str, ...]]:
    both = {"fsdp2": ("--strategy", "fsdp"), "no-sync": ("--accumulate", "2", "--no-sync")}
    if small:
        return {"fsdp2": both["fsdp2"]}  # stage link records DDP
    buckets = {f"bucket-{size}": ("--bucket-mb", size) for size in ("1", "25", "100")}
    return {**buckets, **both}


def _environment(way: str) -> Mapping[str, str]:
    if way == "NCCL_MULTI_RANK_GPU_ENABLE":
        return SHARED
    return {**SOCKETS, "PYTHONPATH": os.pathsep.join(filter(None, (str(HOSTS), os.environ.get("PYTHONPATH"))))}


def _nccl(place: Place) -> dict[str, Any]:
    """The first way by which NCCL takes two ranks on one card, and its recording."""
    refused = {}
    for way in ("NCCL_HOSTID", "NCCL_MULTI_RANK_GPU_ENABLE"):
        try:
            found = _recorded(place, f"nccl-ddp-{way[5:9].lower()}", ("--backend", "nccl"), _environment(way))
            return {"way": way, "refused": refused, **found}
        except Exception as error:
            refused[way] = f"{str(error)[-1500:]}\n{_warnings(place.runs)}".strip()
            place.note("nccl_refused", refused)
    raise RuntimeError(f"NCCL takes no two ranks on one card: {refused}")


def _warnings(runs: Path) -> str:
    """Why NCCL refused, from its log."""
    texts = [path.read_text(errors="replace") for path in sorted(runs.glob("ranks-nccl-*/nccl.*"))]
    return "\n".join(line for text in texts for line in text.splitlines() if " WARN " in line)[-1500:]


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
    """Fewer steps: two ranks take turns on the card, so that a collective lasts milliseconds; and traces stay small.

    Links are measured once, by a case of its own.
    """
    fewer = ("--no-links", *(() if place.small else ("--warmup", "3", "--untraced", "12", "--light", "3")))
    return (*_TWO, *fewer, *(("--nccl-log",) if "nccl" in options else ()))


def _links(place: Place, env: Mapping[str, str]) -> dict[str, Any]:
    target = place.out / "links.json"
    words = ("links", "-q", *_TWO, "--backend", "nccl", "--kinds", "all_reduce", "--max-size", "16m")
    words = (*words, "--seconds", "8", "--timeout", "15", "--repeats", "5")
    place.dptune(*words, "-o", str(target), env=env)
    found: dict[str, Any] = json.loads(target.read_text())
    return found
