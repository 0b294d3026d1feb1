"""How all ranks of a run leave the script at the same place, also when they made different numbers of optimizer steps.

A rank that has recorded enough announces how many synchronised backward passes it has begun, and trains on. When all
have announced, they agree without another word: everyone leaves before it begins one pass more than the largest number
announced plus two. Ranks keep step to within one such pass, so none can be further than that when it reads the last
announcement. Announcements go through the store of the process group, never through a collective that could meet one of
the script's own.
"""

from __future__ import annotations

import contextlib
import datetime

import torch.distributed as dist
from torch.distributed import distributed_c10d

from dptune.capture.injected import identity

_LEAD = 2  # passes between the largest number announced and the last one made
_LONGEST_WAIT = datetime.timedelta(seconds=30)


class Departure:
    """Announces, agrees, and says when to go. Alone in the world, a rank goes at once."""

    def __init__(self) -> None:
        self._announced = False
        self._last_pass: int | None = None

    def announce(self, passes: int) -> None:
        """Say that this rank has recorded enough, with the number of synchronised backward passes it has begun."""
        self._announced = True
        if not _together():
            self._last_pass = 0
            return
        distributed_c10d._get_default_store().set(_key(identity.rank()), str(passes))

    def due(self, passes: int) -> bool:
        """Whether this rank, having begun that many passes, must not begin another."""
        if not self._announced:
            return False
        if self._last_pass is None:
            store = distributed_c10d._get_default_store()
            keys = [_key(rank) for rank in range(identity.world_size())]
            if store.check(keys):
                self._last_pass = max(int(store.get(key)) for key in keys) + _LEAD
        return self._last_pass is not None and passes >= self._last_pass


def part() -> None:
    """Wait for every rank: a gloo process that goes while a peer still talks to it is aborted now and then.

    Not for ever: a rank may be gone.
    """
    if not _together():
        return
    with contextlib.suppress(Exception):
        work = dist.barrier(async_op=True)
        if work is not None:
            work.wait(timeout=_LONGEST_WAIT)


def _together() -> bool:
    return identity.in_group() and identity.world_size() > 1


def _key(rank: int) -> str:
    return f"dptune/recorded/{rank}"
