"""Compares the targets of cross entropies with the token ids that the same graph embeds: how far they are ahead.

In a few backward passes of the warm-up steps, from the autograd graph of the loss. The counts stay on their device
until the first window opens.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from dptune.capture.injected.observe.loss_graph import consumers, signed
from dptune.capture.injected.observe.places import Places
from dptune.capture.injected.observe.shift_lines import loss_shift_lines
from dptune.capture.injected.observe.token_targets import embedded_ids, target_rows, token_losses
from dptune.runfile.shifted_labels import ShiftedLabelFacts

_PASSES = 4  # that are looked at
_NODES = 50_000  # of a graph: embeddings are at its far end
_PAIRS = 16  # of a loss and of embedded ids in a pass


class ShiftedLabels:
    """By backward pass, the targets that are one and two positions ahead of the inputs."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._watching = False
        self._passes: list[list[torch.Tensor]] = []
        self._facts: list[ShiftedLabelFacts] = []

    def begin(self) -> None:
        """Look at backward passes from now on, but at none of code that torch.compile hides."""
        self._watching = not self._places.compiled

    def before_pass(self, roots: Any) -> None:
        """A backward pass is about to start at these tensors."""
        if not self._watching or len(self._passes) >= _PASSES:
            return
        with contextlib.suppress(Exception):  # a graph may be anything
            if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
                return
            tensors = (roots,) if isinstance(roots, torch.Tensor) else tuple(roots)
            nodes = list(consumers((tensor.grad_fn for tensor in tensors), _NODES))
            with torch.no_grad():
                self._passes.append(list(_counts(nodes)))

    def end(self) -> None:
        """Stop, and read the counts from their devices."""
        self._watching = False
        with contextlib.suppress(Exception):
            self._facts = [_read(pairs) for pairs in self._passes if pairs]
            if any(2 * found.after_next > found.targets for found in self._facts):
                self._facts[0].loss_shifts_at = loss_shift_lines()
        self._passes = []

    def facts(self) -> list[ShiftedLabelFacts]:
        """Of each pass in which targets could be compared with ids."""
        return self._facts


def _counts(nodes: list[Any]) -> Iterator[torch.Tensor]:
    """For each loss and embedded ids that it may predict: targets, those one ahead, and those two ahead."""
    sequences = [ids for _, ids in embedded_ids(nodes) if ids.shape[1] > 2]
    pairs = 0
    for loss in token_losses(nodes):
        for ids in sequences:
            if pairs < _PAIRS and (found := _ahead(loss, ids)) is not None:
                pairs += 1
                yield found


def _ahead(loss: Any, ids: torch.Tensor) -> torch.Tensor | None:
    """None where the targets are not one for each position, or for each but the last."""
    target = target_rows(loss, ids)
    if target is None:
        return None
    compared = ids.shape[1] - 2
    counts = target[:, :compared] != signed(loss._saved_ignore_index)
    one, two = (target[:, :compared] == ids[:, ahead : ahead + compared] for ahead in (1, 2))
    return torch.stack([counts.sum(), (one & counts).sum(), (two & counts).sum()])


def _read(pairs: list[torch.Tensor]) -> ShiftedLabelFacts:
    counts: list[list[int]] = [pair.tolist() for pair in pairs]
    targets, _, after_next = max(counts, key=lambda pair: pair[2])
    return ShiftedLabelFacts(targets, after_next, max(one / max(1, each) for each, one, _ in counts))
