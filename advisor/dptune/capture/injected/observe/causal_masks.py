"""Finds language models whose self-attention attends to the tokens that they are trained to predict.

In a few backward passes of the warm-up steps, from the autograd graph of the loss: the targets of a cross entropy are
the embedded token ids one position later, and no self-attention over these ids hides the next position. Where it shows
such a model, torch notes the lines of the next forward pass, as in its anomaly mode, but checks no values.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from dptune.capture.injected.observe.attention_graph import Attention, Sequences, self_attentions
from dptune.capture.injected.observe.graph_passes import WholeGraphs
from dptune.capture.injected.observe.loss_graph import signed
from dptune.capture.injected.observe.node_lines import node_line
from dptune.capture.injected.observe.places import Places
from dptune.capture.injected.observe.token_targets import embedded_ids, target_rows, token_losses
from dptune.runfile.causal_masks import CausalMaskFacts

_LOSSES = 4  # of a pass
_LEAST_TARGETS = 32  # that differ from the input at their position: fewer may agree by chance
_AHEAD = 0.95  # of these targets: few tokens of a text are masked
_SEEN = 0.9  # of these targets: padding hides some, the prompt of a prefix language model is no target


class _Predicted(NamedTuple):
    """Tokens to predict: `answers`, by sequence and position, whether the next input is the target."""

    loss: Any
    embedding: Any
    answers: torch.Tensor


class CausalMasks(WholeGraphs[CausalMaskFacts]):
    """One record, of models whose attention is not causal."""

    def __init__(self, places: Places) -> None:
        super().__init__(places)
        self._causal = False  # in any pass

    def _read_graph(self, readers: dict[Any, list[Any]]) -> None:
        if self._causal:
            return
        for predicted in _predicted(list(readers)):
            rows, positions = predicted.answers.shape
            sequences = Sequences(predicted.embedding, rows, (positions + 1, positions))
            layers = list(self_attentions(predicted.loss, sequences))
            if layers:
                self._note(layers, predicted.answers)
                return

    def _note(self, layers: list[Attention], answers: torch.Tensor) -> None:
        """Add a pass; one with causal attention shows that the model is meant to be as it is."""
        seen = min(_share_seen(layer, answers) for layer in layers)
        if seen < _SEEN:
            self._causal = True
            self._found.clear()
            return
        known = self._found.setdefault("attention", CausalMaskFacts())
        known.passes += 1
        known.layers = len(layers)
        known.positions = answers.shape[1] + 1
        known.targets = int(answers.sum())
        known.seen_share = seen
        known.later_share = sum(layer.later_share for layer in layers) / len(layers)
        known.where = known.where or node_line(layers[-1].node)


def _predicted(nodes: list[Any]) -> Iterator[_Predicted]:
    """The losses whose targets are the next tokens of embedded ids, whose first dimension may be either."""
    sequences = embedded_ids(nodes)
    for loss in token_losses(nodes)[:_LOSSES]:
        for embedding, ids in sequences:
            for given, targets in ((ids, target_rows(loss, ids)), (ids.mT, _target_columns(loss, ids))):
                answers = None if targets is None else _answers(targets, given, signed(loss._saved_ignore_index))
                if answers is not None:
                    yield _Predicted(loss, embedding, answers)


def _target_columns(loss: Any, ids: torch.Tensor) -> torch.Tensor | None:
    """The targets by sequence, where ids are by position first."""
    target, (positions, rows) = loss._saved_target, ids.shape
    if type(target) is not torch.Tensor or target.numel() not in (rows * positions, rows * (positions - 1)):
        return None
    return target.reshape(-1, rows).mT.to(ids.device)


def _answers(targets: torch.Tensor, ids: torch.Tensor, ignored: int) -> torch.Tensor | None:
    """Which targets count and differ from the input at their position; None if few of these are the next input."""
    last = ids.shape[1] - 1
    targets, now, following = targets[:, :last], ids[:, :last], ids[:, 1:]
    answers = (targets != ignored) & (targets != now)
    count, ahead = int(answers.sum()), int((answers & (targets == following)).sum())
    return answers if count >= _LEAST_TARGETS and ahead >= _AHEAD * count else None


def _share_seen(layer: Attention, answers: torch.Tensor) -> float:
    """Of the targets whose answer is an input, those at positions that attend to it."""
    sees_next = layer.sees_next.to(answers.device)
    answers = answers[:, : sees_next.shape[1]]
    return float((answers & sees_next).sum() / answers.sum().clamp(min=1))
