"""Finds KL divergences that count far more or less beside the reconstruction than in the evidence lower bound.

In a few backward passes of the warm-up steps, from the autograd graph of the loss. A reconstruction is what is computed
of the posterior's mean. Losses that the script weighs are left out: those with a constant beside 0.5, 1 and 2 that no
size of the batch explains.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from dptune.capture.injected.observe.divergence_terms import (
    Divergence,
    Edge,
    Reconstruction,
    divergences,
    reconstructions,
)
from dptune.capture.injected.observe.graph_passes import WholeGraphs
from dptune.capture.injected.observe.loss_weights import weights
from dptune.capture.injected.observe.node_lines import node_line
from dptune.runfile.divergence_weights import DivergenceWeightFacts

_PLAIN = (0.5, 1.0, 2.0)  # factors of the divergence, and of a squared error
_OFF = 8  # times; less is in what a mean or sum of few dimensions does
_NODES = 20_000  # between a reconstruction and the posterior


class DivergenceWeights(WholeGraphs[DivergenceWeightFacts]):
    """A record for each divergence of another weight."""

    def _read_graph(self, readers: dict[Any, list[Any]]) -> None:
        found: list[Reconstruction] | None = None
        for divergence in divergences(readers):
            if found is None:
                found = list(reconstructions(readers))
            reached = [term for term in found if _reaches(term.node, divergence.mean)]
            facts = max(_compared(divergence, reached), key=lambda facts: facts.counted, default=None)
            if facts is not None and abs(math.log(facts.ratio)) >= math.log(_OFF):
                self._note(facts, divergence.node)

    def _note(self, new: DivergenceWeightFacts, node: Any) -> None:
        key = (new.latents, new.elements, new.function)
        known = self._found.setdefault(key, new)
        known.passes += 1
        known.where = known.where or node_line(node)


def _compared(divergence: Divergence, terms: Sequence[Reconstruction]) -> Iterator[DivergenceWeightFacts]:
    """Of a divergence and reconstructions of the same samples, which the script does not weigh.

    Those of the same weight are one: columns of a table have a loss each.
    """
    samples, latents = divergence.shape[0], math.prod(divergence.shape[1:])
    alike: defaultdict[tuple[float, float], list[int]] = defaultdict(list)
    functions: dict[tuple[float, float], str] = {}
    for term in terms:
        met, values = weights(divergence.path, term.path), math.prod(term.shape)
        if met is None or not values or values % samples:
            continue
        mine, other = met
        repeats = round(mine.repeats / other.repeats)  # draws from the posterior of each sample
        sizes = {samples, latents, values // samples, values, samples * latents, *divergence.shape, *term.shape}
        factors = (divergence.factor, *mine.constants, term.factor, *other.constants)
        if repeats and all(_is_plain(number, sizes) for number in factors):
            counts = divergence.share * mine.factor, term.share * other.factor * repeats
            alike[counts].append(values // (samples * repeats))
            functions.setdefault(counts, term.function)
    for counts, elements in alike.items():
        if sum(elements) >= latents and all(counts):
            yield DivergenceWeightFacts(samples, latents, sum(elements), functions[counts], *counts)


def _is_plain(number: float, sizes: Collection[int]) -> bool:
    """Whether a constant is of the formula, or a size that a sum is divided by, or a mean multiplied."""
    return any(math.isclose(number, each, rel_tol=1e-5) for each in (*_PLAIN, *sizes, *(1 / size for size in sizes)))


def _reaches(node: Any, edge: Edge) -> bool:
    """Whether what a node returns is computed of this tensor."""
    seen, waiting = {node}, [node]
    while waiting and len(seen) < _NODES:
        for following in waiting.pop().next_functions:
            if following[0] == edge[0] and following[1] == edge[1]:
                return True
            if following[0] is not None and following[0] not in seen:
                seen.add(following[0])
                waiting.append(following[0])
    return False
