"""From the start of the script to its end: progress, signals, and the limits on waiting for a step."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dptune.capture import processes
from dptune.capture.injected.record.plan import DONE, OVER
from dptune.capture.progress import ProgressLine, RankStatus, listen
from dptune.capture.signals import ReceivedSignal, Signals

_LOOK_EVERY_S = 0.2
_RANKS_AT_EASE = 32  # with more, their files are read less often: the folder may lie on a slow shared disk
_REACTS_WITHIN_S = 3.0  # a script that trains on for so long after an interrupt did not get it
_ENDS_WITHIN_S = 10.0  # or one that makes no step and does not end


@dataclass(frozen=True)
class Limits:
    """Seconds that the first optimizer step may take to come, and any later one.

    `end_s`: how long it may live on once its recording is complete, or was interrupted, before it is ended; None: as
    long as it wants, for its own end is worth something.
    """

    first_step_s: float = 600.0
    stall_s: float = 1800.0
    end_s: float | None = None


@dataclass
class Watched:
    """What was seen. `waited_s` is the limit that was passed, `stopped` a signal to dptune that ends the script.

    `complete`: whether every rank had said that its recording is; `stays`: whether one runs to its own end.
    """

    status: int | None = None
    steps: int = 0
    interrupted: bool = False
    again: bool = False
    complete: bool = False
    stays: bool = False
    waited_s: float | None = None
    stopped: int | None = None


class Watch:
    """Watches one started process and what it started. Ending what is left is up to the caller.

    `must_end`: whether the script is to end once the recording is complete. `on_phase` is called at every look with
    the phase of the slowest rank. `ranks`: the processes that have spoken.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        live: Path,
        limits: Limits,
        progress: ProgressLine,
        must_end: bool = False,
        on_phase: Callable[[str], None] = lambda phase: None,
    ) -> None:
        self._on_phase = on_phase
        self._process, self._live, self._limits, self._progress = process, live, limits, progress
        self._must_end = must_end
        self._seen = Watched()
        self._life = _Life(time.monotonic())
        self._interrupt: _Interrupt | None = None
        self._reported_end = False
        self._asked_to_end: float | None = None
        self.ranks: set[int] = set()

    def until_over(self, signals: Signals) -> Watched:
        """Until the script has ended, or has to be ended."""
        said: list[RankStatus] = []
        while True:
            pause_s = _LOOK_EVERY_S * (1 + len(said) // _RANKS_AT_EASE)
            heard = signals.wait(pause_s, lambda: self._process.poll() is not None)
            if heard is not None:
                self._answer(heard)
            said = listen(self._live)
            self._look(said)
            self._seen.status = self._process.poll()
            if self._seen.status is not None or self._seen.stopped is not None or self._seen.again:
                return self._seen
            if self._too_long() or self._lives_on():
                return self._seen
            self._pass_on(said)

    def _look(self, said: list[RankStatus]) -> None:
        self._progress.show(said)
        if said:
            self._on_phase(min(said, key=lambda rank: rank.step).phase)
        self.ranks.update(status.pid for status in said)
        self._life.see(said, time.monotonic())
        self._seen.steps = max(self._seen.steps, max((status.step for status in said), default=0))
        self._seen.complete = self._life.phases == {DONE}
        self._seen.stays = self._seen.stays or any(status.claimed and status.stays for status in said)
        if self._ending and self._life.quiet_s > _ENDS_WITHIN_S and self._interrupt is None and not self._reported_end:
            self._reported_end = True
            text = "the recording is complete; waiting for the script to end (Ctrl-C ends it)"
            self._progress.say(text, only_on_a_terminal=True)

    @property
    def _ending(self) -> bool:
        """Whether the script has been asked to end, on all ranks."""
        return self._must_end and self._seen.complete and not self._seen.stays

    def _too_long(self) -> bool:
        limit = self._limits.stall_s if self._life.made else self._limits.first_step_s
        recorded = bool(self._life.phases) and self._life.phases <= OVER
        if self._interrupt is not None or (recorded and not self._ending) or self._life.quiet_s <= limit:
            return False
        self._seen.waited_s = limit
        return True

    def _lives_on(self) -> bool:
        """Whether it does not end although it was asked to, and nothing that it may still do is worth waiting for."""
        if self._ending and self._asked_to_end is None:
            self._asked_to_end = time.monotonic()
        since = self._asked_to_end if self._interrupt is None else self._interrupt.at
        return self._limits.end_s is not None and since is not None and time.monotonic() - since > self._limits.end_s

    def _answer(self, heard: ReceivedSignal) -> None:
        if heard.number != signal.SIGINT:
            self._seen.stopped = heard.number
        elif self._interrupt is not None:
            self._seen.again = True
        else:
            self._seen.interrupted = True
            self._interrupt = _Interrupt(heard.from_terminal, self._life.made)
            self._progress.say("interrupted; waiting for the script to end (Ctrl-C again kills it)")

    def _pass_on(self, said: list[RankStatus]) -> None:
        """Hand an interrupt that was sent to dptune alone on to the script, once."""
        if self._interrupt is not None and self._interrupt.missed_by(self._life.made):
            self._progress.say("the script continues: passing the interrupt on to it")
            self._process.send_signal(signal.SIGINT)


class _Life:
    """For how long nothing has moved: no step and, after the first one, no backward pass either."""

    def __init__(self, now: float) -> None:
        self._signs: dict[int, tuple[int, int]] = {}
        self._since = self._now = now
        self.phases: set[str] = set()
        self.made = 0

    def see(self, said: list[RankStatus], now: float) -> None:
        """Take note. Where those who spoke cannot be heard any more, nobody knows whether they move."""
        self._now = now
        before = self.phases
        self.phases = {status.phase for status in said}
        moved = False
        for status in said:
            step, beat = self._signs.get(status.pid, (0, 0))
            moved |= status.step != step or (status.beat != beat and self.made > 0)
            self.made += max(0, status.step - step)
            self._signs[status.pid] = (status.step, status.beat)
        over = self.phases <= OVER and self.phases != before  # from here on it is the end that is waited for
        if moved or over or (self._signs and not said):
            self._since = now

    @property
    def quiet_s(self) -> float:
        """Seconds since the last sign of life."""
        return self._now - self._since


class _Interrupt:
    """One SIGINT, and whether the script must have missed it."""

    def __init__(self, from_terminal: bool, made: int) -> None:
        self._passed_on = from_terminal
        self._made, self.at = made, time.monotonic()

    def missed_by(self, made: int) -> bool:
        """True once: the script trains on, or has neither stepped nor ended for longer than ending takes."""
        waited = time.monotonic() - self.at
        trains_on = waited > _REACTS_WITHIN_S and made > self._made + 1
        if self._passed_on or not (trains_on or waited > _ENDS_WITHIN_S):
            return False
        self._passed_on = True
        return True


def leftovers(ranks: set[int], entry: str) -> set[int]:
    """Those of the ranks that still live, with the workers of multiprocessing that they started or left.

    Only processes that carry the recording's mark. Others that the script has left behind are its own business.
    """
    carrying = set(processes.carrying(entry))
    return {pid for pid in carrying if pid in ranks or _is_worker(pid, ranks, carrying)}


def _is_worker(pid: int, ranks: set[int], carrying: set[int]) -> bool:
    """Whether it is a worker of multiprocessing whose parent is one of these, or dead: an orphan's is a stranger."""
    above = processes.parent(pid)
    works = any(word.startswith(("from multiprocessing.", "--multiprocessing-fork")) for word in processes.words(pid))
    return works and (above in ranks or above not in carrying)
