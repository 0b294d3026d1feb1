"""Backward passes through a graph that a pass of another call of backward kept (`retain_graph`) in the same step.

A pair of calls counts where, in the passes whose graphs are read, both go through the same operators, and the later one
adds to the gradients of the earlier one: every parameter that both reach has a gradient when it starts.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from dptune.runfile.unused import RepeatedPassFacts

_OFTEN = 3  # passes, before this is said of a call


@dataclass
class Pair:
    """Two calls of backward; `repeats`: how often the later one went through the graph of the other one again."""

    first: Any
    later: Any
    repeats: int = 0


class KeptGraphs:
    """The calls that kept their graph since an optimizer last stepped, and those that go through it again."""

    def __init__(self) -> None:
        self._kept: list[tuple[Any, Collection[int]]] = []
        self._pairs: dict[tuple[int, int], Pair] = {}

    def stepped(self) -> None:
        """An optimizer has made a step: what follows adds to nothing of before."""
        self._kept = []

    def keep(self, call: Any, nodes: Collection[int]) -> None:
        """A pass of this call keeps its graph, with these operators if it was read."""
        if all(first is not call for first, _ in self._kept):
            self._kept.append((call, nodes))

    def again(self, call: Any, nodes: Collection[int]) -> Any:
        """The call whose graph a pass of `call`, with these operators if it was read, goes through again; else None."""
        for first, kept in self._kept:
            if first is call:
                continue
            key = id(first), id(call)
            if kept and nodes and set(kept).isdisjoint(nodes):
                self._pairs.pop(key, None)
            elif kept and nodes and _adds(first, call):
                self._pairs.setdefault(key, Pair(first, call))
            pair = self._pairs.get(key)
            if pair is not None and has_gradients(first):
                pair.repeats += 1
                return first
        return None

    def repeated(self, calls: Sequence[Any]) -> list[RepeatedPassFacts]:
        """Of the calls that go back through one graph several times a step, by themselves or with others."""
        found: list[RepeatedPassFacts] = []
        listed: set[int] = set()
        for call in calls:
            pairs = [pair for pair in self._pairs.values() if pair.first is call and pair.repeats >= _OFTEN]
            pairs = [pair for pair in pairs if id(pair.later) not in listed]
            if id(call) in listed or not (pairs or (call.shared and call.repeats >= _OFTEN)):
                continue
            together = [call, *(pair.later for pair in pairs)]
            listed |= {id(each) for each in together}
            again = sum(each.repeats for each in together) + sum(pair.repeats for pair in pairs)
            timed_ns = sum(each.timed_ns for each in together)
            found.append(
                RepeatedPassFacts(
                    call.where,
                    (call.firsts + again) / call.firsts,
                    sum(each.again_ns for each in together),
                    sum(each.shared_ns for each in together) / timed_ns if timed_ns else None,
                    [each.where for each in together[1:] if each.where],
                )
            )
        return found


def _adds(first: Any, later: Any) -> bool:
    """Whether every parameter that both reach has a gradient, and not all zeros."""
    both = [ref() for at, (ref, _) in first.leaves.items() if at in later.leaves]
    alive = [leaf for leaf in both if leaf is not None]
    return bool(alive) and all(leaf.grad is not None and bool(leaf.grad.any()) for leaf in alive)


def has_gradients(call: Any) -> bool:
    """Whether its earliest parameter has a gradient: a script may take those of what its losses share after each."""
    leaf = None if call.earliest is None else call.earliest()
    return leaf is not None and leaf.grad is not None
