"""DataLoaders, from the ranges in which the training thread draws a batch."""

from __future__ import annotations

import re

import numpy as np

from dptune.advice import Confidence
from dptune.measure.inferred.finding import Inferred
from dptune.measure.inferred.hosts import HostEvents
from dptune.runfile.loader import LoaderFacts

_DRAWN = re.compile(r"enumerate\(DataLoader\)#.*__next__$")
_MULTI = "_MultiProcessing"
_LONG = 0.8  # of the longest draw
_LEAST = 4  # long draws
_PINS = re.compile(r"aten::(_pin_memory|pin_memory)$")


def loaders(host: HostEvents) -> list[Inferred]:
    """The loader that the script draws from, or that there is none; nothing where the host was not recorded.

    A trace names the class of its iterator: whether it has workers, not how many (see `workers`).
    """
    rows = host.rows(_DRAWN)
    if not len(rows):
        return [Inferred.of("loaders", [], "medium")] if host.trains or host.forwards else []
    names = {host.columns.name(row) for row in rows.tolist()}
    found = LoaderFacts()
    parts: dict[str, Confidence] = {}
    if all("_SingleProcess" in name for name in names):
        found.num_workers, parts["num_workers"] = 0, "high"
    if len(host.rows(_PINS)):
        found.pin_memory = found.pins = True
        parts |= {"pin_memory": "medium", "pins": "medium"}
    return [Inferred.of("loaders", [found], "high", **parts)]


def workers(host: HostEvents) -> int | None:
    """The number of workers, if the longest draws are at equal distances of two draws or more; else None.

    Workers that are too slow finish their batches at about the same time, and batches are drawn from each in turn: the
    draws after that find theirs ready. The first draw, which starts the workers, is left out.
    """
    columns = host.columns
    rows = [row for row in host.rows(_DRAWN).tolist() if _MULTI in columns.name(row)]
    took_ns = columns.dur_ns[sorted(rows, key=lambda row: int(columns.ts_ns[row]))][1:]
    if len(took_ns) <= 2 * _LEAST:
        return None
    long = np.flatnonzero(took_ns >= _LONG * took_ns.max())
    distances = np.unique(np.diff(long))
    if len(long) < _LEAST or len(distances) != 1 or distances[0] < 2:
        return None
    return int(distances[0])
