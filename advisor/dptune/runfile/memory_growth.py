"""Whether a rank holds more memory after each step than after the one before, and what it keeps.

Tensors are counted between windows. On a GPU the allocator says what is allocated after each step, to the byte. What a
process on a CPU has resident grows by chance, too: there it counts only where tensors with a graph become more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from dptune.runfile.facts import Facts
from dptune.runfile.kept_tensors import KeptFacts

_LEAST_STEPS = 3  # between two looks
_LEAST_READINGS = 10  # of memory after a step
_ALIKE = 0.5  # of the growth as a whole, in each part of the recording
_A_STEP = 0.9  # tensors with a graph, that each step leaves
_GRAPH_BYTES = 8 * 2**20  # a step: resident memory of healthy runs grew by up to 2 MiB in each of 20 steps


@dataclass(frozen=True)
class MemoryGrowth:
    """What a rank keeps of each step, in bytes; `tensors` of them, 0 where none were counted.

    `with_graph`: how many of these have a graph, whose activations stay with them until a backward pass.
    `graphs_each_step`: how many of those each step leaves at least, in each part of the recording. `basis` is what was
    read: `tensors`, `allocated` or `resident`.
    """

    rank: int
    bytes_per_step: float
    tensors: float
    with_graph: float
    basis: str
    steps: int
    kept: KeptFacts | None = None
    graphs_each_step: int = 0


def memory_growth(facts: Sequence[Facts]) -> list[MemoryGrowth]:
    """Of the ranks on which it grows, most first."""
    found = [growth for rank_facts in facts for growth in _of_rank(rank_facts)]
    return sorted(found, key=lambda rank_growth: -rank_growth.bytes_per_step)


def _of_rank(rank_facts: Facts) -> Iterator[MemoryGrowth]:
    looks = rank_facts.kept.looks if rank_facts.kept is not None else []
    parts = [(a, b) for a, b in pairwise(looks) if b.step - a.step >= _LEAST_STEPS]
    steps = sum(b.step - a.step for a, b in parts)
    tensors = with_graph = in_tensors = least_graphs = 0.0
    if parts:
        tensors = sum(b.tensors - a.tensors for a, b in parts) / steps
        with_graph = sum(b.with_graph - a.with_graph for a, b in parts) / steps
        least_graphs = min((b.with_graph - a.with_graph) / (b.step - a.step) for a, b in parts)
        in_tensors = _steady([(b.bytes - a.bytes, b.step - a.step) for a, b in parts])
    window = rank_facts.window("untraced")
    readings = window.memory_bytes if window is not None else []
    on_gpu = bool(_allocated(rank_facts))
    held = _steady(_halves(readings)) if len(readings) >= _LEAST_READINGS else 0.0
    with_activations = with_graph >= _A_STEP and held >= _GRAPH_BYTES
    graphs_each_step = max(0, int(least_graphs + 1 - _A_STEP))
    if on_gpu and held > 0:
        grown, basis, counted = held, "allocated", len(readings)
    elif not on_gpu and with_activations and held > in_tensors:
        grown, basis, counted = held, "resident", len(readings)
    elif graphs_each_step or (not on_gpu and in_tensors > 0):
        grown, basis, counted = in_tensors, "tensors", steps
    else:
        return
    left = max(0.0, tensors), max(0.0, with_graph)
    yield MemoryGrowth(rank_facts.rank, grown, *left, basis, counted, rank_facts.kept, graphs_each_step)


def _allocated(rank_facts: Facts) -> list[int]:
    """What was allocated on its GPU after each step; empty on a CPU."""
    window = rank_facts.window("untraced")
    on_gpu = rank_facts.device is not None and rank_facts.device.kind != "cpu"
    return window.memory_bytes if on_gpu and window is not None else []


def _halves(readings: Sequence[int]) -> list[tuple[float, int]]:
    """The growth of each half, and over how many steps."""
    middle = len(readings) // 2
    return [_between(part) for part in (readings[:middle], readings[middle:])]


def _between(readings: Sequence[int]) -> tuple[float, int]:
    """From the first to the last third: the smaller growth of the least and of the most that is held."""
    third = max(1, len(readings) // 3)
    first, last = readings[:third], readings[-third:]
    return min(min(last) - min(first), max(last) - max(first)), len(readings) - third


def _steady(parts: Sequence[tuple[float, int]]) -> float:
    """Growth per step over all parts; 0 where one of them has less than half of it."""
    whole = sum(more for more, _ in parts) / sum(steps for _, steps in parts)
    return whole if whole > 0 and all(more / steps >= _ALIKE * whole for more, steps in parts) else 0.0
