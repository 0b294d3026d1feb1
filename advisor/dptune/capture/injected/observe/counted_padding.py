"""Counts padding among the targets of losses.

In a few warm-up steps. Models that take `labels` and an `attention_mask`, as those of transformers do, are read when
they are called. Other losses are read from the autograd graph, in which an embedding names its `padding_idx`. The
counts stay on their device until the first window opens.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

import torch

from dptune.capture.injected.observe.loss_graph import LOSSES, consumers, shape_of, signed
from dptune.capture.injected.observe.loss_masks import readable
from dptune.capture.injected.observe.module_calls import ModuleCalls
from dptune.capture.injected.observe.module_paths import all_modules
from dptune.capture.injected.observe.passes import is_captured
from dptune.capture.injected.observe.places import Places
from dptune.runfile.counted_padding import CountedPaddingFacts

_CALLS = 4  # of each model, and backward passes
_NODES = 50_000  # of a graph: embeddings are at its far end
_IGNORED = -100  # as in torch's cross entropy, which transformers' models call
_TAKES = {"labels", "attention_mask"}
_REDUCTIONS = (1, 2)  # mean and sum: nothing can mask their terms later

_Key = tuple[str, str, int | None]


class CountedPadding:
    """By model, or by loss, the targets and the padding among them."""

    def __init__(self, places: Places, calls: ModuleCalls) -> None:
        self._places = places
        self._calls = calls
        self._watching = False
        self._passes = 0
        self._counts: dict[_Key, list[torch.Tensor]] = {}
        self._facts: list[CountedPaddingFacts] = []

    def begin(self) -> None:
        """Watch from now on, except code that torch.compile hides."""
        if self._places.compiled:
            return
        self._watching = True
        with contextlib.suppress(Exception):  # modules may be anything
            for module in all_modules():
                if set(inspect.signature(module.forward).parameters) >= _TAKES:
                    self._calls.before(module, self._called)

    def before_pass(self, roots: Any) -> None:
        """A backward pass is about to start at these tensors."""
        if not self._watching or self._passes >= _CALLS or is_captured():
            return
        with contextlib.suppress(Exception):  # a graph may be anything
            self._passes += 1
            tensors = (roots,) if isinstance(roots, torch.Tensor) else tuple(roots)
            nodes = list(consumers((tensor.grad_fn for tensor in tensors), _NODES))
            with torch.no_grad():
                for key, count in _of_graph(nodes):
                    self._counts.setdefault(key, []).append(count)

    def end(self) -> None:
        """Stop, and read the counts from their devices."""
        self._watching = False
        with contextlib.suppress(Exception):
            for (shown_by, model, pad), counts in self._counts.items():
                targets, padding = torch.stack([count.cpu() for count in counts]).sum(0).tolist()
                self._facts.append(CountedPaddingFacts(shown_by, model, targets, padding, len(counts), pad))
        self._counts.clear()

    def facts(self) -> list[CountedPaddingFacts]:
        """The facts of each model and loss that was read."""
        return self._facts

    def _called(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if is_captured() or not torch.is_grad_enabled():
            return
        found = _of_call(module, inspect.signature(module.forward).bind_partial(*args, **kwargs).arguments)
        if found is not None:
            (shown_by, pad), count = found
            counts = self._counts.setdefault((shown_by, type(module).__name__, pad), [])
            if len(counts) < _CALLS:
                counts.append(count)


@torch.no_grad()
def _of_call(module: Any, given: dict[str, Any]) -> tuple[tuple[str, int | None], torch.Tensor] | None:
    """None unless there is one label for each position."""
    labels, config = given.get("labels"), getattr(module, "config", None)
    if type(labels) is not torch.Tensor or labels.dim() != 2 or labels.is_floating_point():
        return None
    counts = labels != _IGNORED
    if getattr(config, "is_encoder_decoder", False):
        pad, end = getattr(config, "pad_token_id", None), getattr(config, "eos_token_id", None)
        if not isinstance(pad, int) or not isinstance(end, int) or pad == end:
            return None
        return ("pad_token_id", pad), torch.stack([counts.sum(), (counts & (labels == pad)).sum()])
    mask = given.get("attention_mask")
    if type(mask) is not torch.Tensor or mask.shape != labels.shape:
        return None
    return ("attention_mask", None), torch.stack([counts.sum(), (counts & (mask.to(labels.device) == 0)).sum()])


def _of_graph(nodes: list[Any]) -> Iterator[tuple[_Key, torch.Tensor]]:
    """Losses whose classes are the rows of an embedding with a `padding_idx`."""
    pads = {}
    for node in nodes:
        if node.name().startswith("EmbeddingBackward"):
            pad, rows = signed(node._saved_padding_idx), int(node._saved_weight_sym_argsize_0)
            if pad >= 0:
                pads[rows] = pad
    for loss in nodes if pads else ():
        if not loss.name().startswith(LOSSES) or loss._saved_reduction not in _REDUCTIONS:
            continue
        if not readable(loss, "target") or loss._saved_weight is not None:
            continue
        shape = next((shape_of(following) for following, _ in loss.next_functions if following is not None), ())
        target, ignored = loss._saved_target, signed(loss._saved_ignore_index)
        classes = shape[1] if len(shape) > 1 else 0
        if classes in pads and type(target) is torch.Tensor and ignored != pads[classes]:
            counted = target != ignored
            padding = counted & (target == pads[classes])
            yield ("padding_idx", f"{classes} classes", pads[classes]), torch.stack([counted.sum(), padding.sum()])
