"""What the devices of a run did, as items in order of time, each with what it waits for.

An item is a call of the host that launches or waits, or the begin or the end of an operation of a device, or stands for
the last begin of a collective. It comes to pass when the last of what it waits for has, and some time has gone by: an
edge. Run again as recorded, every item comes to pass when it did; a change makes edges longer or shorter, or takes them
away.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import fmean, median

import numpy as np

from dptune.measure.intervals import Ints
from dptune.whatif.cpu.shared_link import Link
from dptune.whatif.gpu.assumed import Assumed
from dptune.whatif.gpu.columns import Columns, Floats
from dptune.whatif.gpu.gathers import Gather
from dptune.whatif.gpu.graph import COMPUTING, MATCHED, Edge, Kind, Message, Stretch
from dptune.whatif.gpu.parts import Part
from dptune.whatif.gpu.reductions import Reduction
from dptune.whatif.gpu.replaying import Replay
from dptune.whatif.gpu.sharing import Transfer
from dptune.whatif.gpu.spans import held, joined
from dptune.whatif.gpu.unit_hooks import UNKNOWN
from dptune.whatif.gpu.unit_reductions import UnitReduction

_ENOUGH = 3  # steps of a rank of which the first does not count


SEVERAL = 3  # ranks of a collective from which on one item stands for all their begins: fewer edges
_OF_EDGES = (
    "columns",
    "rank_of",
    "settled",
    "_replay",
    "_replayed",
    "_hosts_ns",
)  # what is computed of edges and steps alone


@dataclass(frozen=True, eq=False)
class Program:
    """`recorded_ns` is when each item came to pass, by the first rank's clock; `edges` what it waits for.

    An item without edges comes to pass when it did, as do `fixed` ones: all before a rank's first step, of which only
    the host's edges are known. `link` is None if not known, else that of collectives of `link_ranks` ranks; 0: of all;
    of groups that lie as `link_offsets`, if that is not empty.
    The data allow `other_links`, too; `link_source` says in words what the link is from, where that is no fit.
    `batch` are the samples that a rank's loader gives at once, None if not known. The ranks were on so many `hosts`, as
    far as that is known; `shared`: two or more compute on one GPU. `reductions` are the passes in which DDP reduces
    gradients, `gathers` the units that FSDP gathers, `unit_reductions` those whose gradients it reduces; `unit_share`
    of the host's time in their hooks each unit takes whatever it holds; `unit_gradients`: by unit the elements of its
    gradients, where these are known. By item there are its rank in `ranks`, the micro-batch that launched it in
    `micro_batches`, and flags of `Part` in `parts`; the latter two are empty where neither is known.
    `transfers` are collectives that may share links with others of their ranks, each of which adds `slowed` of the time
    that one takes alone; none where each rank has its collectives on one stream. `host_level`: the host's work in the
    mean step / in the steps where it is known, which some are. `spent_ns`: by part and place of a host item, how much
    of the host's own time before the item went into the part. `uploads`: the bytes of copies from pageable memory to
    the device, by place of their end. `queues`: the number of the launch queue of an operation, by place of its begin,
    where that is not queue 0 of its rank. `beside`: by place of a kernel's end, the share of its recorded time in which
    collectives of its rank transferred; `beside_times`: how many times as long a kernel takes during transfers.
    `transfer_shares`: by message, the share of its recorded transfer in which one of its ranks computed, empty if the
    trace does not show what that does; `transfer_times`: how many times as long a transfer takes while one does.
    `optimizer` is how it updates: "fused", "foreach", "loop", or empty if unknown. `peaks` are FLOP/s of the device by
    element type, `gpu` is what all devices of one model call themselves; both are empty if unknown. `workers` is the
    number of processes that load batches, None if unknown; `has_workers`: there are some. `added_times`: the host's
    time for a call that a change adds / for the same call in the trace, which the profiler slows. `again`: numbers of
    steps that count once more in a mean, for recorded ones of their kind that are no steps of the program.
    """

    recorded_ns: Sequence[int]
    edges: Sequence[Sequence[Edge]]
    messages: Sequence[Message]
    steps: Sequence[Stretch]
    link: Link | None
    world_size: int
    samples: float | None = None
    batch: int | None = None
    hosts: int = 1
    other_links: tuple[Link, ...] = ()
    link_source: str = ""
    link_ranks: int = 0
    link_offsets: tuple[int, ...] = ()
    reductions: Sequence[Reduction] = ()
    ranks: Sequence[int] = ()
    micro_batches: Sequence[int] = ()
    parts: Sequence[int] = ()
    optimizer: str = ""
    peaks: Mapping[str, float] = field(default_factory=dict)
    gpu: str = ""
    workers: int | None = None
    has_workers: bool = False
    gathers: Sequence[Gather] = ()
    unit_reductions: Sequence[UnitReduction] = ()
    unit_share: Assumed = UNKNOWN
    unit_gradients: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    shared: bool = False
    transfers: Sequence[Transfer] = ()
    slowed: float = 1.0
    host_level: float = 1.0
    fixed: AbstractSet[int] = frozenset()
    spent_ns: Mapping[Part, Mapping[int, float]] = field(default_factory=dict)
    uploads: Mapping[int, int] = field(default_factory=dict)
    queues: Mapping[int, int] = field(default_factory=dict)
    beside: Mapping[int, float] = field(default_factory=dict)
    beside_times: float = 1.0
    transfer_shares: Mapping[int, float] = field(default_factory=dict)
    transfer_times: float = 1.0
    added_times: float = 1.0
    again: Sequence[int] = ()

    def run(self, lag_ns: Floats | None = None) -> Sequence[float]:
        """When each item comes to pass; replayed once, but where edges take other times (`lag_ns`)."""
        return self._replayed if lag_ns is None else self._replay.times(lag_ns)

    @cached_property
    def _replayed(self) -> Sequence[float]:
        return self._replay.times(self.columns.lag_ns)

    @cached_property
    def _replay(self) -> Replay:
        return Replay(self.columns, self.recorded_ns, self.fixed, self.transfers, self.slowed)

    @cached_property
    def columns(self) -> Columns:
        """The edges as columns."""
        return Columns.of(self.edges)

    @cached_property
    def rank_of(self) -> Ints:
        """By item its rank; 0 where no ranks are known."""
        return np.array(self.ranks or [0] * len(self.edges), dtype=np.int64)

    def places(self, kinds: Collection[Kind]) -> Sequence[int]:
        """In order the places of the items that have an edge of these kinds."""
        places: list[int] = self.columns.places(kinds).tolist()
        return places

    def begins(self, end: int) -> list[int]:
        """The places of the begins that the end of a collective waits for, in the order of its ranks."""
        waited = (edge.item for edge in self.edges[end] if edge.kind in MATCHED)
        arrivals = ([edge.item for edge in self.edges[item] if edge.kind == Kind.ARRIVAL] or [item] for item in waited)
        return [begin for each in arrivals for begin in each]

    def edited(self, edges: Sequence[Sequence[Edge]]) -> Program:
        """The program with other edges."""
        return self._keeping(("rank_of", "settled"), edges=edges)

    def retimed(self, edges: Sequence[Sequence[Edge]], columns: Columns) -> Program:
        """The program whose edges take other times: they wait for the same items; `columns` are theirs."""
        return self._keeping(("rank_of", "settled", "_replay"), edges=edges).knowing(columns)

    def knowing(self, columns: Columns) -> Program:
        """This program, the columns of whose edges are known already."""
        self.__dict__["columns"] = columns
        return self

    def over(self, link: Link, others: tuple[Link, ...] = (), source: str = "") -> Program:
        """The program with this link, other ones and their source: unchanged, it is replayed the same."""
        return self._keeping(_OF_EDGES, link=link, other_links=others, link_source=source)

    def among(self, ranks: int, offsets: tuple[int, ...] = ()) -> Program:
        """The program whose link is that of collectives of so many ranks, in groups that lie so."""
        return self._keeping(_OF_EDGES, link_ranks=ranks, link_offsets=offsets)

    def uses_link(self, message: Message) -> bool:
        """Whether a collective is of a group like that of the link: others may be within hosts, or between them.

        What one rank sends to another uses the same link.
        """
        if message.kind == "p2p" or not self.link_ranks or not message.ranks:
            return True
        lie_alike = not self.link_offsets or not message.offsets or message.offsets == self.link_offsets
        return message.ranks == self.link_ranks and lie_alike

    def contending(self, shares: Mapping[int, float], times: float) -> Program:
        """The program whose transfers take so many times as long while a rank computes, of these shares as recorded."""
        return self._keeping(_OF_EDGES, transfer_shares=shares, transfer_times=times)

    def counting(self, again: Sequence[int]) -> Program:
        """The program of which these steps count once more."""
        return self._keeping(_OF_EDGES, again=again)

    def spending(self, spent_ns: Mapping[Part, Mapping[int, float]]) -> Program:
        """The program of whose host's time other amounts go into parts."""
        return self._keeping(_OF_EDGES, spent_ns=spent_ns)

    def _keeping(self, computed: Sequence[str], **fields: object) -> Program:
        """The program with other fields, and with what was computed of this one and holds for both."""
        other = replace(self, **fields)  # type: ignore[arg-type]
        other.__dict__.update({name: self.__dict__[name] for name in computed if name in self.__dict__})
        return other

    def recorded_step_ns(self) -> float:
        """The same as `step_ns`, of the times at which the items came to pass."""
        return self._mean_step(self.recorded_ns, self._counted)

    def step_ns(self, lag_ns: Floats | None = None) -> float:
        """The median over ranks of each rank's mean settled step; `lag_ns`: if edges took other times.

        The mean, because where one step ends and the next begins moves with what is changed. Of the device, or of what
        the host does, whichever takes longer: a device with much work launched ahead is quicker than its host for a few
        steps.
        """
        return float(median(self.by_rank_ns(lag_ns).values()))

    def by_rank_ns(self, lag_ns: Floats | None = None) -> dict[int, float]:
        """The same of each rank."""
        if lag_ns is None:
            return self._mean_steps(self.run(), self._counted)
        return self._mean_steps(self.run(lag_ns), self._counted, self._hosts(lag_ns))

    def levelled(self) -> Program:
        """The same, whose host does not limit the recorded step beyond what that took on the device."""
        of_both, on_device = self.recorded_step_ns(), self._levelled(0.0).recorded_step_ns()
        return self._levelled(on_device / of_both) if of_both > on_device > 0 else self

    def _levelled(self, level: float) -> Program:
        return self._keeping(_OF_EDGES, host_level=level)

    @cached_property
    def settled(self) -> frozenset[int]:
        """The places of the steps that count: without a rank's first, if it has three.

        What comes before the first step is as recorded, so with a change its ranks start as far apart, and its host as
        far ahead, as they were.
        """
        count = Counter(step.rank for step in self.steps)
        first: dict[int, int] = {}
        for step in self.steps:
            first[step.rank] = min(step.number, first.get(step.rank, step.number))
        return frozenset(
            place
            for place, step in enumerate(self.steps)
            if count[step.rank] < _ENOUGH or step.number > first[step.rank]
        )

    def busy_ns(self) -> float:
        """How long kernels other than collectives run in the mean settled step: the median over ranks.

        No step is shorter than that. Kernels that run at the same time count once.
        """
        return self._busy_ns

    @cached_property
    def _busy_ns(self) -> float:
        times, columns = self.run(), self.columns
        computing = columns.of_kinds(COMPUTING)
        place, moments = columns.place[computing], np.array(times, dtype=np.float64)
        begin, end = moments[columns.item[computing]], moments[place]
        of_rank = self.rank_of[place]
        spans: dict[int, list[tuple[float, float]]] = defaultdict(list)
        for at, step in enumerate(self.steps):
            if at in self.settled:
                spans[step.rank].append((times[step.first], times[step.last]))
        busy: dict[int, list[float]] = {}
        for rank in np.unique(of_rank[end > begin]).tolist():
            ran = (of_rank == rank) & (end > begin)
            begins, ends = joined(begin[ran], end[ran])
            busy[rank] = [held(begins, ends, *span) for span in spans[rank]]
        return float(median([fmean(each) for each in busy.values() if each] or [0.0]))

    def by_number(self, times: Sequence[float]) -> dict[int, float]:
        """How long each settled step takes, by its number: the median over ranks."""
        took: dict[int, list[float]] = defaultdict(list)
        for step in (self.steps[place] for place in sorted(self.settled)):
            took[step.number].append(times[step.last] - times[step.first])
        return {number: float(median(durations)) for number, durations in took.items()}

    def halves_ns(self, groups: Sequence[Sequence[int]] = ()) -> tuple[float, float]:
        """The same of every second step, and of the others; of steps that take turns (`groups`) of each group.

        `groups` are the numbers of their steps.
        """
        times, group = self.run(), {number: at for at, numbers in enumerate(groups) for number in numbers}
        halves = self._halved(group)
        if not all(halves):  # one step of each group
            halves = self._halved({})
        first, second = (self._mean_step(times, half) for half in halves)
        return first, second

    def _halved(self, group: Mapping[int, int]) -> tuple[set[int], set[int]]:
        """The places of every second step of each rank and group, and those of the others."""
        count: Counter[tuple[int, int]] = Counter()
        halves: tuple[set[int], set[int]] = set(), set()
        for place, step in enumerate(self.steps):
            key = step.rank, group.get(step.number, -1)
            halves[count[key] % 2].add(place)
            count[key] += 1
        return halves

    @cached_property
    def _counted(self) -> list[int]:
        """The settled steps, and for each one that does not count that of its rank which took as long, once more.

        Where some steps take longer, as those with an evaluation, they are as many of the mean as were recorded.
        """
        found, of_rank = sorted(self.settled), defaultdict[int, list[int]](list)
        for place in found:
            of_rank[self.steps[place].rank].append(place)
        for place, step in enumerate(self.steps):
            if place not in self.settled:
                alike = self._recorded_step_ns(place)
                found.append(min(of_rank[step.rank], key=lambda other: abs(self._recorded_step_ns(other) - alike)))
        settled = sorted(self.settled)
        return found + [place for number in self.again for place in settled if self.steps[place].number == number]

    def _recorded_step_ns(self, place: int) -> int:
        step = self.steps[place]
        return self.recorded_ns[step.last] - self.recorded_ns[step.first]

    def _mean_step(self, times: Sequence[float], part: Iterable[int]) -> float:
        return float(median(self._mean_steps(times, part).values()))

    def _mean_steps(
        self, times: Sequence[float], part: Iterable[int], hosts_ns: Sequence[float | None] = ()
    ) -> dict[int, float]:
        """By rank the mean of these steps; `hosts_ns` are by step what its host does, else as edges have it."""
        each_ns = hosts_ns or self._hosts_ns
        took: dict[int, list[float]] = defaultdict(list)
        recorded: dict[int, list[float]] = defaultdict(list)
        worked: dict[int, list[tuple[float, float]]] = defaultdict(list)
        for place in part:
            step = self.steps[place]
            recorded_ns = float(self._recorded_step_ns(place))
            host_ns = each_ns[place]
            took[step.rank].append(times[step.last] - times[step.first])
            recorded[step.rank].append(recorded_ns)
            if host_ns is not None:
                worked[step.rank].append((host_ns, recorded_ns))
        return {
            rank: max(fmean(each), self.host_level * _of_all(worked[rank], recorded[rank]))
            for rank, each in took.items()
        }

    @cached_property
    def _hosts_ns(self) -> list[float | None]:
        return self._hosts(self.columns.lag_ns)

    def _hosts(self, lag_ns: Floats) -> list[float | None]:
        return self.columns.host_between_ns(lag_ns, [step.calls for step in self.steps])


def _of_all(worked: Sequence[tuple[float, float]], recorded: Sequence[float]) -> float:
    """The host's work in the mean step, by that in some steps and how long these and all took as recorded."""
    known_ns = sum(recorded_ns for _, recorded_ns in worked)
    return sum(host_ns for host_ns, _ in worked) / known_ns * fmean(recorded) if known_ns > 0 else 0.0
