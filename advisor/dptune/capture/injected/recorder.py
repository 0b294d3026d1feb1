"""The clock of a recording: every step of the first optimizer moves it on, through the windows, to the end.

    warm-up > unprofiled > (profiler set-up) > lean > (profiler set-up) > rich > end

Every rank counts the same optimizer steps, so all of them change windows and end at the same step.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer

from dptune.capture.injected import identity
from dptune.capture.injected.departure import Departure, part
from dptune.capture.injected.endings import Endings
from dptune.capture.injected.gather import gather
from dptune.capture.injected.live import Live
from dptune.capture.injected.meters import Meters
from dptune.capture.injected.places import Places
from dptune.capture.injected.plan import Plan
from dptune.capture.injected.stopwatch import Stopwatch
from dptune.capture.injected.tracing import Tracing
from dptune.runfile import form, paths
from dptune.runfile.facts import Facts, Window
from dptune.runfile.record import PROFILER_WARMUP


class GivesWay(Exception):  # noqa: N818 - the recorder's choice, not an error
    """The recorder stops for something the script does itself."""


class Recorder:
    """Records this process once its first optimizer has stepped; until then it only waits."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._places = Places()
        self._meters = Meters(self._places)
        self._live = Live(plan)
        self._clock: weakref.ref[Optimizer] | None = None
        self._thread: threading.Thread | None = None
        self._departure = Departure()
        self._step = 0
        self._facts = Facts(rank=0)
        self._stopwatch: Stopwatch | None = None
        self._window: Window | None = None
        self._tracing: Tracing | None = None
        self._claimed = self._done = False
        self._agenda = _agenda(plan)

    def install(self) -> None:
        """Hook into torch: the optimizer's step, the meters, the constructors."""
        self._places.install()
        self._meters.install()
        self._meters.before_pass = self._leave_when_due
        self._places.before_profiler = self._give_way
        self._watch_optimizers()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._disown)
        if identity.is_worker(self._plan.launcher):
            self._live.start()

    def _watch_optimizers(self) -> None:
        hook = Optimizer.profile_hook_step

        def hook_and_tick(step: Any) -> Any:
            hooked = hook(step)

            @functools.wraps(hooked)
            def ticking(*args: Any, **kwargs: Any) -> Any:
                result = hooked(*args, **kwargs)
                self._tick(args[0])
                return result

            return ticking

        Optimizer.profile_hook_step = staticmethod(hook_and_tick)  # type: ignore[method-assign, assignment]

    def _tick(self, optimizer: Optimizer) -> None:
        """One step of an optimizer has ended. Whatever fails in here, the script goes on."""
        if self._clock is None:
            self._clock, self._thread = weakref.ref(optimizer), threading.current_thread()
            self._guarded(self._begin)
        elif self._clock() is None:
            self._clock, self._thread = weakref.ref(optimizer), threading.current_thread()  # the first was a trial
        elif self._clock() is not optimizer or threading.current_thread() is not self._thread:
            return
        self._step += 1
        self._guarded(self._advance)
        if self._step == self._plan.schedule.total_steps and self._plan.end_when_full and self._claimed:
            # A rank whose recording failed announces too: the others would wait for it for ever.
            self._departure.announce(self._meters.synchronised_passes)
            self._leave_when_due()

    def _leave_when_due(self) -> None:
        """End the script, with status 0, where all ranks have agreed to; its `except Exception` lets this pass."""
        if threading.current_thread() is self._thread and self._departure.due(self._meters.synchronised_passes):
            part()
            raise SystemExit(0)

    def _give_way(self) -> None:
        """The script starts a profiler of its own."""
        self._guarded(self._stop_for_the_scripts_profiler)

    def _stop_for_the_scripts_profiler(self) -> None:
        if self._tracing is not None:
            tracing, self._tracing = self._tracing, None
            tracing.end()
        if self._clock is not None:
            raise GivesWay(f"the script runs torch.profiler itself ({self._places.profiler_line})")

    def _disown(self) -> None:
        """A forked child of a rank is not that rank: it records nothing, and writes nothing when it ends."""
        if self._clock is not None:
            self._done, self._claimed = True, False

    def _guarded(self, act: Callable[[], None]) -> None:
        if self._done:
            return
        try:
            act()
        except Exception as error:
            self._done, self._tracing = True, None
            reason = str(error) if isinstance(error, GivesWay) else f"{type(error).__name__}: {error}"
            what = f"recording stopped: {reason}"
            with contextlib.suppress(OSError, ValueError):  # the script may have closed its stderr
                print(f"dptune: rank {self._facts.rank}: {what}", file=sys.stderr)
            self._facts.ended = what
            with contextlib.suppress(Exception):
                self._write_facts()
            self._live.say(self._step, "done")

    def _begin(self) -> None:
        self._facts.rank = identity.rank()
        self._claimed = self._live.claim(self._facts.rank)
        if not self._claimed:
            self._done = True  # another process of this run already records this rank
            return
        Endings(self.finish).install()

    def _advance(self) -> None:
        """Close the step in the window it belongs to, and open what begins now."""
        tally = self._meters.take()
        if self._window is not None and self._stopwatch is not None:
            if self._tracing is not None:
                self._tracing.end_step()
            self._stopwatch.mark()
            w = self._window
            w.loader_wait_ns.append(tally.loader_wait_ns)
            w.loader_cpu_ns.append(tally.loader_cpu_ns)
            w.loader_batches.append(tally.loader_batches)
            w.loader_samples.append(tally.loader_samples)
            w.backwards.append(tally.backwards)
            w.unsynced_backwards.append(tally.unsynced_backwards)
        self._turn_page()

    def _turn_page(self) -> None:
        for action, window in self._agenda.get(self._step, ()):
            if action == "close":
                self._close_window(complete=True)
            elif action == "prepare" and self._places.profiler_line is not None:
                raise GivesWay(f"the script runs torch.profiler itself ({self._places.profiler_line})")
            elif action == "prepare":
                self._tracing = Tracing(window)
                self._tracing.prepare()
            elif action == "open":
                self._open_window(window)
            elif action == "end":
                self.finish("complete")
        if self._tracing is not None and self._tracing.recording:
            self._tracing.begin_step(self._step + 1)
        self._live.say(self._step, self._window.name if self._window else "warm-up")

    def _open_window(self, name: str) -> None:
        self._window = Window(name=name, first_step=self._step + 1)
        self._facts.windows.append(self._window)
        if self._tracing is not None:
            self._tracing.begin()
        self._stopwatch = Stopwatch(identity.device_kind() != "cpu")

    def _close_window(self, complete: bool) -> None:
        window, stopwatch, tracing = self._window, self._stopwatch, self._tracing
        self._window = self._stopwatch = self._tracing = None
        if tracing is not None:
            tracing.end()
        if window is None or stopwatch is None:
            return
        window.durations_ns, window.device_durations_ns = stopwatch.host_ns(), stopwatch.device_ns()
        window.complete = complete
        if tracing is not None:
            target = paths.trace(self._plan.path, self._facts.rank, window.name)
            tracing.save(target)
            window.trace = target.name
        self._write_facts()

    def _write_facts(self) -> None:
        self._facts.steps = self._step
        gather(self._facts, self._places)
        self._facts.backward_where = self._meters.backward_line
        form.write(paths.facts(self._plan.path, self._facts.rank), self._facts)

    def finish(self, ended: str) -> None:
        """Put everything on disk, once: called when the windows are full, and when the process ends before that."""
        self._guarded(lambda: self._conclude(ended))

    def _conclude(self, ended: str) -> None:
        self._facts.ended = ended
        self._close_window(complete=False)
        self._write_facts()
        self._live.say(self._step, "done")
        self._done = True


def _agenda(plan: Plan) -> dict[int, list[tuple[str, str]]]:
    """What to do after which step: close, prepare and open windows, and end."""
    agenda: dict[int, list[tuple[str, str]]] = {}
    at = plan.schedule.first_boundary
    for name in ("unprofiled", "lean", "rich"):
        steps: int = getattr(plan.schedule, name)
        if not steps:
            continue
        if name != "unprofiled":
            agenda.setdefault(at, []).append(("prepare", name))
            at += PROFILER_WARMUP
        agenda.setdefault(at, []).append(("open", name))
        at += steps
        agenda.setdefault(at, []).append(("close", name))
    agenda.setdefault(at, []).append(("end", ""))
    return agenda
