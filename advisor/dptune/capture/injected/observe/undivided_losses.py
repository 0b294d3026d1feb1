"""Finds accumulated gradients of mean losses that nothing divides by the number of micro-batches.

In warm-up steps only, by some values of one gradient of each optimizer, as backward passes leave it and as steps find
it. What a pass starts from is read from its graph: the terms of the loss and their factors. Values are kept on their
device, and compared when the first window opens. Parameters with hooks are left out: a hook may divide. Where no loader
tells the batches apart, passes that share a graph or their targets, or that reach other parameters, are no
micro-batches: they belong to several tasks, views or networks.
"""

from __future__ import annotations

import contextlib
import math
import sys
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from dptune.capture.injected.observe.loss_graph import shape_of
from dptune.capture.injected.observe.loss_masks import readable
from dptune.capture.injected.observe.loss_terms import Factors, terms
from dptune.capture.injected.observe.passes import is_captured, is_in_pass
from dptune.capture.injected.observe.places import Places, users_line
from dptune.capture.injected.observe.tensor_samples import elements, is_readable
from dptune.runfile.undivided_losses import UndividedLossFacts

_OPTIMIZERS = 4
_STEPS = 8  # of an optimizer
_PASSES = 256  # in all
_LOOKED_AT = 64  # parameters, until one has a gradient
_NODES = 4000  # of a graph
_MEAN = 1  # as torch numbers reductions
_MEANS = ("MeanBackward",)
_WHOLE = (0.75, 1.05)  # the largest factor of an undivided loss; label smoothing takes some of it
_NEAR = 0.02  # a factor of 1 / passes
_DIVIDED = 1.2  # times 1 / passes: what the step finds of a gradient is at least this, where nothing divides it


@dataclass
class _Pass:
    """What it started from; `drawn`: the batches of each loader so far, and `scale` that of a GradScaler.

    `retained`: its graph is kept for another pass. `reached`: the parameters in its graph, by identity. `targets`: some
    values of the targets of each term that has them.
    """

    line: str | None
    terms: tuple[str, ...]
    factors: list[Factors] = field(default_factory=list)
    drawn: Counter[int] = field(default_factory=Counter)
    scale: torch.Tensor | None = None
    retained: bool = False
    reached: frozenset[int] = frozenset()
    targets: list[torch.Tensor] = field(default_factory=list)


@dataclass
class _Watched:
    """An optimizer, one of its parameters, and the passes since its last step, with its gradient before and after."""

    optimizer: weakref.ref[Any]
    name: str
    parameter: weakref.ref[Any] | None = None
    before: torch.Tensor | None = None
    passes: list[tuple[_Pass, torch.Tensor | None, torch.Tensor | None]] = field(default_factory=list)
    steps: list[tuple[list[tuple[_Pass, torch.Tensor | None, torch.Tensor | None]], torch.Tensor | None]] = field(
        default_factory=list
    )
    step_where: str | None = None


class UndividedLosses:
    """Compares the gradient of each optimizer between its steps."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._watching = False
        self._watched: list[_Watched] = []
        self._pass: _Pass | None = None
        self._passes = 0
        self._handle: Any = None
        self._facts: list[UndividedLossFacts] = []

    def begin(self) -> None:
        """Watch from now on, unless an engine accumulates itself."""
        if self._places.engine is None:
            self._watching = True
            self._handle = register_optimizer_step_pre_hook(self._begins)

    def before_pass(self, roots: Any, gradients: Any = None, retained: Any = None) -> None:
        """A backward pass from these tensors starts, with these gradients; `retained`: it keeps its graph."""
        if not self._watches():
            return
        with contextlib.suppress(Exception):  # a graph may be anything
            tensors = _listed(roots)
            found = [
                (given + factors, name, term)
                for tensor, given in zip(tensors, _given(tensors, gradients), strict=True)
                for factors, name, term in _means(tensor.grad_fn)
            ]
            hooked = any(tensor._backward_hooks for tensor in tensors)
            loaderless = not any(self._places.draws.values())
            scaler = next((each for each in self._places.alive(GradScaler) if each.is_enabled()), None)
            self._pass = _Pass(
                users_line(sys._getframe(1)),
                tuple("" if hooked else name for _, name, _ in found),
                [factors for factors, _, _ in found],
                Counter(self._places.draws),
                None if scaler is None or scaler._scale is None else scaler._scale.clone(),
                bool(retained),
                _reached(tensors) if loaderless else frozenset(),
                [elements(term._saved_target) for *_, term in found if readable(term, "target")] if loaderless else [],
            )
            for optimizer in self._places.alive(Optimizer):
                self._follow(optimizer)
            for watched in self._watched:
                watched.before = _values(watched)

    def after_pass(self) -> None:
        """It has ended."""
        if self._pass is None or is_in_pass():
            return
        with contextlib.suppress(Exception):
            for watched in self._watched:
                watched.passes.append((self._pass, watched.before, _values(watched)))
        self._pass = None
        self._passes += 1
        self._watching = self._passes < _PASSES

    def end(self) -> None:
        """Watch no more, and compare."""
        self._watching, self._pass = False, None
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
        with contextlib.suppress(Exception):
            self._facts = [facts for watched in self._watched if (facts := _judged(watched)) is not None]
        self._watched = []

    def facts(self) -> list[UndividedLossFacts]:
        """The facts of optimizers that use the gradients of several passes."""
        return self._facts

    def _watches(self) -> bool:
        return self._watching and not is_in_pass() and not is_captured() and not torch.compiler.is_compiling()

    def _follow(self, optimizer: Any) -> None:
        if len(self._watched) < _OPTIMIZERS and not any(each.optimizer() is optimizer for each in self._watched):
            self._watched.append(_Watched(weakref.ref(optimizer), type(optimizer).__name__))

    def _begins(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self._watches():
            return
        with contextlib.suppress(Exception):
            watched = next(each for each in self._watched if each.optimizer() is optimizer)
            with_closure = any(map(callable, (*args[1:], *kwargs.values())))  # which runs passes of its own
            if not with_closure and len(watched.steps) < _STEPS:
                watched.steps.append((watched.passes, _values(watched)))
                watched.step_where = watched.step_where or users_line(sys._getframe(1))
            watched.passes = []


def _values(watched: _Watched) -> torch.Tensor | None:
    """Some values of the gradient of its parameter; None where there is none."""
    parameter = watched.parameter() if watched.parameter is not None else None
    optimizer = watched.optimizer()
    if parameter is None and optimizer is not None:
        held = [parameter for group in optimizer.param_groups for parameter in group["params"]][:_LOOKED_AT]
        parameter = next(
            (each for each in held if each.grad is not None and is_readable(each.grad) and not _is_hooked(each)), None
        )
        watched.parameter = weakref.ref(parameter) if parameter is not None else None
    if parameter is None or parameter.grad is None or not is_readable(parameter.grad):
        return None
    return elements(parameter.grad)


def _is_hooked(parameter: torch.Tensor) -> bool:
    return bool(parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None))


def _listed(tensors: Any) -> list[Any]:
    return [tensors] if tensors is None or isinstance(tensors, torch.Tensor) else list(tensors)


def _given(roots: Sequence[Any], gradients: Any) -> list[Factors]:
    """By root, the number that its pass starts with."""
    given = _listed(gradients) if gradients is not None else [None] * len(roots)
    return [[(each.detach(), 1)] if each is not None and each.numel() == 1 else [] for each in given]


def _reached(roots: Sequence[Any]) -> frozenset[int]:
    """The parameters in the graph, by identity, as far as it is read."""
    reached: set[int] = set()
    seen: set[Any] = set()
    nodes = [root.grad_fn for root in roots]
    while nodes and len(seen) < _NODES:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            reached.add(id(node.variable))
        nodes += [following for following, _ in node.next_functions]
    return frozenset(reached) if not nodes else frozenset()


def _means(node: Any) -> Iterator[tuple[Factors, str, Any]]:
    """The terms of a loss that are means, with their factors and nodes; others with an empty name."""
    for factors, term in terms(node, ends=_MEANS):
        name = term.name()
        if name.startswith(_MEANS):
            inner = term.next_functions[0][0]
            if inner is not None and math.prod(shape_of(inner)) == 1:  # of a loss that is one number
                yield from ((factors + more, each, end) for more, each, end in _means(inner))
                continue
            within = list(terms(inner)) if inner is not None else [([], None)]  # constants that multiply each loss
            yield from ((factors + more, name, term) for more, _ in within)
        else:
            yield factors, name if getattr(term, "_saved_reduction", None) == _MEAN else "", term


def _judged(watched: _Watched) -> UndividedLossFacts | None:
    """None where no step uses several passes from one line."""
    counts: Counter[int] = Counter()
    undivided: Counter[int] = Counter()
    drawn = True
    line = None
    for passes, found in watched.steps:
        adding = _added(passes)
        lines = {each.line for each, _, _ in adding}
        if len(adding) < 2 or len(lines) > 1 or len({each.terms for each, _, _ in adding}) > 1:
            continue
        batch_each = _draws([each for each, _, _ in adding])
        if batch_each is None:
            continue
        counts[len(adding)] += 1
        drawn, line = drawn and batch_each, lines.pop()
        undivided[len(adding)] += all(_is_whole(each, len(adding)) for each, _, _ in adding) and not _is_divided(
            adding[-1][2], found, adding[-1][0], len(adding)
        )
    if not counts:
        return None
    most, steps = counts.most_common(1)[0]
    return UndividedLossFacts(watched.name, most, steps, undivided[most], drawn, line, watched.step_where)


def _added(
    passes: Sequence[tuple[_Pass, torch.Tensor | None, torch.Tensor | None]],
) -> list[tuple[_Pass, torch.Tensor | None, torch.Tensor | None]]:
    """The passes that changed the gradient, if each later one adds to what the one before it has left; else none."""
    changing = [each for each in passes if not _equal(each[1], each[2])]
    for (_, _, left), (_, now, _) in pairwise(changing):
        if now is None or not _equal(left, now) or not bool(now.any()):
            return []
    return changing


def _equal(values: torch.Tensor | None, others: torch.Tensor | None) -> bool:
    if values is None or others is None:
        return values is others
    return values.shape == others.shape and bool(torch.equal(values, others))


def _draws(passes: Sequence[_Pass]) -> bool | None:
    """Whether each pass has a batch of its own from one loader; None where passes share a batch, or loaders differ."""
    if not any(passes[-1].drawn.values()):
        return None if _share_a_batch(passes) else False
    loaders = set()
    for first, second in pairwise(passes):
        new = second.drawn - first.drawn
        if new.total() != 1:
            return None
        loaders |= {*new}
    return True if len(loaders) == 1 else None


def _share_a_batch(passes: Sequence[_Pass]) -> bool:
    """Whether passes without a loader belong to several tasks, views or networks, as far as their graphs show."""
    if any(each.retained for each in passes) or len({each.reached for each in passes}) > 1:
        return True
    targets = [each.targets for each in passes]
    constant = any(
        sampled.numel() > 1 and bool((sampled == sampled[0]).all()) for of_pass in targets for sampled in of_pass
    )
    return constant or any(
        _equal(one, other) for first, second in pairwise(targets) for one, other in zip(first, second, strict=False)
    )


def _is_whole(each: _Pass, passes: int) -> bool:
    """Whether a term of the loss is a mean that is not divided, and none is divided by the number of passes."""
    scale = 1.0 if each.scale is None else float(each.scale)
    means = [factors for factors, name in zip(each.factors, each.terms, strict=True) if name]
    weights = [math.prod(abs(float(number)) ** power for number, power in factors) for factors in means]
    weights = [weight / scale if scale > 1 else weight for weight in weights]
    divided = any(abs(weight * passes - 1) < _NEAR for weight in weights)
    return bool(weights) and not divided and _WHOLE[0] <= max(weights) <= _WHOLE[1]


def _is_divided(left: torch.Tensor | None, found: torch.Tensor | None, last: _Pass, passes: int) -> bool:
    """Whether the step may find gradients that were divided by the number of passes, or more."""
    if left is None or found is None or left.shape != found.shape:
        return True
    scale = 1.0 if last.scale is None else float(last.scale)
    before = float(left.double().norm()) / scale
    return not before > 0 or float(found.double().norm()) < _DIVIDED / passes * before
