"""Finds results with a gradient that nothing reads: a loss, or a branch of a model, that is computed for nothing.

In warm-up steps, through the mode of `same_results`. A call counts if the next step has ended, all of its results are
freed, no backward pass went through their nodes of the graph, and every operator that took them counts as well. What
takes a tensor and returns no gradient has read it: `item`, `detach`, a comparison.
"""

from __future__ import annotations

import re
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch

from dptune.capture.injected.observe.call_contents import tensors_in
from dptune.capture.injected.observe.places import function_at, function_name, is_the_users, package
from dptune.runfile.same_results import UnreadResultFacts

_NAMED = 3
# Properties that compute; others read a tensor's form, as these do.
_COMPUTED = ("get T", "get mT", "get H", "get mH", "get data", "get real", "get imag", "get grad")
_FORM = frozenset(
    (
        *("size", "dim", "numel", "stride", "element_size", "is_floating_point", "is_complex", "is_contiguous"),
        *("ndimension", "nelement", "get_device", "type", "__len__", "__hash__", "storage_offset", "requires_grad_"),
    )
)
_IN_PLACE = re.compile(r"[^_]\w*[^_]_|__i(?:add|sub|mul|truediv|floordiv|mod|pow|and|or|xor)__")


@dataclass(eq=False)
class _Call:
    """A call whose results have gradients, of the script's function `code`; `library` computes them for it."""

    name: str
    step: int
    spent_ns: int
    code: Any
    line: int
    library: str
    sources: list[_Call]
    results: list[weakref.ref[torch.Tensor]] = field(default_factory=list)
    read: bool = False

    def reached(self, _: Any) -> None:
        """A backward pass goes through it."""
        self.read = True


class UnreadResults:
    """The calls of the steps that were watched, by the function of the script that leads to them."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[weakref.ref[torch.Tensor], _Call]] = {}  # by identity of the result
        self._step = 0
        self._calls: list[_Call] = []
        self._before: tuple[int, int, list[_Call]] | None = None  # times and calls of the last step
        self._times: list[tuple[int, int, list[_Call]]] = []
        self._facts: list[UnreadResultFacts] = []

    def before(self, func: Any, name: str, args: Any, kwargs: Any) -> None:
        """Nothing is needed before a call."""

    def after(self, _: Any, call: tuple[str, Any, Any, Any], spent_ns: int, frame: FrameType | None) -> None:
        """A call (name, arguments and result) has been made from that frame."""
        name, args, kwargs, result = call
        if name in _FORM or (name.startswith("get ") and name not in _COMPUTED):
            return
        given = list(tensors_in((args, kwargs)))
        sources = [maker for tensor in given if (maker := self._maker(tensor)) is not None]
        made = [tensor for tensor in tensors_in(result) if tensor.grad_fn is not None]
        in_place = bool(_IN_PLACE.fullmatch(name)) or kwargs.get("inplace") is True
        if made and not in_place and all(any(tensor is each for each in given) for tensor in made):
            return  # what a call returns as it is: `contiguous`, `float`
        known = made and name != "__setitem__" and not (in_place and given and given[0]._is_view())
        for source in sources:
            source.read = source.read or not known or source.step != self._step
        if known:
            code, line, library = _caller(frame)
            entry = _Call(name, self._step, spent_ns, code, line, library, sources)
            for tensor in made:
                entry.results.append(weakref.ref(tensor))
                self._made[id(tensor)] = entry.results[-1], entry
                if tensor.grad_fn is not None:
                    tensor.grad_fn.register_prehook(entry.reached)
            self._calls.append(entry)

    def ticked(self, step_ns: int, forward_ns: int) -> None:
        """A step has ended: nothing can read the results of the one before any more, unless they are kept."""
        if self._before is not None:
            *times, calls = self._before
            self._times.append((times[0], times[1], list(_unread(calls))))
        self._before, self._calls = (step_ns, forward_ns, self._calls), []
        self._made = {at: (ref, call) for at, (ref, call) in self._made.items() if ref() is not None}
        self._step += 1

    def end(self) -> None:
        """No more calls are shown."""
        self._facts = _facts(self._times)
        self._made, self._calls, self._before, self._times = {}, [], None, []

    def facts(self) -> list[UnreadResultFacts]:
        """By function, what takes longest first."""
        return self._facts

    def _maker(self, tensor: torch.Tensor) -> _Call | None:
        ref, call = self._made.get(id(tensor), (None, None))
        return call if ref is not None and ref() is tensor else None


def _unread(calls: Sequence[_Call]) -> Iterator[_Call]:
    """The latest first: each after all calls that took its results."""
    for call in reversed(calls):
        if call.read or any(ref() is not None for ref in call.results):
            for source in call.sources:
                source.read = True
        elif call.code is not None:
            yield call


def _caller(frame: FrameType | None) -> tuple[Any, int, str]:
    """The innermost function of the script, its line, and the function of a library that computes for it.

    That is the outermost `forward` of a library, else its innermost function; "" without one.
    """
    library, forward = "", ""
    while frame is not None and not is_the_users(frame.f_code.co_filename):
        name = package(frame.f_code)
        if name not in ("", "torch"):
            function = f"{name}.{function_name(frame.f_code)}"
            library = library or function
            forward = function if frame.f_code.co_name == "forward" else forward
        frame = frame.f_back
    return (None, 0, "") if frame is None else (frame.f_code, frame.f_lineno, forward or library)


def _facts(times: Sequence[tuple[int, int, list[_Call]]]) -> list[UnreadResultFacts]:
    """Of functions with such calls in every step."""
    found = []
    places = [{(call.code, call.library) for call in calls} for _, _, calls in times]
    for code, library in set.intersection(*places) if places else ():
        spent, operators = Counter[int](), Counter[str]()
        facts = UnreadResultFacts("", library=library)
        for step_ns, forward_ns, calls in times:
            own = [call for call in calls if (call.code, call.library) == (code, library)]
            for call in own:
                spent[call.line] += call.spent_ns
                operators[call.name.strip("_")] += call.spent_ns
            facts.calls = len(own)
            facts.step_ns.append(step_ns)
            facts.forward_ns.append(forward_ns)
            facts.again_ns.append(sum(call.spent_ns for call in own))
        facts.function = function_at(code, spent.most_common(1)[0][0])
        facts.operators = [operator for operator, _ in operators.most_common(_NAMED)]
        found.append(facts)
    return sorted(found, key=lambda facts: -sum(facts.again_ns))[:_NAMED]
