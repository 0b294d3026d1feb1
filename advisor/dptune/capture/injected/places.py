"""Remembers each DistributedDataParallel, DataLoader, optimizer and GradScaler, and the user's line that made it.

Also whether autocast was entered, and with which type.
"""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
import weakref
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.amp.autocast_mode import autocast
from torch.amp.grad_scaler import GradScaler
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.profiler import profile
from torch.utils.data import DataLoader

_NOT_THE_USERS = (
    str(Path(torch.__file__).parent),
    str(Path(__file__).parent),
    sysconfig.get_path("stdlib"),
    sysconfig.get_path("purelib"),
    "<frozen",
)


_HERE = os.path.join(os.getcwd(), "")  # noqa: PTH109, PTH118 - a prefix: where the script was started


def users_line(frame: FrameType | None) -> str | None:
    """`file:line` of the innermost frame that is neither torch's, the standard library's nor an installed package's.

    The file is relative to the folder the script was started in, where it lies below it.
    """
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(_NOT_THE_USERS):
            return f"{name.removeprefix(_HERE)}:{frame.f_lineno}"
        frame = frame.f_back
    return None


class Places:
    """Live objects of a kind, in the order they were made, each with its line; nothing is kept alive."""

    def __init__(self) -> None:
        self._made: dict[type, list[weakref.ref[Any]]] = {}
        self._lines: weakref.WeakKeyDictionary[Any, str | None] = weakref.WeakKeyDictionary()
        self.autocast: str | None = None
        self.profiler_line: str | None = None
        self.before_profiler: Callable[[], None] = lambda: None
        self.draws: Counter[int] = Counter()  # batches drawn, by the identity of the sampler they were drawn with

    def install(self) -> None:
        """Wrap the constructors. Their signatures stay readable through `__wrapped__`."""
        for kind in (DistributedDataParallel, DataLoader, Optimizer, GradScaler):
            self._watch(kind)
        self._watch_autocast()
        self._watch_profilers()

    def alive(self, kind: type) -> list[Any]:
        """Objects of that kind that still exist, oldest first."""
        return [thing for thing in (ref() for ref in self._made.get(kind, [])) if thing is not None]

    def ddp(self) -> list[Any]:
        """The DistributedDataParallel modules that still exist."""
        return self.alive(DistributedDataParallel)

    def line(self, thing: Any) -> str | None:
        """`file:line` of the user's call that made it."""
        return self._lines.get(thing)

    def _watch(self, kind: type) -> None:
        made = self._made.setdefault(kind, [])
        construct = kind.__init__  # type: ignore[misc]

        @functools.wraps(construct)
        def watched(this: Any, *args: Any, **kwargs: Any) -> None:
            construct(this, *args, **kwargs)
            made.append(weakref.ref(this))
            self._lines[this] = users_line(sys._getframe(1))

        kind.__init__ = watched  # type: ignore[misc]

    def _watch_autocast(self) -> None:
        enter = autocast.__enter__

        @functools.wraps(enter)
        def watched(this: Any) -> Any:
            if getattr(this, "_enabled", False):
                self.autocast = f"{this.device}:{str(this.fast_dtype).removeprefix('torch.')}"
            return enter(this)  # type: ignore[no-untyped-call]

        autocast.__enter__ = watched  # type: ignore[method-assign]

    def _watch_profilers(self) -> None:
        """Two profilers in one process can crash it: dptune's own gives way to the script's."""
        for kind, method in ((profile, "__init__"), (torch.autograd.profiler.profile, "__enter__")):
            begin = getattr(kind, method)

            @functools.wraps(begin)
            def watched(this: Any, *args: Any, begin: Any = begin, **kwargs: Any) -> Any:
                self.profiler_line = self.profiler_line or users_line(sys._getframe(1)) or "a library"
                self.before_profiler()
                return begin(this, *args, **kwargs)

            setattr(kind, method, watched)
