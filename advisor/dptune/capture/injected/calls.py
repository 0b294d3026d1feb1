"""Collectives that are called by name, by function, by the line of the script, and by who takes part.

DDP's own do not pass here: they are called in C++. Those that libraries call, and torch itself (FSDP, hooks), are noted
as theirs.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import threading
import time
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

import torch
import torch.distributed as dist

from dptune.capture.injected.places import entry, library, users_line
from dptune.runfile.communication import CallFacts

FUNCTIONS = (
    *("all_reduce", "broadcast", "reduce", "barrier", "monitored_barrier"),
    *("all_gather", "all_gather_into_tensor", "all_gather_single", "gather", "scatter"),
    *("reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_single", "all_to_all", "all_to_all_single"),
    *("all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list"),
)
_MOST = 200  # lines that are told apart


class Calls:
    """Counts outermost calls, once it is told to begin."""

    def __init__(self) -> None:
        self._counting = False
        self._inside = threading.local()
        self._lines: dict[tuple[CodeType, int], tuple[str | None, str, str]] = {}
        self._found: dict[tuple[str, tuple[str | None, str, str], tuple[int, ...]], CallFacts] = {}
        self.first_step = 0

    def install(self) -> None:
        """Wrap the functions of torch.distributed. Absent where torch was built without it."""
        module = getattr(dist, "distributed_c10d", None)
        for name in FUNCTIONS:
            if hasattr(module, name):
                metered = self._metered(name, getattr(module, name))
                setattr(module, name, metered)
                setattr(dist, name, metered)

    def begin(self, step: int) -> None:
        """Count from that step on; what the script sends while it starts is no part of its steps."""
        self._found.clear()
        self._counting, self.first_step = True, step

    def facts(self) -> list[CallFacts]:
        """What was counted so far, the most called first."""
        return sorted(self._found.values(), key=lambda one: -one.calls)

    def _metered(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        parameters = list(inspect.signature(call).parameters)
        of_group = parameters.index("group") if "group" in parameters else len(parameters)

        @functools.wraps(call)
        def metered(*args: Any, **kwargs: Any) -> Any:
            # In this order: what a graph is compiled with must not depend on whether anyone counts.
            if torch.compiler.is_compiling() or not self._counting or getattr(self._inside, "a_call", False):
                return call(*args, **kwargs)
            self._inside.a_call = True
            begun = time.perf_counter_ns()
            try:
                return call(*args, **kwargs)
            finally:
                spent = time.perf_counter_ns() - begun
                self._inside.a_call = False
                group = kwargs.get("group", args[of_group] if len(args) > of_group else None)
                self._note(name, (*args, *kwargs.values()), group, spent)

        return metered

    def _note(self, name: str, given: tuple[Any, ...], group: Any, spent_ns: int) -> None:
        with contextlib.suppress(Exception):  # of a group that is gone, or none of this rank's: nothing to tell
            line = self._line(sys._getframe(2))
            ranks = tuple(dist.get_process_group_ranks(group or dist.group.WORLD))
            key = (name, line, ranks)
            if key not in self._found:
                if len(self._found) >= _MOST:
                    return
                where, package, through = line
                self._found[key] = CallFacts(name, where, list(ranks), library=package, through=through)
            one = self._found[key]
            one.calls += 1
            one.host_ns += spent_ns
            one.sent_bytes += max((_bytes_of(value) for value in given), default=0)

    def _line(self, caller: FrameType) -> tuple[str | None, str, str]:
        """The script's line, the package that calls for it, and its function there; for one call of a library many."""
        at = (caller.f_code, caller.f_lineno)
        found = self._lines.get(at)
        if found is None:
            package = library(caller)
            found = users_line(caller), package, entry(caller) if package else ""
            if not package and len(self._lines) < _MOST:
                self._lines[at] = found
        return found


def _bytes_of(value: Any) -> int:
    """Of a tensor or a list of them; 0 of anything else."""
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, (list, tuple)):
        return sum(one.numel() * one.element_size() for one in value if isinstance(one, torch.Tensor))
    return 0
