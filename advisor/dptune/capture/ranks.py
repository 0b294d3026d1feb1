"""Ranks as a user writes them: `0,7,64-71`."""

from __future__ import annotations

import re

from dptune.errors import UsageError

MOST = 10_000  # they travel in one environment variable, which holds 128 KiB
_SPAN = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


def parse(text: str) -> tuple[int, ...]:
    """The ranks, ascending, each once. Raises UsageError with what is wrong."""
    ranks: set[int] = set()
    for part in text.split(","):
        span = _SPAN.fullmatch(part.strip())
        if span is None:
            raise UsageError(f"--ranks: '{part.strip()}' is not a rank", "write ranks like 0,7,64-71")
        first, last = int(span[1]), int(span[2] or span[1])
        if last < first:
            raise UsageError(f"--ranks: {part.strip()} ends before it starts", "write ranks like 0,7,64-71")
        if last - first < MOST:
            ranks.update(range(first, last + 1))
        if last - first >= MOST or len(ranks) > MOST:
            raise UsageError(f"--ranks: more than {MOST:,} ranks", "omit --ranks to record all ranks")
    return tuple(sorted(ranks))


def check(ranks: tuple[int, ...] | None, world_size: int | None) -> None:
    """Raise UsageError where a rank is asked for that the run does not have."""
    beyond = [rank for rank in ranks or () if world_size is not None and rank >= world_size]
    if beyond and world_size is not None:
        only = "rank 0 alone" if world_size == 1 else f"ranks 0-{world_size - 1}"
        raise UsageError(f"--ranks: no rank {beyond[0]}", f"this run has {only}")
