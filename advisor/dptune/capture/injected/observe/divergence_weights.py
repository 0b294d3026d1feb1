"""Finds KL divergences that count far more or less beside the reconstruction than in the evidence lower bound.

In a few backward passes of the warm-up steps, from the autograd graph of the loss. Losses that the script weighs are
left out: those with a constant beside 0.5, 1 and 2 that no size of the batch explains.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from dptune.capture.injected.observe.divergence_terms import Term, divergences, reconstructions
from dptune.capture.injected.observe.graph_passes import WholeGraphs
from dptune.capture.injected.observe.node_lines import node_line
from dptune.runfile.divergence_weights import DivergenceWeightFacts

_PLAIN = (0.5, 1.0, 2.0)  # factors of the divergence, and of a squared error
_OFF = 8  # times; less is in what a mean or sum of few dimensions does


class DivergenceWeights(WholeGraphs[DivergenceWeightFacts]):
    """A record for each divergence of another weight."""

    def _read_graph(self, readers: dict[Any, list[Any]]) -> None:
        beside: list[Term] | None = None
        for divergence in divergences(readers):
            if beside is None:
                beside = list(reconstructions(readers))
            compared = [facts for term in beside if (facts := _compared(divergence, term)) is not None]
            if compared and all(abs(math.log(facts.ratio)) >= math.log(_OFF) for facts in compared):
                self._note(compared[0], divergence.node)

    def _note(self, new: DivergenceWeightFacts, node: Any) -> None:
        key = (new.latents, new.elements, new.function)
        known = self._found.setdefault(key, new)
        known.passes += 1
        known.where = known.where or node_line(node)


def _compared(divergence: Term, beside: Term) -> DivergenceWeightFacts | None:
    """Of a divergence and a reconstruction of the same samples, which the script does not weigh."""
    samples = divergence.shape[0]
    if beside.loss is not divergence.loss or not samples or beside.values % samples:
        return None
    latents, elements = divergence.values // samples, beside.values // samples
    mine, others = Counter(divergence.constants), Counter(beside.constants)
    constants = [*(mine - others).elements(), *(others - mine).elements()]  # the rest multiplies both
    sizes = {samples, latents, elements, divergence.values, beside.values, *divergence.shape, *beside.shape}
    if elements < latents or not all(_is_plain(number, sizes) for number in constants):
        return None
    return DivergenceWeightFacts(samples, latents, elements, beside.function, divergence.weight, beside.weight)


def _is_plain(number: float, sizes: set[int]) -> bool:
    """Whether a constant is of the formula, or a size that a sum is divided by, or a mean multiplied."""
    return any(math.isclose(number, each, rel_tol=1e-5) for each in (*_PLAIN, *sizes, *(1 / size for size in sizes)))
