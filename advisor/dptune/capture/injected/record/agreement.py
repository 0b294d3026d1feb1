"""The agreement of all ranks on the step at which a phase ends by time, through the store of the process group.

Clocks differ between ranks, step numbers do not. Only rank 0 looks at its clock. What it decides is read at a
checkpoint, a step number that every rank knows: the first one follows from the start of the phase, each later one is
part of the decision before it. Rank 0 writes a decision some steps ahead of its checkpoint, so that ranks that step
together find it there, and no other rank asks the store in between.

A rank that is ahead of rank 0 waits at the checkpoint, but not for long: then it writes, in place of rank 0, that the
phase has its full number of steps. The store keeps the first decision that is written, so that all ranks read the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.distributed import distributed_c10d

from dptune.capture.injected.observe import process_rank

LEAD = 2  # steps between a decision and its checkpoint, at least: ranks with a collective in each step are closer
_PATIENCE_S = 3.0  # for rank 0, once in a run
_FIRST_LOOK_S, _LAST_LOOK_S = 0.001, 0.05


@dataclass(frozen=True)
class Decision:
    """The phase ends at step `at`, or that is the next checkpoint."""

    ends: bool
    at: int

    def __str__(self) -> str:
        return f"{'end' if self.ends else 'next'} {self.at}"

    @classmethod
    def parse(cls, text: str) -> Decision:
        """From what `str` made of it."""
        word, at = text.split()
        return cls(word == "end", int(at))


class Agreement:
    """The decisions of one phase after another."""

    def __init__(self) -> None:
        self._patience_s = _PATIENCE_S
        self.begin("", 0, 0)

    def begin(self, phase: str, timed_from: int, full: int) -> None:
        """A phase whose time starts after step `timed_from`, and which ends at step `full` if not by time."""
        self._phase, self._full = phase, full
        self._end: int | None = None
        self._read = self._written = (
            timed_from + 1 + LEAD
        )  # the checkpoints that this rank reads, and rank 0 writes, next
        self._write_from = timed_from + 1

    def ends(self, step: int, decide: Callable[[int], Decision]) -> bool:
        """Whether the phase ends with this step. `decide(checkpoint)` is what rank 0 decides at this moment."""
        if self._end is None and step >= self._write_from and process_rank.in_group() and process_rank.rank() == 0:
            self._write(step, decide)
        if self._end is None and step >= self._read:
            decision = self._decision(step)
            self._end = decision.at if decision.ends else None
            self._read = decision.at
        return self._end is not None and step >= self._end

    def _write(self, step: int, decide: Callable[[int], Decision]) -> None:
        checkpoint = self._written
        try:
            decision = self._put(checkpoint, decide(checkpoint))
        except Exception:  # the store is gone: every rank finds that at the checkpoint
            decision = Decision(True, max(checkpoint, self._full))
        self._written = decision.at
        ahead = max(LEAD, (decision.at - checkpoint) // 2)
        self._write_from = decision.at + 1 if decision.ends else max(step + 1, decision.at - ahead)

    def _decision(self, step: int) -> Decision:
        """What was decided for the checkpoint that this step is; with no store, and no word, the full number of steps.

        That may be behind the checkpoint, where a phase lasts longer than it has to.
        """
        fills = Decision(True, max(step, self._full))
        if not process_rank.in_group():
            return fills
        try:
            store, key = distributed_c10d._get_default_store(), self._key(self._read)
            if self._there(store, key):
                return Decision.parse(store.get(key).decode())
            return self._put(self._read, fills)
        except Exception:
            self._patience_s = 0.0
            return fills

    def _put(self, checkpoint: int, decision: Decision) -> Decision:
        """Write a decision where none is there; the one that then is."""
        store = distributed_c10d._get_default_store()
        return Decision.parse(store.compare_set(self._key(checkpoint), "", str(decision)).decode())

    def _there(self, store: Any, key: str) -> bool:
        deadline, pause_s = time.monotonic() + self._patience_s, _FIRST_LOOK_S
        while not store.check([key]):
            if time.monotonic() >= deadline:
                self._patience_s = 0.0
                return False
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LAST_LOOK_S)
        return True

    def _key(self, checkpoint: int) -> str:
        return f"dptune/end/{self._phase}/{checkpoint}"
