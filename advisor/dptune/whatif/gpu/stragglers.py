"""A rank that is no longer late, or work that is spread evenly, in a program.

Ranks run the same script, so the nth call that launches something in a step of one rank does what the nth call of the
others does: kernels and copies, the gaps before them, and what the host did before the call, are compared with the same
call's on the others. Where ranks launch different numbers of operations, whole steps are compared.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from statistics import fmean, median
from typing import NamedTuple

import numpy as np

from dptune.knobs import Value
from dptune.measure.intervals import Ints, Mask
from dptune.measured import Missing
from dptune.whatif.cpu.topology import ALONE
from dptune.whatif.gpu.editing import retimed
from dptune.whatif.gpu.graph import COMPUTING, MATCHED, Kind
from dptune.whatif.gpu.host_work import HostWork
from dptune.whatif.gpu.program import Program

_DEVICE = frozenset({*COMPUTING, Kind.COPY})
_HOST = frozenset({Kind.HOST, Kind.UPDATING, Kind.INPUT})
_GAPS = frozenset({Kind.ORDER})
_PASSES = frozenset({Kind.HOST})
_Key = tuple[int, int]  # step, the number of a call in it
_Spent = Mapping[_Key, Mapping[int, float]]  # by what is the same, what each rank spends on it


class _Keys(NamedTuple):
    """By edge, or by item, the step, the number of the call in it, and whether they are known."""

    step: Ints
    call: Ints
    known: Mask

    @classmethod
    def unknown(cls, count: int) -> _Keys:
        """Of so many, none of which is known."""
        return cls(np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.bool_))

    def of(self, places: Ints) -> _Keys:
        """Those at these places."""
        return _Keys(self.step[places], self.call[places], self.known[places])

    def know(self, place: int | Ints, step: int | Ints, call: int | Ints) -> None:
        """Set those at a place."""
        self.step[place], self.call[place], self.known[place] = step, call, True


_KeysOf = Callable[[frozenset[Kind], Ints], _Keys]  # of edges of some kinds, by their numbers


def without_straggler(program: Program, value: Value) -> Program:
    """The rank that arrives latest takes as long as the median of the others, in the steps in which it takes longer.

    A rank that is late in some steps takes over no delay of others in the rest, and its host varies as before.
    """
    if not value:
        return program
    late = latest(program)

    def median_of_others(spent: _Spent) -> dict[_Key, dict[int, float]]:
        known = {key: of_ranks for key, of_ranks in spent.items() if of_ranks.get(late) and len(of_ranks) > 1}
        others = {key: median(ns for rank, ns in of_ranks.items() if rank != late) for key, of_ranks in known.items()}
        longer_ns: dict[int, float] = defaultdict(float)
        for key, of_ranks in known.items():
            longer_ns[key[0]] += of_ranks[late] - others[key]
        return {key: {late: others[key] / of_ranks[late]} for key, of_ranks in known.items() if longer_ns[key[0]] > 0}

    calls = _calls(program)
    keys_of = calls or _steps(program)
    for kinds in (_DEVICE, _HOST, _GAPS):
        of_calls = kinds == _HOST and calls is not None
        program = _evened(program, kinds, keys_of, HostWork(late).factors if of_calls else median_of_others)
    return program


def balanced(program: Program, value: Value) -> Program:
    """The kernels of each step take the mean over ranks of what they took, and so does what hosts do for its passes.

    By chance, hosts still vary as they did from step to step.
    """
    if not value:
        return program
    latest(program)
    ranks = len(set(program.ranks))

    def mean_of_all(spent: _Spent) -> dict[_Key, dict[int, float]]:
        means = {key: fmean(of_ranks.values()) for key, of_ranks in spent.items() if len(of_ranks) == ranks}
        return {key: {rank: mean_ns / ns for rank, ns in spent[key].items() if ns} for key, mean_ns in means.items()}

    calls = _calls(program)
    keys_of = calls or _steps(program)
    for kinds in (COMPUTING, _PASSES):
        of_calls = kinds == _PASSES and calls is not None
        program = _evened(program, kinds, keys_of, HostWork().factors if of_calls else mean_of_all)
    return program


def latest(program: Program) -> int:
    """The rank that arrives latest at collectives, in the mean. Raises Missing where ranks share none."""
    late: dict[int, list[int]] = defaultdict(list)
    for place in program.places(MATCHED):
        begins = program.begins(place)
        if begins and program.ranks[place] == program.ranks[begins[0]]:  # each collective once
            first = min(program.recorded_ns[begin] for begin in begins)
            for begin in begins:
                late[program.ranks[begin]].append(program.recorded_ns[begin] - first)
    if len(late) < 2:
        raise Missing(ALONE if program.world_size == 1 else "no collective was matched on all its ranks")
    return max(late, key=lambda rank: fmean(late[rank]))


def _evened(
    program: Program,
    kinds: frozenset[Kind],
    keys_of: _KeysOf,
    factors_of: Callable[[_Spent], dict[_Key, dict[int, float]]],
) -> Program:
    """Edges of these kinds so many times as long as `factors_of` says, of what the ranks spend on the same."""
    columns = program.columns
    rows = np.flatnonzero(columns.of_kinds(kinds))
    keys = keys_of(kinds, rows)
    rows, keys = rows[keys.known], keys.of(np.flatnonzero(keys.known))
    if not len(rows):
        return program
    each, number = _distinct(keys.step, keys.call, program.rank_of[columns.place[rows]])
    spent: defaultdict[_Key, dict[int, float]] = defaultdict(dict)
    for (step, call, rank), ns in zip(each, np.bincount(number, columns.lag_ns[rows]).tolist(), strict=True):
        spent[step, call][rank] = ns
    factors = factors_of(spent)
    none: Mapping[int, float] = {}
    factor = np.array([factors.get((step, call), none).get(rank, 1.0) for step, call, rank in each])
    return retimed(program, rows, columns.lag_ns[rows] * factor[number])


def _distinct(*columns: Ints) -> tuple[list[list[int]], Ints]:
    """The distinct rows of these columns, in order, and by row which one it is."""
    order = np.lexsort(columns[::-1])
    rows = np.stack(columns, axis=1)[order]
    first = np.append(True, (rows[1:] != rows[:-1]).any(axis=1))
    number = np.empty(len(order), dtype=np.int64)
    number[order] = np.cumsum(first) - 1
    return rows[first].tolist(), number


def _steps(program: Program) -> _KeysOf:
    """The step in which an item was recorded."""
    begins: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for step in program.steps:
        begins[step.rank].append((program.recorded_ns[step.first], step.number))
    recorded_ns = np.array(program.recorded_ns, dtype=np.int64)
    keys = _Keys.unknown(len(recorded_ns))
    for rank, each in begins.items():
        starts, numbers = np.array(sorted(each), dtype=np.int64).T
        (items,) = np.nonzero(program.rank_of == rank)
        at = np.searchsorted(starts, recorded_ns[items], side="right") - 1
        keys.know(items[at >= 0], numbers[at[at >= 0]], 0)
    return lambda _kinds, rows: keys.of(program.columns.place[rows])


def _calls(program: Program) -> _KeysOf | None:
    """The call that launched an operation, or that the host came to; None where ranks launch different numbers."""
    columns = program.columns
    launches = np.flatnonzero(columns.of_kinds((Kind.LAUNCH,)))
    begins, launching = columns.place[launches], columns.item[launches]
    of_items, of_calls = _Keys.unknown(columns.count), _Keys.unknown(columns.count)
    counts: list[Counter[int]] = []
    distinct = np.unique(launching)
    for rank in np.unique(program.rank_of[distinct]).tolist():
        steps = sorted((step.calls[0], step.number) for step in program.steps if step.rank == rank and step.calls)
        if not steps:
            return None
        calls = distinct[program.rank_of[distinct] == rank]
        starts, numbers = np.array(steps, dtype=np.int64).T
        in_step = np.searchsorted(starts, calls, side="right") - 1
        step = np.where(in_step >= 0, numbers[in_step], numbers[0] - 1)
        counts.append(Counter(step.tolist()))
        of_calls.know(calls, step, _numbered(in_step))
        (items,) = np.nonzero(program.rank_of == rank)
        following = np.searchsorted(calls, items)
        items, following = items[following < len(calls)], following[following < len(calls)]
        key = of_calls.of(calls[following])
        of_items.know(items, key.step, key.call)
    inner = {step.number for step in program.steps if step.calls}
    by_step = [{of_rank[number] for of_rank in counts} for number in inner]
    if not by_step or any(len(numbers) != 1 for numbers in by_step):
        return None
    of_begins = _Keys.unknown(columns.count)
    for stretch in program.steps:  # launched before the first step: as recorded
        of_begins.know(stretch.first, stretch.number, -1)
    of_begins.know(begins, *of_calls.of(launching)[:2])

    def of(kinds: frozenset[Kind], rows: Ints) -> _Keys:
        if kinds <= _HOST:
            return of_items.of(columns.place[rows])
        return of_begins.of(columns.place[rows] if kinds <= _GAPS else columns.item[rows])

    return of


def _numbered(steps: Ints) -> Ints:
    """By call its number in its step; calls of a step follow each other."""
    first = np.searchsorted(steps, steps)
    return np.arange(len(steps)) - first
