"""The windows of a recording, step by step.

    warm-up > untraced > (profiler set-up) > light > (profiler set-up) > detailed > noise > done

Every rank counts the same optimizer steps, so all of them change windows at the same step. Where steps are so long that
a window would last past its time bound, or so short or so different that it is to hold more of them, a single rank uses
its own clock; several ranks agree on the step (`agreement`), and without a process group count steps only. The time of
the warm-up starts with the end of the first step: what a script does before that is no step.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

from dptune.capture.injected.observe import process_rank
from dptune.capture.injected.record.agreement import LEAD, Agreement, Decision
from dptune.capture.injected.record.plan import DONE
from dptune.capture.injected.record.spread import Spread
from dptune.runfile.record import LEAST_STEPS, PROFILER_WARMUP, Schedule

MORE_LIGHT_S = 20.0  # a light window that has lasted this long gets no steps beyond those asked for
_SURE = 16  # an end is decided when no more than this part of the phase is left: so far the pace is trusted


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
    for name in ("untraced", "light", "detailed", "noise"):
        steps: int = getattr(schedule, name)
        if steps and name in ("light", "detailed"):
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
        self._limit_s, self._least_s, self._light_most = schedule.window_s, schedule.least_s, schedule.light_most
        self._spread = Spread()
        self._agreement = Agreement()
        self._several = False  # ranks, as far as is known
        self.step = 0
        self._enter(0)
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
        self._spread.mark(self.phase, time.monotonic())
        if self.step == 1:
            self._started_s = time.monotonic()
        phase = self._phases[self._at]
        full = self.step - self._first >= phase.steps
        if not (full and not self._lasts(phase)) and not self._ends_by_time(phase):
            return []
        self.cut_short = not full
        self._enter(self._at + 1)
        return list(self._turn(phase))

    def _enter(self, at: int) -> None:
        self._at = at
        self._first = self.step  # steps made before this phase
        self._timed_from = max(1, self.step)  # and before its time started: the warm-up's with the end of the first
        self._started_s = time.monotonic()
        if not self.over:
            phase = self._phases[at]
            self._agreement.begin(phase.name, self._timed_from, self._first + phase.steps)

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
        return (bool(self._least_s) and phase.name == "untraced") or self._adapts(phase)

    def _adapts(self, phase: Phase) -> bool:
        """Whether it holds as many steps as their spread asks for: a step model is made of ranks, or of a GPU."""
        if phase.name != "light" or self._light_most <= phase.steps:
            return False
        self._several = self._several or process_rank.world_size() > 1
        return self._several or process_rank.device_kind() != "cpu"

    def _bounds(self, phase: Phase) -> list[tuple[int, float]]:
        """Steps and seconds, any pair of which ends the phase once both are reached."""
        least = LEAST_STEPS.get(phase.name)
        bounds = [(least, self._limit_s)] if self._limit_s and least is not None else []
        if self._adapts(phase):
            needed = self._spread.needed(phase.steps, self._light_most)
            return [*bounds, (phase.steps, MORE_LIGHT_S), (needed, 0.0)]
        return [*bounds, (phase.steps, self._least_s)] if self._lasts(phase) else bounds

    def _ends_by_time(self, phase: Phase) -> bool:
        bounds = self._bounds(phase)
        if not bounds:
            return False
        self._several = self._several or process_rank.world_size() > 1
        if not self._several:
            made, elapsed_s = self.step - self._first, self._elapsed_s
            return any(made >= steps and elapsed_s >= seconds for steps, seconds in bounds)
        if self._first + phase.steps <= self._timed_from + 1 + LEAD and not self._lasts(phase):
            return False  # it is full before anything could be agreed on
        return self._agreement.ends(self.step, lambda checkpoint: self._decided(phase, checkpoint))

    @property
    def _elapsed_s(self) -> float:
        return time.monotonic() - self._started_s

    def _decided(self, phase: Phase, checkpoint: int) -> Decision:
        """Where the phase ends at the pace of its steps so far; while that is far ahead, when to look again."""
        made, full = self.step - self._first, self._first + phase.steps
        elapsed_s = max(self._elapsed_s, 1e-9)
        a_step_s = elapsed_s / (self.step - self._timed_from)
        left = min(
            max(steps - made, math.ceil((seconds - elapsed_s) / a_step_s)) for steps, seconds in self._bounds(phase)
        )
        end = self.step + left
        if end - checkpoint <= (end - self._first) // _SURE or (end <= full and self._adapts(phase)):
            return Decision(True, max(end, checkpoint))
        next_look = max(checkpoint + 1, self.step + left // 2)
        if next_look >= full and not self._lasts(phase):
            return Decision(True, full)
        return Decision(False, next_look)
