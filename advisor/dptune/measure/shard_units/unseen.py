"""What a trace does not show of units: ranks or passes without ranges, units without names, collectives of no unit."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from dptune.measure.communication.matching import RankCalls
from dptune.measure.device.phases import DeviceTimeline
from dptune.measure.shard_units.events import UnitEvents, step_of
from dptune.measure.steps.windows import OUTSIDE
from dptune.measure.views import RankView
from dptune.measured import Pass
from dptune.measured.figure import digits
from dptune.runfile.communication import FsdpFacts
from dptune.runfile.facts import Facts
from dptune.runfile.ranks import spans
from dptune.trace.kernels import RANGE_CATEGORIES

_SECOND = 2  # version of FSDP
_FEW = 3  # that are named
_BACKWARD_ENDS = re.compile(r"FSDP::root_post_backward_callback$")
_GATHER, _REDUCE = "all_gather", "reduce_scatter"
_NAMES = {_GATHER: "all-gathers", _REDUCE: "reduce-scatters"}
PASSES: tuple[Pass, Pass] = ("forward", "backward")

_Key = tuple[str, Pass, str]  # unit, pass, kind


def unseen(
    spent: Sequence[DeviceTimeline],
    found: Sequence[UnitEvents],
    ranks: Sequence[RankCalls],
    facts: Mapping[int, Facts],
) -> list[str]:
    """Sentences without a full stop; none where all ranks show all units. `found`: of each of `spent`.

    `ranks`: the collectives in steps, of which some may be those of units without ranges.
    """
    if not any(events.calls for events in found):
        return []
    return [
        *_ranks_without_units(spent, found),
        *_ranks_apart(spent, found),
        *_units_without_ranges(found, facts),
        *_units_without_names(spent, found),
        *_other_settings(spent, found, facts),
        *_passes_without_starts(found),
        *_gathers_of_no_pass(found),
        *(() if _all_seen(found, facts) else _of_no_unit(spent, found, ranks)),
    ]


def _ranks_without_units(spent: Sequence[DeviceTimeline], found: Sequence[UnitEvents]) -> Iterator[str]:
    without = sorted({view.rank for (view, _, _), events in zip(spent, found, strict=True) if not events.calls})
    if without:
        have = "has" if len(without) == 1 else "have"
        yield f"{_listed(without)} {have} no ranges of units"


def _ranks_apart(spent: Sequence[DeviceTimeline], found: Sequence[UnitEvents]) -> Iterator[str]:
    """The ranks of a process group issue the same in the same order: compared in the steps that its first rank has too.

    Other groups may hold other units, as the stages of a pipeline do.
    """
    for alike in _by_group(spent, found).values():
        (first, usual), *others = [(view.rank, _by_step(view, events)) for view, events in alike]
        apart = sorted(
            {rank for rank, steps in others if any(steps[number] != usual[number] for number in steps.keys() & usual)}
        )
        if apart:
            yield f"units or collectives of {_listed(apart)} differ from those of rank {first:,}"


def _by_group(
    spent: Sequence[DeviceTimeline], found: Sequence[UnitEvents]
) -> dict[frozenset[str], list[tuple[RankView, UnitEvents]]]:
    """The ranks that have units, by the members of their process groups."""
    groups: dict[frozenset[str], list[tuple[RankView, UnitEvents]]] = {}
    for (view, _, _), events in zip(spent, found, strict=True):
        if events.calls:
            members = frozenset(each.call.members for each in events.calls if each.call.members is not None)
            groups.setdefault(members, []).append((view, events))
    return groups


def _by_step(view: RankView, events: UnitEvents) -> dict[int, list[_Key]]:
    steps: dict[int, list[_Key]] = {}
    for each in events.calls:
        steps.setdefault(view.steps[each.step].number, []).append((each.unit, each.direction, each.call.kind))
    return steps


def _units_without_ranges(found: Sequence[UnitEvents], facts: Mapping[int, Facts]) -> Iterator[str]:
    if any(events.numbered for events in found):
        return
    sharded, seen = _sharded(facts), {each.unit for events in found for each in events.calls}
    recorded = {name for fsdp in sharded for name in fsdp.names}
    if left := recorded - seen:
        whole = f"{len(left):,} of {len(recorded):,} recorded units"
        yield f"{whole} have no ranges around their collectives and are not listed"
    units = sum(fsdp.units for fsdp in sharded)
    if not recorded and len(seen) < units:
        yield f"{units:,} units were recorded, but ranges name {len(seen):,}"


def _all_seen(found: Sequence[UnitEvents], facts: Mapping[int, Facts]) -> bool:
    """Whether each recorded unit has ranges: what is outside of them the script gathers itself."""
    recorded = {name for fsdp in _sharded(facts) for name in fsdp.names}
    return bool(recorded) and recorded <= {each.unit for events in found for each in events.calls}


def _sharded(facts: Mapping[int, Facts]) -> list[FsdpFacts]:
    """What the lowest rank recorded of units with parameters."""
    return [fsdp for fsdp in (facts[min(facts)].fsdp if facts else []) if fsdp.mesh]


def _other_settings(
    spent: Sequence[DeviceTimeline], found: Sequence[UnitEvents], facts: Mapping[int, Facts]
) -> Iterator[str]:
    """Settings that the trace contradicts: it is then not known which of them the run had."""
    sharded = _sharded(facts)
    again = any((each.call.kind, each.direction) == (_GATHER, "backward") for events in found for each in events.calls)
    if again and sharded and all(fsdp.reshard_after_forward is False for fsdp in sharded):
        yield "reshard_after_forward=False was recorded, but backward passes gather units again"
    sizes = {each.call.group_size for events in found for each in events.calls if each.call.group_size}
    meshes = {fsdp.mesh[-1] for fsdp in sharded if fsdp.version == _SECOND}
    if sizes and len(meshes) == 1 and sizes.isdisjoint(meshes):
        yield f"a mesh of {meshes.pop():,} ranks was recorded, but units communicate among {min(sizes):,}"
    if len(_by_group(spent, found)) == 1 and len({_as_text(of_rank) for of_rank in facts.values()}) > 1:
        yield "ranks recorded different settings of FSDP; those of the lowest rank are shown"


def _as_text(facts: Facts) -> str:
    return repr(sorted(repr((fsdp.version, fsdp.units, fsdp.mesh, fsdp.reshard_after_forward)) for fsdp in facts.fsdp))


def _units_without_names(spent: Sequence[DeviceTimeline], found: Sequence[UnitEvents]) -> Iterator[str]:
    """The root reduces its gradients once in a backward pass: more reductions without a name are of several units."""
    for (view, _, _), events in zip(spent, found, strict=True):
        columns = view.columns
        rows = columns.rows(RANGE_CATEGORIES, _BACKWARD_ENDS.match)
        passes = Counter(step_of(columns.ts_ns[rows], view.steps).tolist())
        reduced = Counter(each.step for each in events.calls if (each.unit, each.call.kind) == ("", _REDUCE))
        if any(0 < passes[step] < reduced[step] for step in reduced):
            yield "ranges of several units are unnamed; these units are listed as (root)"
            return


def _passes_without_starts(found: Sequence[UnitEvents]) -> Iterator[str]:
    for direction in PASSES:
        if any(no_starts(events, direction) for events in found):
            which = "units start their"
        elif without := sorted({unit for events in found for unit in _unstarted(events, direction)}):
            which = ", ".join(unit or "the root" for unit in without[:_FEW]) + (" and others" if without[_FEW:] else "")
            which += " starts its" if len(without) == 1 else " start their"
        else:
            continue
        yield (
            f"no ranges mark where {which} {direction} passes, so it is unknown how much compute could hide collectives"
        )


def _unstarted(events: UnitEvents, direction: Pass) -> set[str]:
    """Units that send in a pass that they never start."""
    sends = {each.unit for each in events.calls if each.direction == direction}
    return sends - {start.unit for start in events.starts if start.direction == direction}


def no_starts(events: UnitEvents, direction: Pass) -> bool:
    """Whether units send in a pass that, by the trace, none of them starts."""
    sends = any(each.direction == direction for each in events.calls)
    return sends and not any(start.direction == direction for start in events.starts)


def _gathers_of_no_pass(found: Sequence[UnitEvents]) -> Iterator[str]:
    """A unit is gathered no more than once in a forward pass: a gather outside of backward ranges may be of neither."""
    more = total = 0
    for events in found:
        if no_starts(events, "forward"):
            continue
        starts = Counter((start.step, start.unit) for start in events.starts if start.direction == "forward")
        gathers = Counter(
            (each.step, each.unit) for each in events.calls if (each.call.kind, each.direction) == (_GATHER, "forward")
        )
        total += gathers.total()
        more += (gathers - starts).total()
    if more:
        yield (
            f"{more:,} of {total:,} all-gathers listed under forward passes lie outside the range of any pass; some "
            "may belong to backward passes"
        )


def _of_no_unit(
    spent: Sequence[DeviceTimeline], found: Sequence[UnitEvents], ranks: Sequence[RankCalls]
) -> Iterator[str]:
    """Collectives as large as those of units, in their process groups, outside of their ranges."""
    left: Counter[str] = Counter()
    steps = 0
    for (view, device, _), events in zip(spent, found, strict=True):
        smallest = _smallest(events)
        known = {each.call.row for each in events.calls}
        groups = {(each.call.kind, each.call.group) for each in events.calls}
        steps += len(device.windows) if known else 0
        for of_device in ranks:
            if (of_device.rank, of_device.device) == (view.rank, device.operations.device):
                left.update(
                    call.kind
                    for call in of_device.calls
                    if call.row not in known
                    and call.step != OUTSIDE
                    and (call.kind, call.group) in groups
                    and (call.message_bytes or 0) >= smallest.get(call.kind, 1)
                )
    for kind in filter(left.__getitem__, _NAMES):
        yield (
            f"{_NAMES[kind]} as large as a unit's lie outside all ranges of units and are not listed "
            f"({digits(left[kind] / steps)} per rank and step)"
        )


def _smallest(events: UnitEvents) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for each in events.calls:
        size = each.call.message_bytes
        if size is not None:
            sizes[each.call.kind] = min(size, sizes.get(each.call.kind, size))
    return sizes


def _listed(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {spans(ranks)}"
