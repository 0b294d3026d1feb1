"""Items that a change adds to a program: they come after its own, until all are put in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dptune.whatif.gpu.graph import Edge, Kind, Message
from dptune.whatif.gpu.parts import OUTSIDE, Part
from dptune.whatif.gpu.program import SEVERAL, Program


@dataclass(frozen=True)
class Added:
    """A collective that was added: the place of its message, and by rank those of its begin and its end."""

    message: int
    begins: dict[int, int]
    ends: dict[int, int]


@dataclass(frozen=True, eq=False)
class Additions:
    """Columns of a program that grow."""

    before: Program
    edges: list[Sequence[Edge]]
    recorded_ns: list[int]
    ranks: list[int]
    messages: list[Message]
    likes: dict[int, int]  # by item the one of whose micro-batch and part it is

    @classmethod
    def of(cls, program: Program, edges: list[Sequence[Edge]] | None = None) -> Additions:
        """None are added yet; `edges` are those of the program, where a change has made others of them."""
        grown = [*program.edges] if edges is None else edges
        return cls(program, grown, [*program.recorded_ns], [*program.ranks], [*program.messages], {})

    def item(self, rank: int, edges: Sequence[Edge], like: int | None = None) -> int:
        """The place of a further item, of the same micro-batch and part as another."""
        if like is not None:
            self.likes[len(self.edges)] = like
        self.edges.append(edges)
        self.ranks.append(rank)
        self.recorded_ns.append(max(self.recorded_ns[edge.item] for edge in edges))
        return len(self.edges) - 1

    def collective(
        self,
        message: Message,
        took_ns: float,
        waits: Mapping[int, Sequence[Edge]],
        likes: Mapping[int, int] | None = None,
    ) -> Added:
        """A collective that takes so long from its last begin; by rank what each begin waits for, and `likes`."""
        like = likes or {}
        self.messages.append(message)
        number = len(self.messages) - 1
        begins = {rank: self.item(rank, edges, like.get(rank)) for rank, edges in waits.items()}
        waited = [*begins.values()]
        if len(waited) >= SEVERAL:
            waited = [self.item(next(iter(begins)), [Edge(begin, 0.0, Kind.ARRIVAL) for begin in waited])]
        ends = {
            rank: self.item(rank, [Edge(item, took_ns, Kind.COLLECTIVE, number) for item in waited], like.get(rank))
            for rank in begins
        }
        return Added(number, begins, ends)

    def fields(self) -> dict[str, Any]:
        """The fields of the program with them, but its edges."""
        program = self.before
        return {
            "recorded_ns": self.recorded_ns,
            "ranks": self.ranks,
            "messages": self.messages,
            "micro_batches": self._grown(program.micro_batches, OUTSIDE),
            "parts": self._grown(program.parts, Part.NONE),
        }

    def _grown(self, column: Sequence[int], otherwise: int) -> Sequence[int]:
        """A column with the added items; an empty one stays so."""
        added = range(len(column), len(self.edges)) if column else ()
        return [*column, *(column[self.likes[item]] if item in self.likes else otherwise for item in added)]
