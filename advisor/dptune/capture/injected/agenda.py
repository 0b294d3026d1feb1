"""The windows of a recording, step by step, and the agreement of all ranks on where a window ends early.

    warm-up > unprofiled > (profiler set-up) > lean > (profiler set-up) > rich > noise > done

Every rank counts the same optimizer steps, so all of them change windows at the same step. Where steps are so long that
a window would last past its time bound, or so short that it is to hold more of them, rank 0 announces through the
process group's store, a few steps ahead, at which step it ends: clocks differ between ranks, step numbers do not.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from torch.distributed import distributed_c10d

from dptune.capture.injected import identity
from dptune.capture.injected.plan import DONE
from dptune.runfile.record import LEAST_STEPS, PROFILER_WARMUP, Schedule

_LEAD = 2  # steps between the announcement of an early end and that end: no rank is further ahead than that


@dataclass(frozen=True)
class Phase:
    """A stretch of steps. `window` is the name of the window it fills, None for warm-up and the profiler's set-up."""

    name: str
    steps: int
    window: str | None = None
    prepares: str | None = None


def phases(schedule: Schedule) -> list[Phase]:
    """The phases that the schedule asks for, in order; windows of no steps are left out."""
    made = [Phase("warm-up", schedule.first_boundary)]
    for name in ("unprofiled", "lean", "rich", "noise"):
        steps: int = getattr(schedule, name)
        if steps and name in ("lean", "rich"):
            made.append(Phase(f"set-up of {name}", PROFILER_WARMUP, prepares=name))
        if steps:
            made.append(Phase(name, steps, window=name))
    return made


class Agenda:
    """Where this rank is. `tick()` once per optimizer step; it returns what to do now, in order.

    What is to be done: ("close", window), ("prepare", window), ("open", window), ("end", "").
    """

    def __init__(self, schedule: Schedule) -> None:
        self._phases = phases(schedule)
        self._limit_s, self._least_s = schedule.window_s, schedule.least_s
        self._at = 0
        self._begun_s = time.monotonic()
        self._first = 0  # steps made before this phase
        self._cut: int | None = None  # the step at which this phase ends early, once that is known
        self.step = 0
        self.cut_short = False

    @property
    def phase(self) -> str:
        """The name of the present phase, `done` after the last one."""
        return self._phases[self._at].name if self._at < len(self._phases) else DONE

    @property
    def over(self) -> bool:
        """Whether every window is behind us."""
        return self._at >= len(self._phases)

    def tick(self) -> list[tuple[str, str]]:
        """A step has ended. `cut_short` says whether the time bound ended the phase that ends now."""
        self.step += 1
        if self.over:
            return []
        phase = self._phases[self._at]
        full = self.step - self._first >= phase.steps
        if not (full and not self._lasts(phase)) and not self._ends_by_time(phase):
            return []
        self.cut_short = not full
        self._at += 1
        self._first, self._begun_s, self._cut = self.step, time.monotonic(), None
        return list(self._turn(phase))

    def _turn(self, ended: Phase) -> Iterator[tuple[str, str]]:
        if ended.window:
            yield "close", ended.window
        if self.over:
            yield "end", ""
            return
        begun = self._phases[self._at]
        if begun.prepares:
            yield "prepare", begun.prepares
        if begun.window:
            yield "open", begun.window

    def _lasts(self, phase: Phase) -> bool:
        """Whether the phase may hold more steps than are asked for."""
        return bool(self._least_s) and phase.name == "unprofiled"

    def _bounds(self, phase: Phase) -> list[tuple[int, float]]:
        """Steps and seconds, any pair of which ends the phase once both are reached."""
        least = LEAST_STEPS.get(phase.name)
        bounds = [(least, self._limit_s)] if self._limit_s and least is not None else []
        return [*bounds, (phase.steps, self._least_s)] if self._lasts(phase) else bounds

    def _ends_by_time(self, phase: Phase) -> bool:
        made, elapsed = self.step - self._first, time.monotonic() - self._begun_s
        bounds = self._bounds(phase)
        if not identity.together():
            return any(made >= steps and elapsed >= seconds for steps, seconds in bounds)
        if self._cut is None:
            try:
                self._cut = self._announced(elapsed, made, bounds)
            except Exception:  # the group may be gone: then the window just fills up
                self._cut = max(self.step, self._first + phase.steps)
        return self._cut is not None and self.step >= self._cut

    def _announced(self, elapsed: float, made: int, bounds: list[tuple[int, float]]) -> int | None:
        """The step at which this phase ends by time, from rank 0: announced by it, read by the others."""
        key = f"dptune/cut/{self._at}"
        if identity.rank() == 0:
            soon = [steps for steps, seconds in bounds if elapsed + _LEAD * elapsed / made >= seconds]
            if not soon or made + _LEAD < min(soon):
                return None
            at = max(self.step + _LEAD, self._first + min(soon))
            distributed_c10d._get_default_store().set(key, str(at))
            return at
        # Their clocks are near that of rank 0: no question to the store before half of the time has passed.
        if any(elapsed >= seconds / 2 and made + 2 * _LEAD >= steps for steps, seconds in bounds):
            store = distributed_c10d._get_default_store()
            return int(store.get(key)) if store.check([key]) else None
        return None
