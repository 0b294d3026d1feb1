"""Finds embeddings of all ranks that a loss uses without gradients, although those of this rank have them.

`all_gather` returns tensors without gradients. In warm-up steps, what it was given with a gradient is compared with
what the graph of the next backward pass has saved without one: the same rows, whatever their length, of this rank and
of others, and no more of them than were gathered. So a local tensor that is put back, gathers with gradients, metrics
and queues of earlier batches are left out. What the script gathers under `no_grad` has no gradients on purpose; the
`all_gather` of Lightning turns them off itself, unless it is called with `sync_grads=True`.
"""

from __future__ import annotations

import contextlib
import functools
from collections import deque
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any, NamedTuple

import torch

from dptune.capture.injected.observe.graph_passes import GraphPasses
from dptune.capture.injected.observe.loss_graph import consumers
from dptune.capture.injected.observe.loss_masks import saved_tensor
from dptune.capture.injected.observe.places import entry, users_function
from dptune.runfile.gathered_embeddings import GatheredEmbeddingFacts

FUNCTIONS = ("all_gather", "all_gather_into_tensor", "all_gather_single")
_LIGHTNING = ("lightning.", "lightning_fabric.", "pytorch_lightning.")
_NODES = 2_000  # of a graph, the nearest to the loss
_GATHERS = 8  # that are kept for a pass, the latest
_NUMBERS = 1 << 24  # of all ranks, in one gather
_LEAST_WIDTH = 4  # fewer numbers are losses, scores or counts
_LEAST_ROWS = 2
_SAMPLE = 64  # rows that are compared
_ROUNDING = 1e-5  # of rows of length 1, in float32
_ROUNDING_16_BITS = 2**-8


class _Gather(NamedTuple):
    function: str
    where: str | None
    through: str
    local: torch.Tensor  # (rows, width)
    outputs: list[torch.Tensor]


class GatheredEmbeddings(GraphPasses[GatheredEmbeddingFacts]):
    """Compares what is gathered in warm-up steps with what the next backward pass uses."""

    def __init__(self) -> None:
        super().__init__()
        self._gathers: deque[_Gather] = deque(maxlen=_GATHERS)

    def called(self, function: str, given: Sequence[Any], frame: FrameType) -> None:
        """A collective of `torch.distributed` has returned, which this frame called with these arguments."""
        if not self._watching or function not in FUNCTIONS:
            return
        with contextlib.suppress(Exception):  # arguments may be anything
            gather = _gather(function, given, frame)
            if gather is not None:
                self._gathers.append(gather)

    def end(self) -> None:
        """Read no more passes, and keep no tensors."""
        super().end()
        self._gathers.clear()

    def before_pass(self, roots: Any) -> None:
        """A backward pass starts from these tensors; what was gathered before it is kept no longer."""
        super().before_pass(roots)
        self._gathers.clear()

    def _read(self, roots: Any) -> None:
        if not self._gathers:
            return
        saved = list(_without_gradient(roots))
        found: dict[tuple[str | None, str], _Gather] = {}
        for gather in self._gathers:
            if (gather.where, gather.through) not in found and _is_used(gather, saved):
                found[gather.where, gather.through] = gather
        for key, gather in found.items():
            facts = self._found.setdefault(key, GatheredEmbeddingFacts(gather.where, gather.function, gather.through))
            facts.passes += 1
            facts.local_rows, facts.width = gather.local.shape
            facts.rows = sum(output.numel() for output in gather.outputs) // facts.width


def _gather(function: str, given: Sequence[Any], frame: FrameType) -> _Gather | None:
    """None if gradients are not lost, or if the rows are no embeddings."""
    lists = [value for value in given if isinstance(value, (list, tuple))]
    tensors = [value for value in given if type(value) is torch.Tensor]
    if not tensors:
        return None
    local = min(tensors, key=torch.Tensor.numel)
    outputs = list(lists[0]) if lists else [max(tensors, key=torch.Tensor.numel)]
    width = local.shape[-1] if local.dim() > 1 else 0
    if local.grad_fn is None or width < _LEAST_WIDTH or local.numel() < _LEAST_ROWS * width:
        return None
    if not local.numel() < sum(output.numel() for output in outputs) <= _NUMBERS:
        return None
    through = entry(frame)
    if not torch.is_grad_enabled() and not through.startswith(_LIGHTNING):
        return None
    rows = local.detach().reshape(-1, width)
    return _Gather(function, users_function(frame), through, rows, [output.detach() for output in outputs])


def _without_gradient(roots: Any) -> Iterator[torch.Tensor]:
    """What functions with gradients have saved of inputs that have none, the nearest to the loss first."""
    tensors = [roots] if isinstance(roots, torch.Tensor) else list(roots)
    for node in consumers((tensor.grad_fn for tensor in tensors), _NODES):
        if all(following is not None for following, _ in node.next_functions):
            continue
        kind: Any = type(node)
        for name in _saved_names(kind):
            with contextlib.suppress(RuntimeError):  # an earlier pass has freed it
                saved = saved_tensor(node, name)
                if saved is None or not saved.is_floating_point() or getattr(node, f"_saved_{name}").requires_grad:
                    continue
                yield saved


@functools.cache
def _saved_names(kind: type) -> tuple[str, ...]:
    prefix = "_raw_saved_"
    return tuple(name.removeprefix(prefix) for name in dir(kind) if name.startswith(prefix))


def _is_used(gather: _Gather, saved: Sequence[torch.Tensor]) -> bool:
    """Whether some of these are the gathered rows, and no others: rows of this rank and of others."""
    width = gather.local.shape[1]
    gathered = torch.cat([output.reshape(-1, width) for output in gather.outputs])
    here = [tensor for tensor in saved if tensor.device == gathered.device]
    candidates = (rows for tensor in here for rows in _as_rows(tensor, width, len(gathered)))
    return any(_are_among(rows, gathered, gather.local) for rows in candidates)


def _as_rows(tensor: torch.Tensor, width: int, most: int) -> Iterator[torch.Tensor]:
    """By rows of that width, along each dimension that is as long; the first of those that were expanded."""
    for dim, length in enumerate(tensor.shape):
        if length != width:
            continue
        rows = tensor.movedim(dim, -1)
        while rows.dim() > 2 and rows.numel() > most * width:
            rows = rows[0]
        rows = rows.reshape(-1, width)
        if _LEAST_ROWS <= len(rows) <= most:
            yield rows


def _are_among(rows: torch.Tensor, gathered: torch.Tensor, local: torch.Tensor) -> bool:
    """Whether all of a sample of these rows were gathered, some from this rank and some from others."""
    sample = rows[:: -(-len(rows) // _SAMPLE)]
    sample = sample[(sample != 0).any(1)]
    if len(sample) < _LEAST_ROWS or not bool(_have_equal(sample, gathered).all()):
        return False
    ours = _have_equal(sample, local)
    return bool(ours.any()) and not bool(ours.all())


def _have_equal(sample: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Which rows of the sample are among the rows, up to their length and what the dtype of the sample rounds."""
    rounding = _ROUNDING if sample.element_size() > 2 else _ROUNDING_16_BITS
    first, second = (torch.nn.functional.normalize(side.to(sample.dtype).float(), dim=1) for side in (sample, rows))
    return torch.cdist(first, second, p=float("inf")).amin(1) <= rounding
