"""A run: the traces of its ranks, with what the recording says about them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from dptune.finding import Finding
from dptune.runfile.facts import Facts
from dptune.runfile.record import RunRecord
from dptune.trace.events import Trace

MOST_RANKS = 1_000_000  # a larger claim is damage
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, eq=False)
class RankTrace:
    """One rank: the trace of its light window (or its only one), and where its detailed window is, if it has one.

    `read_detailed` reads it. `digest` is what was made of the trace where it was read, if only that was asked for:
    `light` then holds no events.
    """

    rank: int
    source: str
    light: Trace
    detailed_source: str | None = None
    read_detailed: Callable[[], Trace] | None = None
    digest: object = None

    @cached_property
    def detailed(self) -> Trace | None:
        """The trace of the detailed window, read when first asked for; raises TraceError where it cannot be read."""
        return None if self.read_detailed is None else self.read_detailed()


@dataclass(frozen=True, eq=False)
class Run:
    """Ranks in ascending order, the launcher's record and the facts where dptune recorded the run, and findings.

    `ranks` have their events; of `digested` only the digest was kept. `repeats` are the facts of all ranks of further
    processes in which the same script was timed, without traces. `rank_basis` says where the rank numbers come from;
    `sources` are the files that were read.
    """

    ranks: list[RankTrace]
    record: RunRecord | None = None
    facts: dict[int, Facts] = field(default_factory=dict)
    repeats: list[list[Facts]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    rank_basis: str = ""
    sources: list[str] = field(default_factory=list)
    digested: list[RankTrace] = field(default_factory=list)

    @cached_property
    def every_rank(self) -> list[RankTrace]:
        """The ranks with events and those with a digest only, in ascending order."""
        return sorted([*self.ranks, *self.digested], key=lambda rank: rank.rank)

    @cached_property
    def by_rank(self) -> dict[int, RankTrace]:
        """Each of them by its number."""
        return {rank.rank: rank for rank in self.every_rank}

    @cached_property
    def world_sizes(self) -> dict[str, Counter[int]]:
        """Claims of how many ranks the run had, and how often each is made: by run.json, the facts and the traces."""
        claims: dict[str, list[int | None]] = {
            "run.json": [self.record.world_size] if self.record is not None else [],
            "the facts": [facts.world_size for facts in self.facts.values()],
            "the traces": [rank.light.distributed.world_size for rank in self.every_rank],
        }
        counted = {
            source: Counter(size for size in sizes if size and 0 < size <= MOST_RANKS)
            for source, sizes in claims.items()
        }
        return {source: sizes for source, sizes in counted.items() if sizes}

    @cached_property
    def world_size(self) -> int | None:
        """How many ranks the run had, as most claims agree, of equals that of run.json; None where nothing says.

        At least the highest rank that was read, plus one.
        """
        least = max([*self.by_rank, *self.facts], default=-1) + 1
        votes = sum(self.world_sizes.values(), Counter[int]())
        recorded = self.world_sizes.get("run.json", Counter())
        claimed = max(votes, key=lambda size: (size >= least, votes[size], recorded[size], size), default=None)
        return None if claimed is None else max(claimed, least)
