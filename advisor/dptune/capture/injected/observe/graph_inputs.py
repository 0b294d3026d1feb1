"""Where the script calls a module on a tensor whose graph leads a backward pass to parameters it is not meant for.

While warm-up steps run, the calls that the script makes of modules are noted with the operators that made their inputs,
by their sequence numbers: no graph is kept alive.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from itertools import chain
from types import FrameType
from typing import Any, NamedTuple

import torch

from dptune.capture.injected.observe.places import caller, is_the_users, users_line

_CALLS = 2048  # that are noted between two optimizer steps
_NODES = 200_000  # of a graph; a larger one is not read


class _Noted(NamedTuple):
    """A call: the line, the module, and the sequence numbers of what made its inputs."""

    where: str | None
    module: weakref.ref[Any]
    made_by: tuple[int, ...]


class GraphInputs:
    """The calls since an optimizer last stepped, in their order."""

    def __init__(self) -> None:
        self._calls: list[_Noted] = []

    def note(self, module: Any, args: Iterable[Any], kwargs: dict[str, Any], frame: FrameType) -> None:
        """A module is called; `frame` is that of the caller, or of an observer between."""
        called_in = caller(frame)
        if len(self._calls) >= _CALLS or called_in is None or not is_the_users(called_in.f_code.co_filename):
            return
        made_by = tuple(value.grad_fn._sequence_nr() for value in _tensors(args, kwargs) if value.grad_fn is not None)
        self._calls.append(_Noted(users_line(called_in), weakref.ref(module), made_by))

    def stepped(self) -> None:
        """An optimizer has made a step: graphs of before are gone."""
        self._calls = []

    def runs_at(self, unwanted: Collection[int]) -> str | None:
        """The line of the first call of a module all of whose parameters are unwanted."""
        for call in self._calls if unwanted else ():
            own = {id(parameter) for parameter in module.parameters()} if (module := call.module()) else None
            if own and own <= set(unwanted):
                return call.where
        return None

    def entry(self, roots: Iterable[Any], unwanted: Collection[int]) -> str | None:
        """The line of the first call through which a pass from these tensors gets to the unwanted parameters.

        Its module has parameters, none of them unwanted, and its inputs lead to no others: they could be detached.
        """
        nodes = _graph(roots) if self._calls else {}
        for call in self._calls:
            starts = [nodes[number] for number in call.made_by if number in nodes]
            module = call.module()
            if not starts or module is None:
                continue
            own = {id(parameter) for parameter in module.parameters()}
            if not own or not own.isdisjoint(unwanted):
                continue
            leaves = {id(node.variable) for node in _below(starts) if hasattr(node, "variable")}
            if leaves and leaves <= set(unwanted):
                return call.where
        return None


def _tensors(args: Iterable[Any], kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
    """Those passed to a call, also in a tuple or list."""
    for value in chain(args, kwargs.values()):
        parts = value if isinstance(value, (tuple, list)) else (value,)
        yield from (part for part in parts if isinstance(part, torch.Tensor))


def _graph(roots: Iterable[Any]) -> dict[int, Any]:
    """The operators that a pass from these tensors goes through, by sequence number; empty where there are too many."""
    found: dict[int, Any] = {}
    for node in _below([root.grad_fn for root in roots if root.grad_fn is not None]):
        if not hasattr(node, "variable"):
            found[node._sequence_nr()] = node
        if len(found) > _NODES:
            return {}
    return found


def _below(starts: Iterable[Any]) -> Iterator[Any]:
    """These nodes and all that lie behind them."""
    todo = deque(starts)
    seen = set(todo)
    while todo:
        node = todo.popleft()
        yield node
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                todo.append(following)
