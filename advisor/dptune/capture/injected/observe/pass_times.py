"""How long each operator of a backward pass takes on a CPU, and which part of the pass some of its gradients need.

In the first passes of each call, hooks before and after each operator read the clock. They change no gradient, and end
with the graph: a hook keeps no operator alive.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from dptune.capture.injected.observe import process_rank
from dptune.runfile.unused import NeedlessPart

_MOST = 5_000  # operators of a graph; a larger one is not timed
# Of an operator that computes both a gradient that is needed and one that is not. A product of matrices takes as many
# operations for each: without the gradients of weights, the backward pass of linear layers took 42 to 50 % less CPU
# time, that of convolutions 18 to 58 %. Normalization took up to 21 % less; layers of an LSTM (oneDNN), and PReLU,
# compute all gradients at once.
_PART = NeedlessPart(0.2, 0.45, 0.6)
_PARTS = {
    "Norm": NeedlessPart(0.0, 0.1, 0.25),
    "Rnn": NeedlessPart(0.0, 0.0, 0.0),
    "Prelu": NeedlessPart(0.0, 0.0, 0.0),
}


@dataclass
class PassTimes:
    """The operators of one pass by their sequence numbers: ns, the operators that follow, and parameters after it.

    `names` are those of autograd, as `ConvolutionBackward0`.
    """

    spent_ns: dict[int, int] = field(default_factory=dict)
    following: dict[int, list[int]] = field(default_factory=dict)
    leaves: dict[int, list[int]] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)

    def needless(self, unwanted: Collection[int]) -> NeedlessPart | None:
        """The part of the time that only the gradients of these parameters need; None where nothing was timed."""
        whole = sum(self.spent_ns.values())
        if not whole:
            return None
        wanted = {leaf for leaves in self.leaves.values() for leaf in leaves} - set(unwanted)
        needed = self._leading_to(wanted)
        alone = sum(ns for number, ns in self.spent_ns.items() if number not in needed)
        mixed = [
            (ns, _part(self.names.get(number, "")))
            for number, ns in self.spent_ns.items()
            if number in needed and self._mixes(number, needed, wanted)
        ]
        return NeedlessPart(*((alone + sum(ns * part[end] for ns, part in mixed)) / whole for end in range(3)))

    def shared_with(self, others: Collection[int]) -> tuple[int, int]:
        """The time in these operators, and in all, ns."""
        return sum(ns for number, ns in self.spent_ns.items() if number in others), sum(self.spent_ns.values())

    def _mixes(self, number: int, needed: Collection[int], wanted: Collection[int]) -> bool:
        """Whether an operator that is needed leads to another that is not, or computes a gradient that is not."""
        return any(other not in needed for other in self.following.get(number, ())) or any(
            leaf not in wanted for leaf in self.leaves.get(number, ())
        )

    def _leading_to(self, wanted: Collection[int]) -> set[int]:
        """The operators through which a pass gets to these parameters."""
        before: dict[int, list[int]] = defaultdict(list)
        for number, following in self.following.items():
            for other in following:
                before[other].append(number)
        todo = [number for number, leaves in self.leaves.items() if not set(leaves).isdisjoint(wanted)]
        found = set(todo)
        while todo:
            for number in before[todo.pop()]:
                if number not in found:
                    found.add(number)
                    todo.append(number)
        return found


def _part(name: str) -> NeedlessPart:
    return next((part for kind, part in _PARTS.items() if kind in name), _PART)


class PassClock:
    """Times the operators of one pass after another."""

    def __init__(self) -> None:
        self._hooked: set[int] = set()  # operators since an optimizer last stepped: a graph may be gone through again
        self._current: PassTimes | None = None
        self._begun_ns: dict[int, int] = {}

    def watch(self, nodes: Sequence[Any]) -> PassTimes | None:
        """Time the operators of the pass that starts now; None on an accelerator, which computes later."""
        if process_rank.device_kind() != "cpu" or len(nodes) > _MOST:
            return None
        self._begun_ns, found = {}, PassTimes()
        for node in nodes:
            number = node._sequence_nr()
            following = [other for other, _ in node.next_functions if other is not None]
            leaves = [getattr(other, "variable", None) for other in following]
            found.names[number] = node.name()
            found.leaves[number] = [id(leaf) for leaf in leaves if leaf is not None]
            found.following[number] = [
                other._sequence_nr() for other, leaf in zip(following, leaves, strict=True) if leaf is None
            ]
            if number not in self._hooked:
                self._hooked.add(number)
                self._hook(node, number)
        self._current = found
        return found

    def end(self) -> None:
        """The pass has ended."""
        self._current = None

    def stepped(self) -> None:
        """An optimizer has made a step: graphs of before are gone."""
        self._hooked = set()

    def _hook(self, node: Any, number: int) -> None:
        def begin(*_: Any) -> None:
            self._begun_ns[number] = time.perf_counter_ns()

        def end(*_: Any) -> None:
            begun_ns, current = self._begun_ns.pop(number, None), self._current
            if current is not None and begun_ns is not None:
                spent_ns = time.perf_counter_ns() - begun_ns
                current.spent_ns[number] = current.spent_ns.get(number, 0) + spent_ns

        node.register_prehook(begin)
        node.register_hook(end)
