"""Finds forward hooks of the script whose results no step reads: copies and statistics of layers' outputs.

In warm-up steps, through the mode of `same_results`. A hook's results are read once an operator outside of it takes
one, or a backward pass goes through one. A hook that changes in place what it has not made, as an output or a buffer,
is needed as well. What it converts to NumPy arrays or Python numbers is not followed.
"""

from __future__ import annotations

import re
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch

from dptune.capture.injected.observe.call_contents import tensors_in
from dptune.capture.injected.observe.places import function_name, users_place
from dptune.runfile.hook_calls import HookCallFacts

_NAMED = 3
_FRAMES = 40  # above an operator that are searched for a hook
_LEAST_STEPS = 2  # in which it computes
_IN_PLACE = re.compile(r"[^_]\w*[^_]_|__(?:setitem|i(?:add|sub|mul|truediv|floordiv|mod|pow|and|or|xor))__")


@dataclass(eq=False)
class _Hook:
    """One function; `spent_ns` by operator."""

    code: CodeType
    needed: bool = False
    calls: int = 0
    steps: set[int] = field(default_factory=set)
    spent_ns: Counter[str] = field(default_factory=Counter)

    def reached(self, _: Any) -> None:
        """A backward pass goes through a result."""
        self.needed = True


class _Made(NamedTuple):
    """A result; `shares`: it is in memory that the hook was given."""

    tensor: weakref.ref[torch.Tensor]
    hook: _Hook
    shares: bool


class HookCalls:
    """The hooks that computed in the watched steps."""

    def __init__(self, modules: Mapping[CodeType, Callable[[], int]]) -> None:
        """`modules`: by function of a forward hook of the script, what counts the modules that have it."""
        self._modules = modules
        self._hooks: dict[CodeType, _Hook] = {}
        self._made: dict[int, _Made] = {}  # by identity of the result
        self._step = 0

    def before(self, func: Any, name: str, args: Any, kwargs: Any) -> None:
        """Nothing is needed before a call."""

    def after(self, _: Any, call: tuple[str, Any, Any, Any], spent_ns: int, frame: FrameType | None) -> None:
        """A call (name, arguments and result) has been made from that frame."""
        if not self._modules:
            return
        name, args, kwargs, result = call
        hook = self._hook(frame)
        given = list(tensors_in((args, kwargs)))
        for tensor in given:
            if (made := self._of(tensor)) is not None and made.hook is not hook:
                made.hook.needed = True
        if hook is None:
            return
        foreign = [tensor for tensor in given if (made := self._of(tensor)) is None or made.shares]
        in_place = _IN_PLACE.fullmatch(name) or kwargs.get("inplace") or kwargs.get("out") is not None
        changed = kwargs.get("out", given[0] if given else None)
        hook.needed |= bool(in_place and any(changed is tensor for tensor in foreign))
        hook.steps.add(self._step)
        hook.calls += 1
        hook.spent_ns[name.removeprefix("get ").strip("_")] += spent_ns
        for tensor in tensors_in(result):
            if not any(tensor is each for each in given):
                shares = any(_share_memory(tensor, each) for each in foreign)
                self._made[id(tensor)] = _Made(weakref.ref(tensor), hook, shares)
                if tensor.grad_fn is not None:
                    tensor.grad_fn.register_prehook(hook.reached)

    def ticked(self, step_ns: int, forward_ns: int) -> None:
        """A step has ended."""
        self._made = {at: made for at, made in self._made.items() if made.tensor() is not None}
        self._step += 1

    def end(self) -> None:
        """No more calls are shown."""
        self._made = {}

    def facts(self) -> list[HookCallFacts]:
        """The hooks whose results were not read, what takes longest first."""
        steps = range(self._step)
        found = [hook for hook in self._hooks.values() if not hook.needed and hook.steps.issuperset(steps)]
        found.sort(key=lambda hook: -hook.spent_ns.total())
        return [self._facts(hook) for hook in found if len(steps) >= _LEAST_STEPS]

    def _facts(self, hook: _Hook) -> HookCallFacts:
        code = hook.code
        return HookCallFacts(
            function_name(code),
            users_place(code.co_filename, code.co_firstlineno) or "",
            self._modules[code](),
            [name for name, _ in hook.spent_ns.most_common(_NAMED)],
            round(hook.calls / max(1, len(hook.steps))),
            self._step,
            "numpy" in hook.spent_ns,
        )

    def _hook(self, frame: FrameType | None) -> _Hook | None:
        """The hook that leads to a call."""
        for _ in range(_FRAMES):
            if frame is None:
                return None
            if frame.f_code in self._modules:
                return self._hooks.setdefault(frame.f_code, _Hook(frame.f_code))
            frame = frame.f_back
        return None

    def _of(self, tensor: torch.Tensor) -> _Made | None:
        made = self._made.get(id(tensor))
        return made if made is not None and made.tensor() is tensor else None


def _share_memory(result: torch.Tensor, given: torch.Tensor) -> bool:
    """Also where this is not known, as of sparse tensors."""
    try:
        return result.untyped_storage().data_ptr() == given.untyped_storage().data_ptr()
    except RuntimeError:
        return True
