"""What a step is: one call of the first optimizer's step(), however it is called.

The clock is recognised by the first tensor it updates, so that an optimizer made anew for every step is one clock, and
a second optimizer (of a discriminator, say) is not. Of optimizers that call one another the outermost counts. A step
that a GradScaler skips, because gradients overflowed, is a step too: forward and backward were paid for. Where
optimizers step inside the backward pass, parameter by parameter, the step ends with that pass. A clock that has stood
still while another optimizer made many steps hands over to that one.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

_STANDS_STILL = 30  # steps of another optimizer, since the clock's own last one


class Clock:
    """Calls `tick(skipped)` in the thread that made the first step, at the end of every step."""

    def __init__(self, tick: Callable[[bool], None], updated: Callable[[Any], None] = lambda optimizer: None) -> None:
        """`updated(optimizer)` is called after each step of any optimizer that was not skipped, before the tick."""
        self._tick = tick
        self._updated = updated
        self._first: weakref.ref[Any] | None = None
        self._thread: threading.Thread | None = None
        self._calls = threading.local()
        self._in_pass = False  # a step inside a backward pass that has not ended
        self._others: Counter[int] = Counter()  # steps of other optimizers, by their first tensor
        self.steps_of_all = 0
        self.skips_known = True

    def _here(self) -> bool:
        return threading.current_thread() is self._thread

    def install(self) -> None:
        """Hook into every optimizer made from now on, and into GradScaler.step."""
        hook = Optimizer.profile_hook_step

        def hook_and_tick(step: Any) -> Any:
            hooked = hook(step)

            @functools.wraps(hooked)
            def ticking(*args: Any, **kwargs: Any) -> Any:
                if torch.compiler.is_compiling():  # a compiled step runs without Python, so without a tick
                    return hooked(*args, **kwargs)
                depth = getattr(self._calls, "depth", 0)
                self._calls.depth = depth + 1
                try:
                    result = hooked(*args, **kwargs)
                finally:
                    self._calls.depth = depth
                if not depth:
                    self._stepped(args[0], skipped=False)
                return result

            return ticking

        Optimizer.profile_hook_step = staticmethod(hook_and_tick)  # type: ignore[method-assign, assignment]
        self._watch_scaler()

    def _watch_scaler(self) -> None:
        step = GradScaler.step

        @functools.wraps(step)
        def watched(this: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            self._calls.stepped = False
            result = step(this, optimizer, *args, **kwargs)
            if not self._calls.stepped and isinstance(optimizer, Optimizer):
                self._stepped(optimizer, skipped=True)
            if getattr(optimizer, "_step_supports_amp_scaling", False):
                self.skips_known = False  # it was called, and may have skipped by itself
            return result

        GradScaler.step = watched  # type: ignore[method-assign, assignment]

    def settle(self) -> None:
        """A backward pass has ended."""
        if self._in_pass:
            self._in_pass = False
            self._thread = self._thread or threading.current_thread()
            if self._here():
                self._tick(False)

    def _stepped(self, optimizer: Optimizer, skipped: bool) -> None:
        self._calls.stepped = True
        self.steps_of_all += 1
        inside = torch._C._current_graph_task_id() != -1
        if not (skipped or inside):
            self._updated(optimizer)
        tensor = next((tensor for group in optimizer.param_groups for tensor in group["params"]), None)
        if tensor is None:
            return
        if self._first is None or self._first() is None or self._others[id(tensor)] >= _STANDS_STILL:
            # none yet, or the first one was only a trial and is gone, or it has been left behind
            self._first = weakref.ref(tensor)
            self._thread = None if inside else threading.current_thread()
        if self._first() is not tensor:
            self._others[id(tensor)] += 1
            return
        self._others.clear()
        if inside:
            self._in_pass = True
        elif self._here():
            self._tick(skipped)
