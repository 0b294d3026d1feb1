"""What the ranks say while they run, and the line that shows it."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from dptune.capture.injected.record.plan import DONE, UNRECORDED


@dataclass(frozen=True)
class RankStatus:
    """The last word of one process: optimizer steps made, the window it is in, where it is before the first step.

    Until `claimed`, the rank is a guess. `beat` counts its backward passes and the steps of any optimizer of it. The
    phase is at last `done`, or `ended` where the rank records nothing more without having everything. `stays`: it runs
    to its own end.
    """

    rank: int
    pid: int
    step: int
    phase: str
    where: str | None
    claimed: bool = False
    beat: int = 0
    stays: bool = False


def listen(live: Path) -> list[RankStatus]:
    """The last word of each process that has said anything, by rank; of ranks only, as soon as there is one."""
    said = everyone(live)
    return [status for status in said if status.claimed] or said


def everyone(live: Path) -> list[RankStatus]:
    """The last word of each process that has said anything, by rank, then by process id."""
    said = []
    for path in live.glob("pid-*.json"):
        try:
            said.append(RankStatus(**json.loads(path.read_text(encoding="utf-8"))))
        except (OSError, ValueError, TypeError):
            continue  # replaced or removed under our eyes: the next look sees it
    return sorted(said, key=lambda status: (status.rank, status.pid))


def unrecorded(live: Path) -> list[str]:
    """The scripts of processes that trained and were not recorded, each once."""
    found = []
    for path in sorted(live.glob(f"{UNRECORDED}*")):
        with contextlib.suppress(OSError, ValueError):
            found.append(path.read_text(encoding="utf-8"))
    return list(dict.fromkeys(found))


class ProgressLine:
    """One line on a terminal, rewritten in place; elsewhere one line per change of window. Always stderr.

    `quiet` shows no progress, `mute` says nothing at all. Where nobody can read it any more (a full disk, a pipe whose
    reader is gone), it falls silent: the script goes on.
    """

    def __init__(
        self,
        total_steps: int,
        quiet: bool = False,
        mute: bool = False,
        stream: TextIO | None = None,
        notes: Mapping[str, str] | None = None,
    ) -> None:
        """`notes` say more of a phase, by its name."""
        self._stream = sys.stderr if stream is None else stream
        self._notes = notes or {}
        self._total, self._quiet, self._mute = total_steps, quiet or mute, mute
        self._terminal = self._stream.isatty()
        self._last = ""

    def show(self, said: list[RankStatus]) -> None:
        """Show the slowest rank's step and window."""
        if self._quiet or not said:
            return
        slowest = min(said, key=lambda status: status.step)
        if not slowest.step:
            phase, text = "starting", "waiting for the first optimizer step"
        else:
            phase = f"{slowest.phase}{self._notes.get(slowest.phase, '')}"
            total = min(slowest.step, self._total) if slowest.phase == DONE else self._total  # fewer where times agree
            text = f"step {min(slowest.step, total)}/{total} · {phase}"
        shown = text if self._terminal else phase
        if shown == self._last:
            return
        self._last = shown
        if self._terminal:
            # The cursor goes back to the line's start, so that what the script prints replaces this line.
            self._write(f"\r\x1b[Kdptune: {text}\r")
        else:
            self._write(f"dptune: {text}\n")

    def say(self, text: str, only_on_a_terminal: bool = False) -> None:
        """A line of its own, also where progress is not shown."""
        if self._mute or (only_on_a_terminal and not self._terminal):
            return
        self.clear()
        self._write(f"dptune: {text}\n")

    def clear(self) -> None:
        """Take the line off the terminal."""
        if self._terminal and not self._quiet:
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            self._quiet = self._mute = True
