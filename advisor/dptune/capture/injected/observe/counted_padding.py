"""Counts padding among the targets of losses.

In a few warm-up steps. Models of transformers that take `labels` and an `attention_mask` are read when they are called.
Other models that take both may mask their loss themselves, or ignore another value: for these, and for losses of models
with an embedding that names its `padding_idx`, the autograd graph shows the targets that count. Classes may be other
than the rows of the embedding: then a class is padding if all targets at padding have it, and no other. The counts stay
on their device until the first window opens.
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
_BY_PLACE = "place"
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
        self._given: tuple[str, dict[str, Any], Any] | None = None  # to the last model of the script: its name, config
        self._facts: list[CountedPaddingFacts] = []

    def begin(self) -> None:
        """Watch from now on, except code that torch.compile hides."""
        if self._places.compiled:
            return
        self._watching = True
        for module in all_modules():
            with contextlib.suppress(Exception):  # modules may be anything
                if set(inspect.signature(module.forward).parameters) >= _TAKES:
                    self._calls.before(module, self._called)

    def before_pass(self, roots: Any) -> None:
        """A backward pass is about to start at these tensors."""
        given, self._given = self._given, None
        if not self._watching or self._passes >= _CALLS or is_captured():
            return
        with contextlib.suppress(Exception):  # a graph may be anything
            self._passes += 1
            tensors = (roots,) if isinstance(roots, torch.Tensor) else tuple(roots)
            nodes = list(consumers((tensor.grad_fn for tensor in tensors), _NODES))
            with torch.no_grad():
                for key, count in list(_of_given(nodes, *given) if given else ()) or _of_graph(nodes):
                    self._counts.setdefault(key, []).append(count)

    def end(self) -> None:
        """Stop, and read the counts from their devices."""
        self._watching = False
        with contextlib.suppress(Exception):
            for (shown_by, model, pad), counts in self._counts.items():
                total = torch.stack([count.cpu() for count in counts]).sum(0)
                if shown_by == _BY_PLACE:
                    pad, total = _one_class(total), torch.stack([total.sum(), total[0].sum()])
                    if pad is None:
                        continue
                targets, padding = total.tolist()
                self._facts.append(CountedPaddingFacts(shown_by, model, targets, padding, len(counts), pad))
        self._counts.clear()
        self._given = None

    def facts(self) -> list[CountedPaddingFacts]:
        """The facts of each model and loss that was read."""
        return self._facts

    def _called(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if is_captured() or not torch.is_grad_enabled():
            return
        given = inspect.signature(module.forward).bind_partial(*args, **kwargs).arguments
        if not type(module).forward.__module__.startswith("transformers."):
            self._given = type(module).__name__, given, getattr(module, "config", None)
            return
        found = _of_call(module, given)
        if found is not None:
            (shown_by, pad), count = found
            counts = self._counts.setdefault((shown_by, type(module).__name__, pad), [])
            if len(counts) < _CALLS:
                counts.append(count)


@torch.no_grad()
def _of_call(module: Any, given: dict[str, Any]) -> tuple[tuple[str, int | None], torch.Tensor] | None:
    """None unless there is one label for each position."""
    shown = _padding(given, getattr(module, "config", None))
    if shown is None:
        return None
    key, padding = shown
    counts = given["labels"] != _IGNORED
    return key, torch.stack([counts.sum(), (counts & padding).sum()])


def _padding(given: dict[str, Any], config: Any) -> tuple[tuple[str, int | None], torch.Tensor] | None:
    """What shows which labels are padding, and these; None unless there is one for each position."""
    labels = given.get("labels")
    if type(labels) is not torch.Tensor or labels.dim() != 2 or labels.is_floating_point():
        return None
    if getattr(config, "is_encoder_decoder", False):
        pad, end = getattr(config, "pad_token_id", None), getattr(config, "eos_token_id", None)
        if not isinstance(pad, int) or not isinstance(end, int) or pad == end:
            return None
        return ("pad_token_id", pad), labels == pad
    mask = given.get("attention_mask")
    if type(mask) is not torch.Tensor or mask.shape != labels.shape:
        return None
    return ("attention_mask", None), mask.to(labels.device) == 0


def _of_given(nodes: list[Any], model: str, given: dict[str, Any], config: Any) -> Iterator[tuple[_Key, torch.Tensor]]:
    """Of losses whose targets are the labels that the model was given, or those from the second position on."""
    shown = _padding(given, config)
    for loss in nodes if shown is not None else ():
        if _masked(loss):
            continue
        (shown_by, pad), padding = shown  # type: ignore[misc]
        labels, target = given["labels"], loss._saved_target
        if target.numel() != labels.numel():
            labels, padding = labels[:, 1:], padding[:, 1:]
        if target.numel() == labels.numel():
            target = target.reshape(labels.shape)
            counted = target != signed(loss._saved_ignore_index)
            padding = counted & padding & (target == labels)
            yield (shown_by, model, pad), torch.stack([counted.sum(), padding.sum()])


def _masked(node: Any) -> bool:
    """Whether it is no cross entropy, or one that may be masked otherwise than by its targets."""
    if not node.name().startswith(LOSSES) or node._saved_reduction not in _REDUCTIONS:
        return True
    return (
        not readable(node, "target") or node._saved_weight is not None or type(node._saved_target) is not torch.Tensor
    )


def _of_graph(nodes: list[Any]) -> Iterator[tuple[_Key, torch.Tensor]]:
    """Losses whose classes are the rows of an embedding that names its padding, where its input is padding, too.

    A table of a few segments may have as many rows as there are classes.
    """
    pads: dict[int, list[tuple[int, torch.Tensor]]] = {}  # by rows of the embedding
    for node in nodes:
        if node.name().startswith("EmbeddingBackward"):
            pad, rows = signed(node._saved_padding_idx), int(node._saved_weight_sym_argsize_0)
            if pad >= 0:
                pads.setdefault(rows, []).append((pad, node._saved_indices))
    for loss in nodes if pads else ():
        if _masked(loss):
            continue
        shape = next((shape_of(following) for following, _ in loss.next_functions if following is not None), ())
        target, ignored = loss._saved_target, signed(loss._saved_ignore_index)
        classes = shape[1] if len(shape) > 1 else 0
        for pad, words in pads.get(classes, ()):
            if words.numel() != target.numel():
                words = words[:, :-1] if words.dim() == 2 else words
            if ignored != pad and words.numel() == target.numel():
                counted = target != ignored
                padding = counted & (target == pad) & (words.reshape(target.shape) == pad)
                yield ("padding_idx", f"{classes} classes", pad), torch.stack([counted.sum(), padding.sum()])
                break
        else:
            for pad, words in (each for rows, of_rows in pads.items() if rows != classes for each in of_rows):
                if classes and words.dim() == 2 and words.numel() == target.numel():
                    yield (_BY_PLACE, f"{classes} classes", None), _by_place(words, pad, target, ignored, classes)
                    break


def _by_place(words: torch.Tensor, pad: int, target: torch.Tensor, ignored: int, classes: int) -> torch.Tensor:
    """By class, the targets that count: at padding, and elsewhere.

    None is at padding unless it is one piece at the end of each sequence, or at the start of each: a row or a column.
    """
    at_pad = words == pad
    changes = [at_pad.long().diff(dim=dim) for dim in (0, 1)]
    in_one_piece = torch.stack([all_of for change in changes for all_of in ((change >= 0).all(), (change <= 0).all())])
    target, at_pad = target.reshape(words.shape), at_pad & in_one_piece.any()
    counted = target != ignored
    found = torch.zeros(2, classes, dtype=torch.int64, device=target.device)
    for of_class, chosen in zip(found, (counted & at_pad, counted & ~at_pad), strict=True):
        of_class.scatter_add_(0, target.clamp(0, classes - 1).flatten(), chosen.flatten().long())
    return found


def _one_class(by_class: torch.Tensor) -> int | None:
    """The class of all targets at padding, and of no other; None where the others do not differ."""
    at_pad, elsewhere = (set(counts.nonzero().flatten().tolist()) for counts in by_class)
    return next(iter(at_pad)) if len(at_pad) == 1 and len(elsewhere) > 1 and not at_pad & elsewhere else None
