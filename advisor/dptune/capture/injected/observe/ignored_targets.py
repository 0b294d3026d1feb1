"""Counts positions for which logits are computed although the loss ignores or masks their targets.

In a few backward passes of the warm-up steps, from the autograd graph of the loss. The counts stay on their device
until the first window opens. `torch.nn.functional.cross_entropy` and `nll_loss` are wrapped until then, only to record
the line that calls them.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from dptune.capture.injected.observe.loss_graph import Head, Loss, heads
from dptune.capture.injected.observe.places import Places, users_line
from dptune.runfile.ignored_targets import IgnoredTargetFacts

_PASSES = 8  # that are looked at
_NAMED = 8  # numbers of classes, those with the most logits first
_CALLED = ("cross_entropy", "nll_loss")


class IgnoredTargets:
    """By number of classes, the rows of logits and the targets that count."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._watching = False
        self._passes = 0
        self._wrapped: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {}
        self._lines: dict[int, str | None] = {}
        self._counts: dict[int, list[tuple[int, torch.Tensor]]] = defaultdict(list)
        self._facts: list[IgnoredTargetFacts] = []

    def begin(self) -> None:
        """Look at backward passes from now on, but at none of code that torch.compile hides."""
        if self._places.compiled:
            return
        self._watching = True
        for name in _CALLED:
            self._wrap(name)

    def before_pass(self, roots: Any) -> None:
        """A backward pass is about to start at these tensors."""
        if not self._watching or self._passes >= _PASSES:
            return
        with contextlib.suppress(Exception):  # a graph may be anything
            if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
                return
            self._passes += 1
            tensors = (roots,) if isinstance(roots, torch.Tensor) else tuple(roots)
            with torch.no_grad():
                self._count(heads(tensor.grad_fn for tensor in tensors))

    def end(self) -> None:
        """Stop, and read the counts from their devices."""
        self._watching = False
        for name, (call, wrapped) in self._wrapped.items():
            if getattr(functional, name) is wrapped:
                setattr(functional, name, call)
        self._wrapped = {}
        with contextlib.suppress(Exception):
            found = [self._read(classes, passes) for classes, passes in self._counts.items()]
            self._facts = sorted(found, key=lambda facts: -facts.classes * sum(facts.rows))[:_NAMED]
        self._counts.clear()

    def facts(self) -> list[IgnoredTargetFacts]:
        """The losses with the most logits first."""
        return self._facts

    def _wrap(self, name: str) -> None:
        call = getattr(functional, name)

        @functools.wraps(call)
        def watched(*args: Any, **kwargs: Any) -> Any:
            with contextlib.suppress(Exception):
                scores = args[0] if args else kwargs["input"]
                classes = scores.shape[1 if scores.dim() > 1 else 0]
                if self._lines.get(classes) is None:
                    self._lines[classes] = users_line(sys._getframe(1))
            return call(*args, **kwargs)

        self._wrapped[name] = call, watched
        setattr(functional, name, watched)

    def _count(self, found: list[Head]) -> None:
        by_classes: dict[int, list[Head]] = defaultdict(list)
        for head in found:
            by_classes[head.classes].append(head)
        for classes, same in by_classes.items():
            same.sort(key=lambda head: head.first)
            losses = [loss for head in same for loss in head.losses]
            ignored = torch.cat([loss.ignored for loss in losses])
            counts = torch.stack(((~ignored).sum(), after_last(losses).sum()))
            self._counts[classes].append((sum(head.rows for head in same), counts))

    def _read(self, classes: int, passes: list[tuple[int, torch.Tensor]]) -> IgnoredTargetFacts:
        facts = IgnoredTargetFacts(classes, self._lines.get(classes))
        for rows, counts in passes:
            labelled, padding = counts.tolist()
            facts.rows.append(rows)
            facts.labelled.append(labelled)
            facts.padding.append(padding)
        return facts


def after_last(losses: list[Loss]) -> torch.Tensor:
    """Which targets are ignored and after the last labelled one of their sequence.

    The losses may be of parts of a batch: of some columns, or of a flat list of all its positions.
    """
    parts = [loss.ignored.reshape(-1, loss.columns) for loss in losses if loss.columns]
    if len(parts) == len(losses) and len({len(part) for part in parts}) == 1:
        rows = torch.cat(parts, dim=1)
    else:
        flat = torch.cat([loss.ignored for loss in losses])
        columns = losses[0].columns or losses[0].base or 0
        rows = flat.reshape(-1, columns) if columns and flat.numel() % columns == 0 else flat[None]
    return rows.flip(1).cumprod(1)
