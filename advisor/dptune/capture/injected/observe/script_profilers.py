"""The profilers that the script itself runs: two in one process can crash it, and one left on slows training."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import profile, schedule

from dptune.capture.injected.observe.places import users_line
from dptune.runfile.script_profiler import ScriptProfilerFacts

_SCHEDULE = schedule(wait=0, warmup=1, active=1).__code__
_CYCLE = ("wait", "warmup", "active")


class ScriptProfilers:
    """The one that runs, and what its own `step` took so far."""

    def __init__(self) -> None:
        self.before: Callable[[str], None] = lambda line: None  # one is made or starts, at that line
        self._facts: ScriptProfilerFacts | None = None
        self._lines: dict[int, str] = {}  # by the id of a profiler, where it is made
        self._running: Any = None
        self._begun_ns = 0
        self._disturbs = ""

    def install(self) -> None:
        """Wrap what makes, starts and stops profilers."""
        self._wrap(profile, "__init__", before=self._made)
        self._wrap(profile, "start", before=self._starts)
        self._wrap(profile, "stop", after=self._stopped)
        self._watch_steps()
        legacy = torch.autograd.profiler.profile
        self._wrap(legacy, "__enter__", before=self._starts)
        self._wrap(legacy, "__exit__", after=self._stopped)

    @property
    def disturbs(self) -> str:
        """The line of a profiler that ran in a window, or runs now; empty where none did."""
        if self._running is not None and self._facts is not None:
            return self._facts.where or ""
        return self._disturbs

    def opened(self) -> None:
        """A window begins: what runs now disturbs its steps, even if it stops within."""
        self._disturbs = self.disturbs

    def stepped(self) -> None:
        """An optimizer has made a step."""
        if self._running is not None and self._facts is not None:
            self._facts.optimizer_steps += 1

    def facts(self) -> ScriptProfilerFacts | None:
        """None where the script started none."""
        return self._facts

    def _wrap(
        self,
        kind: Any,
        method: str,
        *,
        before: Callable[[Any, Any], None] | None = None,
        after: Callable[[Any], None] | None = None,
    ) -> None:
        call = getattr(kind, method)

        @functools.wraps(call)
        def watched(this: Any, *args: Any, **kwargs: Any) -> Any:
            if before is not None:
                before(this, sys._getframe(1))
            result = call(this, *args, **kwargs)
            if after is not None:
                after(this)
            return result

        setattr(kind, method, watched)

    def _watch_steps(self) -> None:
        step = profile.step

        @functools.wraps(step)
        def metered(this: Any, *args: Any, **kwargs: Any) -> Any:
            begun_ns = time.perf_counter_ns()
            try:
                return step(this, *args, **kwargs)
            finally:
                facts, ended_ns = self._facts, time.perf_counter_ns()
                if this is self._running and facts is not None:
                    facts.calls += 1
                    facts.spent_ns += ended_ns - begun_ns
                    facts.lasted_ns = ended_ns - self._begun_ns

        profile.step = metered  # type: ignore[method-assign, assignment]

    def _made(self, this: Any, frame: Any) -> None:
        self._lines[id(this)] = line = users_line(frame) or "a library"
        self.before(line)

    def _starts(self, this: Any, frame: Any) -> None:
        if not getattr(this, "enabled", True):  # torch.autograd.profiler's can be off
            return
        self._running, self._begun_ns = this, time.perf_counter_ns()
        made = self._lines.get(id(this)) if isinstance(this, profile) else None
        line = made or users_line(frame) or "a library"
        facts = ScriptProfilerFacts(line, running=True)
        with contextlib.suppress(Exception):  # a schedule may be anything that can be called
            facts.cycle, facts.repeat = _schedule(this)
        self._facts = facts
        self.before(line)

    def _stopped(self, this: Any) -> None:
        if this is self._running and self._facts is not None:
            self._running, self._facts.running = None, False


def _schedule(this: Any) -> tuple[list[int] | None, int | None]:
    """The steps of a cycle and the number of cycles. Without a schedule all steps are recorded: no cycle, 0."""
    planned: Any = getattr(this, "schedule", None)
    if getattr(planned, "__code__", None) is _SCHEDULE:
        made_with = inspect.getclosurevars(planned).nonlocals
        return [made_with[name] for name in _CYCLE], made_with["repeat"]
    return None, None if getattr(this, "record_steps", False) else 0
