"""Ranks whose collectives cannot be of one run: some are missing, sizes or groups differ, or other steps are traced.

Every rank of a group calls its symmetric collectives, so that in the same step all make as many, and its all-reduces
have the same sizes on all of them. In none of the public traces of several ranks do they differ.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from dptune.measure.communication.calls import Call
from dptune.measure.communication.matching import RankCalls
from dptune.measure.device.completeness import LEAST
from dptune.measure.device.operations import MOST_LOST
from dptune.measured import Loss
from dptune.measured.collectives import collective
from dptune.runfile.ranks import spans

_MOST_LACKING = 0.1  # of the collectives of a few steps

_Key = tuple[str | None, str | None, str]  # group, members, kind


def not_of_one_run(ranks: Sequence[RankCalls], world_size: int | None) -> list[tuple[int, Loss]]:
    """What the collectives of a rank have that no run can, by rank."""
    grouped = _by_group(ranks, world_size)
    return [*_lacking(ranks, grouped), *_sizes(grouped), *_groups(ranks, world_size), *_steps(ranks)]


def _by_group(ranks: Sequence[RankCalls], world_size: int | None) -> dict[_Key, dict[int, dict[int, list[Call]]]]:
    """The symmetric collectives of groups of which all ranks were read, by group and kind, by rank, by step."""
    found: dict[_Key, dict[int, dict[int, list[Call]]]] = {}
    sizes: dict[str | None, int] = {}
    for recorded in ranks:
        for call in recorded.calls:
            if collective(call.kind).symmetric and not call.ambiguous:
                of_rank = found.setdefault((call.group, call.members, call.kind), {}).setdefault(recorded.rank, {})
                of_rank.setdefault(recorded.numbers[call.step], []).append(call)
                sizes[call.group] = call.group_size or world_size or 0
    return {key: of_ranks for key, of_ranks in found.items() if 1 < len(of_ranks) == sizes[key[0]]}


def _lacking(
    ranks: Sequence[RankCalls], grouped: dict[_Key, dict[int, dict[int, list[Call]]]]
) -> list[tuple[int, Loss]]:
    """Collectives that all other ranks of the group ran in the same step.

    A rank ran none in a step that it has, if it ran some in a later one: kernels may outlast the recording.
    """
    numbers: dict[int, set[int]] = defaultdict(set)
    for recorded in ranks:
        numbers[recorded.rank].update(recorded.numbers)
    lacking, total = Counter[int](), Counter[int]()
    for of_ranks in grouped.values():
        for step in {step for steps in of_ranks.values() for step in steps}:
            counts = {
                rank: len(steps.get(step, ()))
                for rank, steps in of_ranks.items()
                if step in steps or (step in numbers[rank] and step < max(steps))
            }
            if len(counts) == len(of_ranks):
                most = max(counts.values())
                total.update(dict.fromkeys(counts, most))
                lacking.update({rank: most - count for rank, count in counts.items()})
    return [
        _loss(
            rank,
            "collectives-differ",
            f"{count:,} of {total[rank]:,} collectives that the other ranks ran in the same steps {_be(count)} not in "
            "its trace: events were lost, or the ranks do not run the same steps",
            fatal=count > min(max(MOST_LOST * total[rank], LEAST), _MOST_LACKING * total[rank]),
        )
        for rank, count in lacking.items()
        if count
    ]


def _sizes(grouped: dict[_Key, dict[int, dict[int, list[Call]]]]) -> list[tuple[int, Loss]]:
    """All-reduces of sizes that the group's first rank does not have in the same step, where it has as many."""
    other, total, first_of = Counter[int](), Counter[int](), dict[int, int]()
    for (_, _, kind), of_ranks in grouped.items():
        first, *rest = sorted(of_ranks)
        for rank in rest if kind == "all_reduce" else ():
            for step, calls in of_ranks[rank].items():
                ours, theirs = _bytes(calls), _bytes(of_ranks[first].get(step, []))
                if ours.total() == theirs.total() and None not in ours and None not in theirs:
                    total[rank] += ours.total()
                    other[rank] += (ours - theirs).total()
                    first_of[rank] = first
    return [
        _loss(
            rank,
            "sizes-differ",
            f"{count:,} of {total[rank]:,} all-reduces {_be(count)} of another size than on rank {first_of[rank]} in "
            "the same steps: the traces are of different runs, or the sizes are wrong",
            fatal=count > max(MOST_LOST * total[rank], LEAST),
        )
        for rank, count in other.items()
        if count
    ]


def _bytes(calls: Sequence[Call]) -> Counter[int | None]:
    return Counter(call.message_bytes for call in calls)


def _groups(ranks: Sequence[RankCalls], world_size: int | None) -> list[tuple[int, Loss]]:
    largest: dict[int, int] = {}
    for recorded in ranks:
        sizes = [call.group_size or 0 for call in recorded.calls]
        largest[recorded.rank] = max([largest.get(recorded.rank, 0), *sizes])
    return [
        _loss(rank, "group-too-large", f"its collectives have groups of {size} ranks, but the run has {world_size}")
        for rank, size in largest.items()
        if world_size and size > world_size
    ]


def _steps(ranks: Sequence[RankCalls]) -> list[tuple[int, Loss]]:
    """Ranks that share less than half of their step numbers with most others."""
    numbers: dict[int, frozenset[int]] = {}
    for recorded in ranks:
        numbers[recorded.rank] = numbers.get(recorded.rank, frozenset()) | frozenset(recorded.numbers)
    numbers = {rank: steps for rank, steps in numbers.items() if steps}
    if not numbers:
        return []
    usual, _ = Counter(numbers[rank] for rank in sorted(numbers)).most_common(1)[0]
    first = min(rank for rank, steps in numbers.items() if steps == usual)
    return [
        _loss(
            rank,
            "steps-not-shared",
            f"its traced steps are {spans(steps)}, those of rank {first} {spans(usual)}: collectives are compared in "
            "steps of the same number only",
        )
        for rank, steps in numbers.items()
        if 2 * len(steps & usual) < min(len(steps), len(usual))
    ]


def _be(count: int) -> str:
    return "is" if count == 1 else "are"


def _loss(rank: int, code: str, text: str, fatal: bool = False) -> tuple[int, Loss]:
    return rank, Loss(code=code, fatal=fatal, text=text)
