"""Finds softmax over another dimension than the one along which a loss or a matrix product uses its result.

In a few backward passes of the warm-up steps, from the autograd graph of the loss. Where it shows one, torch notes the
lines of the next forward pass, as in its anomaly mode, but checks no values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from dptune.capture.injected.observe.graph_passes import WholeGraphs
from dptune.capture.injected.observe.loss_graph import shape_of
from dptune.capture.injected.observe.node_lines import node_line
from dptune.capture.injected.observe.softmax_uses import Use, are_scores, is_log, softmax_dim, uses
from dptune.runfile.softmax_dimensions import WEIGHTS, SoftmaxDimensionFacts

_LEAST_SIZE = 2  # of both dimensions


class _Found(NamedTuple):
    softmax: Any
    dim: int
    use: Use


class SoftmaxDimensions(WholeGraphs[SoftmaxDimensionFacts]):
    """A record for each use of a softmax along another dimension."""

    def _read_graph(self, readers: dict[Any, list[Any]]) -> None:
        counts: Counter[Any] = Counter()
        for found in _found(readers):
            key = (found.use.used_as, is_log(found.softmax), found.dim, found.use.along)
            counts[key] += 1
            if counts[key] == 1:
                self._note(key, found)
            self._found[key].count = max(self._found[key].count, counts[key])

    def _note(self, key: Any, found: _Found) -> None:
        """Add a pass to what is known; `found` is the nearest to the loss."""
        used_as, log, dim, along = key
        function = "log_softmax" if log else "softmax"
        new = SoftmaxDimensionFacts(used_as, function, dim, along, list(shape_of(found.softmax)))
        known = self._found.setdefault(key, new)
        known.passes += 1
        known.where = known.where or node_line(found.softmax)
        known.use_where = known.use_where or node_line(found.use.node)


def _found(readers: dict[Any, list[Any]]) -> Iterator[_Found]:
    """Each softmax with the first use along another dimension."""
    for node in readers:
        dim = softmax_dim(node)
        if dim is None or shape_of(node)[dim] < _LEAST_SIZE:
            continue
        for use in uses(node, readers):
            is_other = use.along != dim and shape_of(node)[use.along] >= _LEAST_SIZE
            if is_other and (use.used_as != WEIGHTS or are_scores(node)):
                yield _Found(node, dim, use)
                break
