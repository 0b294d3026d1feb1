"""How all ranks of a run leave the script at the same place, also when they made different numbers of optimizer steps.

A rank that has recorded enough announces how far it is, and trains on. When all have announced, they agree without
another word on where everyone leaves: a little further than the furthest. With DistributedDataParallel that is before a
synchronised backward pass, for those are what ranks have in common, also where one of them skips an optimizer step;
otherwise it is after an optimizer step. There each waits until all have come, and they go together. A rank that finds
itself further already, as where nothing keeps the ranks in step, says so, and waits until all have announced again how
far they are. After some rounds nobody goes: the script runs to its own end.

All of this goes through the store of the process group, never through a collective that could meet one of the script's.
"""

from __future__ import annotations

import time
from typing import Any

from torch.distributed import distributed_c10d

from dptune.capture.injected.observe import process_rank

_LEAD = 2  # steps between the furthest rank and the place where all leave
_PATIENCE_S = 30.0  # for the others to come to that place
_GOING_S = 5.0  # for the others to go before rank 0
_ROUNDS = 3


class Departure:
    """Announces, agrees, and says when to go. Alone in the world, a rank goes at once."""

    def __init__(self) -> None:
        self._announced = False
        self._stays = False
        self._round = 0
        self._last: tuple[bool, int] | None = None  # whether it is a pass, and its number

    def announce(self, passes: int, steps: int, in_passes: bool) -> None:
        """Say that this rank has recorded enough, and how many synchronised passes and steps it has made.

        `in_passes`: whether the ranks have synchronised backward passes in common.
        """
        if self._announced:
            return
        self._announced = True
        if not process_rank.together():
            self._last = (False, 0)
            return
        self._say_where(passes, steps, in_passes)

    def goes_before_pass(self, passes: int) -> bool:
        """Whether this rank, having begun that many synchronised passes, must not begin another."""
        return self._reached(passes, is_pass=True)

    def goes_after_step(self, steps: int) -> bool:
        """Whether this rank, having made that many steps, must not go on."""
        return self._reached(steps, is_pass=False)

    def _reached(self, count: int, is_pass: bool) -> bool:
        if not self._announced or self._stays:
            return False
        if self._last is None:
            self._last = self._agreed()
        if self._last is None or self._last[0] != is_pass or count < self._last[1]:
            return False
        if process_rank.together() and not self._all_come(late=count > self._last[1]):
            self._meet_again(count, is_pass)
            return False
        return True

    def _meet_again(self, count: int, is_pass: bool) -> None:
        """Announce anew, at this place, and wait until all have: a rank further on would only get further."""
        self._round += 1
        self._last, self._stays = None, self._round >= _ROUNDS
        if self._stays:
            return
        self._say_where(count, count, is_pass)
        store, ranks = distributed_c10d._get_default_store(), range(process_rank.world_size())
        self._stays = not _wait(store, [self._key("at", rank) for rank in ranks], _PATIENCE_S, "")

    def _say_where(self, passes: int, steps: int, in_passes: bool) -> None:
        key = self._key("at", process_rank.rank())
        distributed_c10d._get_default_store().set(key, f"{passes} {steps} {int(in_passes)}")

    def _agreed(self) -> tuple[bool, int] | None:
        """Where everyone leaves, once every rank has announced."""
        store = distributed_c10d._get_default_store()
        keys = [self._key("at", rank) for rank in range(process_rank.world_size())]
        if not store.check(keys):
            return None
        announced = [[int(number) for number in store.get(key).split()] for key in keys]
        in_passes = all(has_passes for _, _, has_passes in announced)
        return in_passes, max(passes if in_passes else steps for passes, steps, _ in announced) + _LEAD

    def _key(self, what: str, rank: int) -> str:
        return f"dptune/{what}/{self._round}/{rank}"

    def _all_come(self, late: bool) -> bool:
        """Wait for every rank at the agreed place. False, for all of them, where one has missed it or never comes."""
        store, own_rank = distributed_c10d._get_default_store(), process_rank.rank()
        ranks, stay = range(process_rank.world_size()), f"dptune/stay/{self._round}"
        store.set(stay if late else self._key("here", own_rank), "1")
        try:
            come = _wait(store, [self._key("here", rank) for rank in ranks], _PATIENCE_S, stay)
            if not come:
                store.set(stay, "1")
            elif own_rank == 0:  # which may keep the store: it is the last to go
                _wait(store, [self._key("gone", rank) for rank in ranks[1:]], _GOING_S, stay)
            else:
                store.set(self._key("gone", own_rank), "1")
        except Exception:  # the store has gone with rank 0, which only goes when all have come
            return not late
        return come


def _wait(store: Any, keys: list[str], patience_s: float, stay: str) -> bool:
    """Whether all keys are there in time, and no rank says that it stays, by a key of that name where there is one."""
    deadline = time.monotonic() + patience_s
    while not (stay and store.check([stay])):
        if store.check(keys):
            return True
        if time.monotonic() > deadline:
            break
        time.sleep(0.01)
    return False
