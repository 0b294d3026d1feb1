"""Kinds of collective: the one table.

A kind that is added here is recognized in names, matched over ranks, and has its bus bandwidth. Which kernels
communicate is another table, `trace/collective_kernels.py`.

Bandwidth is as nccl-tests defines it: algbw = bytes / time, where bytes is the larger of input and output of one rank;
busbw = algbw times the share of those bytes that crosses each rank's link in a ring, to be compared with the link's own
bandwidth. In-switch reduction may exceed it.
Source: https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

UNKNOWN = "unknown"


@dataclass(frozen=True)
class Collective:
    """One kind. `pattern` is a regular expression of what torch, NCCL and gloo call it, in lower case.

    `crossings` is how often the bytes cross a rank's link in a ring: all of them, or where `parted` all but the rank's
    own part; 0 where that is not known. `symmetric`: no rank leaves before the last has arrived. `gathers`: the output
    is larger than the input. `reduces`: the output is computed from the elements of several ranks. `uneven`: ranks may
    send messages of different sizes. `shards`: FSDP's.
    """

    kind: str
    pattern: str
    crossings: int = 0
    parted: bool = False
    symmetric: bool = False
    gathers: bool = False
    reduces: bool = False
    uneven: bool = False
    shards: bool = False

    def bus_factor(self, ranks: int) -> float | None:
        """busbw / algbw for this number of ranks; None where the traffic is not known."""
        if ranks < 2 or not self.crossings:
            return None
        return self.crossings * ((ranks - 1) / ranks if self.parted else 1.0)


# In this order: `reduce_scatter` and `all_reduce` contain `reduce`, `all_gather` contains `gather`.
COLLECTIVES = (
    Collective("reduce_scatter", r"reduce_?scatter", 1, parted=True, symmetric=True, reduces=True, shards=True),
    Collective("all_reduce", r"all_?reduce", 2, parted=True, symmetric=True, reduces=True),
    Collective("all_gather", r"all_?gather", 1, parted=True, symmetric=True, gathers=True, shards=True),
    Collective("all_to_all", r"all_?to_?all", 1, parted=True, symmetric=True, uneven=True),
    Collective("broadcast", r"broadcast", 1),
    Collective("barrier", r"barrier", symmetric=True),
    Collective("p2p", r"send|recv", 1),
    Collective("scatter", r"scatter"),
    Collective("gather", r"gather", gathers=True),
    Collective("reduce", r"reduce", 1, reduces=True),
)
_OTHER = Collective(UNKNOWN, r"(?!)")
_BY_KIND = {row.kind: row for row in COLLECTIVES}
REDUCING = frozenset(row.kind for row in COLLECTIVES if row.reduces)
_PATTERNS = tuple((row.kind, re.compile(row.pattern)) for row in COLLECTIVES)


def collective(kind: str) -> Collective:
    """The row of a kind; a row without properties for an unknown kind."""
    return _BY_KIND.get(kind, _OTHER)


def kind_of(name: object) -> str:
    """all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, p2p, ...; or unknown."""
    return _kind_of(str(name).lower())


@lru_cache(maxsize=4096)
def _kind_of(word: str) -> str:
    return next((kind for kind, pattern in _PATTERNS if pattern.search(word)), UNKNOWN)
