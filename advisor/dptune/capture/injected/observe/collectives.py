"""Collectives that are called by name, by function, by the line of the script, and by who takes part.

DDP's own do not pass here: they are called in C++. Those that libraries call, and torch itself (FSDP, hooks), are noted
as theirs. A sharded tensor (DTensor) communicates in C++, too: what counts is the call that has it gathered or reduced.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import threading
import time
from collections.abc import Callable, Iterable
from types import CodeType, FrameType, ModuleType
from typing import Any

import torch
import torch.distributed as dist

from dptune.capture.injected.imports import imports
from dptune.capture.injected.observe.places import (
    entry,
    is_the_users,
    library,
    torch_entry,
    users_function,
    users_line,
)
from dptune.capture.injected.observe.result_use import used_in_training
from dptune.runfile.communication import CallFacts

FUNCTIONS = (
    *("all_reduce", "broadcast", "reduce", "barrier", "monitored_barrier"),
    *("all_gather", "all_gather_into_tensor", "all_gather_single", "gather", "scatter"),
    *("reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_single", "all_to_all", "all_to_all_single"),
    *("all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list"),
)
OF_TENSORS = ("full_tensor", "redistribute")  # methods of a DTensor
REDISTRIBUTING = "redistribute_local_tensor"  # what an operator calls that needs a DTensor laid out in another way
_MOST = 200  # lines that are distinguished

_Line = tuple[str | None, str, str, str]


class Calls:
    """Counts outermost calls, once `begin` was called."""

    def __init__(self, passes: Callable[[], int] = lambda: 0) -> None:
        """`passes`: how many backward passes have begun."""
        self._passes = passes
        self._updated_at = -1  # that number at the last optimizer step
        self.profiled = True  # whether a profiler may slow the step that runs
        self._counting = False
        self._inside = threading.local()
        self._lines: dict[tuple[CodeType, int], _Line] = {}
        self._found: dict[tuple[str, _Line, tuple[int, ...]], CallFacts] = {}
        self.first_step = 0
        # Called after each call before `begin`, with its function, its arguments and the frame that makes it.
        self.before_counting: list[Callable[[str, tuple[Any, ...], FrameType], None]] = []

    def install(self) -> None:
        """Wrap the functions of torch.distributed. Absent where torch was built without it."""
        module = getattr(dist, "distributed_c10d", None)
        for name in FUNCTIONS:
            if hasattr(module, name):
                metered = self._metered(name, getattr(module, name))
                setattr(module, name, metered)
                setattr(dist, name, metered)
        imports.after("torch.distributed.tensor._redistribute", self._watch_redistributing)
        imports.after("torch.distributed.tensor._api", self._watch_tensors)

    def _watch_redistributing(self, module: ModuleType) -> None:
        setattr(module, REDISTRIBUTING, self._metered(REDISTRIBUTING, getattr(module, REDISTRIBUTING)))

    def _watch_tensors(self, module: ModuleType) -> None:
        for name in OF_TENSORS:
            setattr(module.DTensor, name, self._metered(name, getattr(module.DTensor, name)))

    def begin(self, step: int) -> None:
        """Count from that step on; what the script sends while it starts is no part of its steps."""
        self._found.clear()
        self._counting, self.first_step = True, step

    def stepped(self) -> None:
        """An optimizer has made a step."""
        self._updated_at = self._passes()

    def facts(self) -> list[CallFacts]:
        """What was counted so far, the most called first."""
        return sorted(self._found.values(), key=lambda call_facts: -call_facts.calls)

    def _metered(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        parameters = list(inspect.signature(call).parameters)
        of_group = parameters.index("group") if "group" in parameters else len(parameters)

        @functools.wraps(call)
        def metered(*args: Any, **kwargs: Any) -> Any:
            # In this order: what a graph is compiled with must not depend on whether anyone counts.
            if torch.compiler.is_compiling() or getattr(self._inside, "a_call", False):
                return call(*args, **kwargs)
            if not self._counting:
                return self._watched(name, call, args, kwargs)
            self._inside.a_call = True
            begun, result = time.perf_counter_ns(), None
            try:
                result = call(*args, **kwargs)
                return result
            finally:
                spent = time.perf_counter_ns() - begun
                self._inside.a_call = False
                group = kwargs.get("group", args[of_group] if len(args) > of_group else None)
                self._note(name, (*args, *kwargs.values()), group, spent, waited=not isinstance(result, dist.Work))

        return metered

    def _watched(self, name: str, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._inside.a_call = True
        try:
            result = call(*args, **kwargs)
        finally:
            self._inside.a_call = False
        for listener in self.before_counting:
            listener(name, (*args, *kwargs.values()), sys._getframe(2))
        return result

    def _note(self, name: str, given: tuple[Any, ...], group: Any, spent_ns: int, *, waited: bool) -> None:
        with contextlib.suppress(Exception):  # of a group that is gone, or none of this rank's: nothing to tell
            line = self._line(sys._getframe(2), name)
            ranks = _ranks_of(given) or tuple(dist.get_process_group_ranks(group or dist.group.WORLD))
            key = (name, line, ranks)
            if key not in self._found:
                if len(self._found) >= _MOST:
                    return
                where, package, through, caller = line
                self._found[key] = CallFacts(name, where, list(ranks), library=package, through=through, caller=caller)
                function = through.rpartition(".")[2] or name
                self._found[key].trained = _trains(sys._getframe(2), function) or _are_of_graph(given)
            call_facts = self._found[key]
            call_facts.calls += 1
            call_facts.after_updates += self._updated_at == self._passes()
            call_facts.host_ns += spent_ns
            if waited and not self.profiled:
                call_facts.untraced_calls += 1
                call_facts.untraced_ns += spent_ns
            call_facts.sent_bytes += max((_bytes_of(value) for value in given), default=0)

    def _line(self, caller: FrameType, name: str) -> _Line:
        """The script's line, the package that calls for it, its function there, and the script's function.

        For one call of a library many.
        """
        at = (caller.f_code, caller.f_lineno)
        found = self._lines.get(at)
        if found is None:
            package = library(caller)
            through = entry(caller) if package else ""
            if name == REDISTRIBUTING and not through:
                through = torch_entry(caller)
                package = package if through else ""
            found = users_line(caller), package, through, (users_function(caller) or "").rpartition(" (")[0]
            if not library(caller) and len(self._lines) < _MOST:
                self._lines[at] = found
        return found


def _are_of_graph(given: Iterable[Any]) -> bool:
    """Whether rows with a graph are sent: embeddings that a loss compares over ranks, not a logged number."""
    tensors = (value for value in given if isinstance(value, torch.Tensor))
    return torch.is_grad_enabled() and any(each.grad_fn is not None and each.dim() > 1 for each in tensors)


def _ranks_of(given: tuple[Any, ...]) -> tuple[int, ...]:
    """The ranks of the mesh of a DTensor, or of what says how one is laid out, among the arguments; none without."""
    for value in given[:2]:
        mesh = getattr(value, "device_mesh", None) or getattr(value, "mesh", None)
        if mesh is not None:
            return tuple(sorted(mesh.mesh.flatten().tolist()))
    return ()


def _bytes_of(value: Any) -> int:
    """Of a tensor or a list of them; 0 of anything else."""
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, (list, tuple)):
        return sum(tensor.numel() * tensor.element_size() for tensor in value if isinstance(tensor, torch.Tensor))
    return 0


def _trains(frame: FrameType | None, called: str) -> bool:
    """Whether training uses the result of the call of that name in the script's innermost line."""
    while frame is not None and not is_the_users(frame.f_code.co_filename):
        frame = frame.f_back
    with contextlib.suppress(Exception):  # a script may be of any form
        return frame is not None and used_in_training(frame.f_code, frame.f_lineno, called)
    return False
