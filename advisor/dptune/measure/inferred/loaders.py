"""DataLoaders, from the ranges in which the training thread draws a batch."""

from __future__ import annotations

import re

from dptune.advice import Confidence
from dptune.measure.inferred.finding import Inferred
from dptune.measure.inferred.hosts import HostEvents
from dptune.runfile.loader import LoaderFacts

_DRAWN = re.compile(r"enumerate\(DataLoader\)#.*__next__$")
_PINS = re.compile(r"aten::(_pin_memory|pin_memory)$")


def loaders(host: HostEvents) -> list[Inferred]:
    """The loader that the script draws from, or that there is none; nothing where the host was not recorded.

    A trace names the class of its iterator: whether it has workers, not how many.
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
