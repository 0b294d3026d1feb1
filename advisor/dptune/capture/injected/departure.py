"""How all ranks of a run leave the script at the same place, also when they made different numbers of optimizer steps.

A rank that has recorded enough announces how many synchronised backward passes it has begun, and trains on. When all
have announced, they agree without another word: everyone leaves before it begins one pass more than the largest number
announced plus two steps' worth. Ranks keep step to within one step's passes, so none can be further than that when it
reads the last announcement. Announcements go through the store of the process group, never through a collective that
could meet one of the script's own.
"""

from __future__ import annotations

import contextlib
import datetime

import torch.distributed as dist
from torch.distributed import distributed_c10d

from dptune.capture.injected import identity

_LEAD = 2  # steps' worth of passes between the largest number announced and the last one made
_LONGEST_WAIT = datetime.timedelta(seconds=30)

# Whether this process has been told to leave: the last thing it does at its exit is then to end at once. Taking gloo
# apart at the interpreter's end aborts a process now and then, and its work is done.
left = False


class Departure:
    """Announces, agrees, and says when to go. Alone in the world, a rank goes at once."""

    def __init__(self) -> None:
        self._announced = False
        self._last_pass: int | None = None

    def announce(self, passes: int, per_step: int = 1) -> None:
        """Say that this rank has recorded enough, with the number of synchronised backward passes it has begun.

        `per_step`: the most of them it made in one optimizer step (gradients may be accumulated without no_sync).
        """
        if self._announced:
            return
        self._announced = True
        if not identity.together():
            self._last_pass = 0
            return
        lead = _LEAD * max(1, per_step)
        distributed_c10d._get_default_store().set(_key(identity.rank()), f"{passes} {lead}")

    def due(self, passes: int) -> bool:
        """Whether this rank, having begun that many passes, must not begin another."""
        if not self._announced:
            return False
        if self._last_pass is None:
            store = distributed_c10d._get_default_store()
            keys = [_key(rank) for rank in range(identity.world_size())]
            if store.check(keys):
                announced = [[int(number) for number in store.get(key).split()] for key in keys]
                self._last_pass = max(passes for passes, _ in announced) + max(lead for _, lead in announced)
        return self._last_pass is not None and passes >= self._last_pass


def part() -> None:
    """Wait for every rank: a gloo process that goes while a peer still talks to it is aborted now and then.

    Not for ever: a rank may be gone.
    """
    global left
    left = True
    if not identity.together():
        return
    with contextlib.suppress(Exception):
        work = dist.barrier(async_op=True)
        if work is not None:
            work.wait(timeout=_LONGEST_WAIT)


def _key(rank: int) -> str:
    return f"dptune/recorded/{rank}"
