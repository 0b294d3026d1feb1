"""Finds views and reshapes where a transpose is meant: the sizes change places, and the values do not.

In warm-up steps, through the mode of `same_results`. Both shapes are compared (`moved_dimensions`), the first as it was
before any other view. A view counts once an operator computes along the moved dimensions, as a convolution or a
product, and a backward pass goes through its result. Left out: weights; batches whose first dimension moves or that may
be regrouped on purpose; padded matrices of relative positions, which a view skews before they are cut; and what a later
view undoes.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any

import torch

from dptune.capture.injected.observe.call_contents import tensors_in
from dptune.capture.injected.observe.dimension_uses import (
    COMPARING,
    MOVING,
    RECURRENT,
    computes_along,
    sets_order,
)
from dptune.capture.injected.observe.moved_dimensions import Moved, moved
from dptune.capture.injected.observe.places import function_name, script_frame, users_place
from dptune.runfile.misplaced_views import MisplacedViewFacts

_LEAST_STEPS = 2
_LINES = 64
_NAMED = 3
_VIEWS = ("view", "reshape", "view_as", "reshape_as")
_OTHER_VIEWS = ("flatten", "unflatten", "ravel", "squeeze", "unsqueeze")


@dataclass
class _Line:
    facts: MisplacedViewFacts
    sizes: set[tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=set)  # that another view may undo
    steps: set[int] = field(default_factory=set)
    undone: bool = False


@dataclass(eq=False)
class _View:
    """One call of a line."""

    line: _Line
    moved: Moved
    step: int

    def reached(self, _: Any) -> None:
        """A backward pass goes through what is computed along the moved dimensions."""
        self.line.steps.add(self.step)


@dataclass
class _Known:
    """A tensor: its shape before views and now, the views whose order its values have, and what made them."""

    tensor: weakref.ref[torch.Tensor]
    shape: tuple[int, ...]
    now: tuple[int, ...]
    views: tuple[_View, ...] = ()
    weight: bool = False
    operator: str = ""
    viewed: bool = True  # by views alone since that shape, so that both have the same order


class MisplacedViews:
    """The lines of the script with such views, in the steps that are watched."""

    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}  # by identity
        self._lines: dict[tuple[Any, int], _Line] = {}  # by function and line
        self._regrouped: set[tuple[tuple[int, ...], tuple[int, ...]]] = set()  # sizes before and after
        self._step = 0

    def before(self, func: Any, name: str, args: Any, kwargs: Any) -> None:
        """Nothing is needed before a call."""

    def after(self, _: Any, call: tuple[str, Any, Any, Any], spent_ns: int, frame: FrameType | None) -> None:
        """A call (name, arguments and result) has been made from that frame."""
        name, args, kwargs, result = call
        given = list(tensors_in((args, kwargs)))
        made = [tensor for tensor in tensors_in(result) if not any(tensor is each for each in given)]
        if not given or not made:
            return
        if name in (*_VIEWS, *_OTHER_VIEWS):
            self._keep(self._viewed(name, self._about(given[0]), given[0], made[0], frame))
            return
        name = name.strip("_")
        views: list[_View] = []
        for tensor in given:
            for view in self._about(tensor).views:
                along = computes_along(name, view.moved.dimensions, tensor, args, kwargs)
                if not along and not (name in COMPARING and self._differs(view, given)):
                    views += [view] if _keeps_order(name, view, tensor, made[0]) else []
                elif made[0].grad_fn is not None:
                    made[0].grad_fn.register_prehook(view.reached)
        for tensor in made:
            self._keep(self._made(name, given, tensor, tuple(views)))

    def ticked(self, step_ns: int, forward_ns: int) -> None:
        """A step has ended."""
        self._known = {at: known for at, known in self._known.items() if known.tensor() is not None}
        self._step += 1

    def end(self) -> None:
        """No more calls are shown."""
        self._known = {}

    def facts(self) -> list[MisplacedViewFacts]:
        """The lines whose results steps compute with, those of most steps first."""
        found = []
        for line in self._lines.values():
            undone = line.undone or any((after, before) in self._regrouped for before, after in line.sizes)
            if not undone and len(line.steps) >= _LEAST_STEPS:
                found.append(replace(line.facts, steps=len(line.steps), steps_seen=self._step))
        return sorted(found, key=lambda facts: -facts.steps)[:_NAMED]

    def _viewed(
        self, name: str, before: _Known, given: torch.Tensor, made: torch.Tensor, frame: FrameType | None
    ) -> _Known:
        found = moved(before.shape, tuple(made.shape))
        views = before.views if found is not None or before.shape == before.now else ()
        if found is not None:
            if not found.certain:
                self._regrouped.add((found.given, found.made))
            if before.views and before.shape == before.now:  # after another operator
                views = ()
                for view in before.views:
                    view.line.undone = True
            elif not before.views and name in _VIEWS and _counts(found, before, given, made):
                counted = self._view(name, found, before.shape, made, script_frame(frame))
                views = () if counted is None else (counted,)
        return replace(before, tensor=weakref.ref(made), now=tuple(made.shape), views=views)

    def _view(
        self, name: str, found: Moved, given: Sequence[int], made: torch.Tensor, frame: FrameType | None
    ) -> _View | None:
        if frame is None:
            return None
        at = (frame.f_code, frame.f_lineno)
        if at not in self._lines:
            if len(self._lines) >= _LINES:
                return None
            place = users_place(frame.f_code.co_filename, frame.f_lineno) or ""
            function = "" if frame.f_code.co_name == "<module>" else function_name(frame.f_code)
            shapes = list(given), list(made.shape)
            facts = MisplacedViewFacts(place, function, name, *shapes, found.instead, certain=found.certain)
            self._lines[at] = _Line(facts)
        line = self._lines[at]
        if not found.certain:
            line.sizes.add((found.given, found.made))
            line.facts.certain = False
        return _View(line, found, self._step)

    def _made(self, name: str, given: list[torch.Tensor], made: torch.Tensor, views: tuple[_View, ...]) -> _Known:
        """What an operator made: with the same sizes, of values in the order that they had."""
        known = _Known(weakref.ref(made), tuple(made.shape), tuple(made.shape), views, operator=name)
        known.weight = all(self._about(tensor).weight for tensor in given)
        if sets_order(name) or name in MOVING:
            return known
        for tensor in given:
            before = self._about(tensor)
            if tensor.shape == made.shape and before.shape != before.now:
                known.shape, known.viewed = before.shape, False
            if tensor.shape == made.shape and before.operator in RECURRENT:
                known.operator = before.operator
        return known

    def _differs(self, view: _View, given: list[torch.Tensor]) -> bool:
        """Whether the other side of a comparison is in another order: no view has changed its sizes."""
        others = [known for known in map(self._about, given) if view not in known.views]
        return view.moved.certain and all(known.shape == known.now for known in others)

    def _about(self, tensor: torch.Tensor) -> _Known:
        known = self._known.get(id(tensor))
        if known is not None and known.tensor() is tensor:
            return known
        weight = tensor.is_leaf and tensor.requires_grad
        return _Known(weakref.ref(tensor), tuple(tensor.shape), tuple(tensor.shape), weight=weight)

    def _keep(self, known: _Known) -> None:
        tensor = known.tensor()
        if tensor is not None:
            self._known[id(tensor)] = known


def _counts(found: Moved, before: _Known, given: torch.Tensor, made: torch.Tensor) -> bool:
    """Whether the tensor is an activation or a batch whose values nobody means to regroup."""
    if not before.viewed and moved(before.now, tuple(made.shape)) is None:
        return False  # an operator may have moved the values
    if not given.is_floating_point() or before.weight or before.operator == "pad":
        return False
    if not given.requires_grad:
        return not found.nested and not found.leads
    return not (found.nested and found.leads) or before.operator in RECURRENT


def _keeps_order(name: str, view: _View, given: torch.Tensor, made: torch.Tensor) -> bool:
    """Whether a result's values are still in the order of the view; a skewed matrix is cut by one after it."""
    if name not in MOVING:
        return given.dim() == made.dim() and all(given.shape[at] == made.shape[at] for at in view.moved.dimensions)
    if given.dim() == made.dim() and sum(given.shape) - sum(made.shape) == 1:
        view.line.undone = True
    return True
