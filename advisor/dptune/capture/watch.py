"""From the start of the script to its end: progress, signals, and the limits on waiting for a step."""

from __future__ import annotations

import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from dptune.capture import processes
from dptune.capture.heed import Heard, Signals
from dptune.capture.progress import ProgressLine, Said, listen

_LOOK_EVERY_S = 0.2
_RANKS_AT_EASE = 32  # with more, their files are read less often: the folder may lie on a slow shared disk
_REACTS_WITHIN_S = 3.0  # a script that trains on for so long after an interrupt did not get it
_ENDS_WITHIN_S = 10.0  # or one that makes no step and does not end


@dataclass(frozen=True)
class Limits:
    """Seconds that the first optimizer step may take to come, and any later one."""

    first_step_s: float = 600.0
    stall_s: float = 1800.0


@dataclass
class Watched:
    """What was seen. `waited` is the limit that was passed, `stopped` a signal to dptune that ends the script."""

    status: int | None = None
    steps: int = 0
    interrupted: bool = False
    again: bool = False
    waited_s: float | None = None
    stopped: int | None = None


class Watch:
    """Watches one started process and what it started. Ending what is left is up to the caller.

    `ranks`: the processes that have spoken, and their command lines.
    """

    def __init__(self, process: subprocess.Popen[bytes], live: Path, limits: Limits, progress: ProgressLine) -> None:
        self._process, self._live, self._limits, self._progress = process, live, limits, progress
        self._seen = Watched()
        self._made, self._since = 0, time.monotonic()
        self._complete = False
        self._interrupt: _Interrupt | None = None
        self.ranks: dict[int, list[str]] = {}

    def until_over(self, signals: Signals) -> Watched:
        """Until the script has ended, or has to be ended."""
        said: list[Said] = []
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
            if self._too_long():
                return self._seen
            self._pass_on(said)

    def _look(self, said: list[Said]) -> None:
        self._progress.show(said)
        for one in said:
            if one.pid not in self.ranks:
                self.ranks[one.pid] = processes.words(one.pid)
        made = sum(one.step for one in said)
        if made > self._made:
            self._made, self._since = made, time.monotonic()
        self._seen.steps = max(self._seen.steps, max((one.step for one in said), default=0))
        self._complete = bool(said) and all(one.phase == "done" for one in said)

    def _too_long(self) -> bool:
        limit = self._limits.stall_s if self._made else self._limits.first_step_s
        if self._complete or self._interrupt is not None or time.monotonic() - self._since <= limit:
            return False
        self._seen.waited_s = limit
        return True

    def _answer(self, heard: Heard) -> None:
        if heard.number != signal.SIGINT:
            self._seen.stopped = heard.number
        elif self._interrupt is not None:
            self._seen.again = True
        else:
            self._seen.interrupted = True
            self._interrupt = _Interrupt(heard.from_terminal, self._made)
            self._progress.say("interrupted; waiting for the script to end (once more ends it)")

    def _pass_on(self, said: list[Said]) -> None:
        """Hand an interrupt that was sent to dptune alone on to the script, once."""
        if self._interrupt is not None and self._interrupt.missed_by(self._made):
            self._progress.say("the script goes on: passing the interrupt on to it")
            self._process.send_signal(signal.SIGINT)


class _Interrupt:
    """One SIGINT, and whether the script must have missed it."""

    def __init__(self, from_terminal: bool, made: int) -> None:
        self._passed_on = from_terminal
        self._made, self._at = made, time.monotonic()

    def missed_by(self, made: int) -> bool:
        """True once: the script trains on, or has neither stepped nor ended for longer than ending takes."""
        waited = time.monotonic() - self._at
        trains_on = waited > _REACTS_WITHIN_S and made > self._made + 1
        if self._passed_on or not (trains_on or waited > _ENDS_WITHIN_S):
            return False
        self._passed_on = True
        return True


def leftovers(ranks: dict[int, list[str]], entry: str) -> set[int]:
    """Ranks that were seen, by process id and command line, and still live, with their loader workers.

    Only processes that carry the recording's mark. Others that the script has left behind are its own business.
    """
    left = set()
    for pid in processes.carrying(entry):
        words = processes.words(pid)
        if pid in ranks or words in ranks.values() or any("multiprocessing" in word for word in words):
            left.add(pid)
    return left
