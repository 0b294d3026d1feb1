"""Untraced steps that take much longer than the others: what the script does in them, and how often.

A cause is a difference: what the training thread does in slow steps beyond what it does in the others, by the line at
which the script leaves the way that it takes in each step. Waiting for other ranks is no cause, nor is a lock or
another wait of the standard library: the line of the script is named, or the phase.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import hypot, sqrt
from statistics import mean, median, stdev

from dptune.runfile.facts import Facts
from dptune.runfile.periods import periods
from dptune.runfile.removed import Share
from dptune.runfile.window import SampledFacts, Window
from dptune.runfile.work_kinds import acts, kind_of, makes_text, waits

TIMES = 1.5  # the median of the others: from there on the reading of traces sets a step aside
_MADS = 6  # and this many median distances from it
_LEAST_SHARE = 0.02  # of the time of all steps: less is no cause
_OF_EXCESS = 0.2  # of what a slow step takes longer: less of it is by chance
_HARDLY = 0.1  # of what a slow step takes longer: in the others there is less of it
_OF_TIMED = 2 / 3  # of the excess of slow steps: a cause that covers this much explains all of it
_Z = 1.645  # of a normal distribution: 5 % lie beyond on either side
_WAITING = ("backward", "collective")
_PHASES = {"loader": "the data loader", "forward": "the forward pass", "optimizer": "the optimizer"}
_STEPPING = ("loader", "forward", "backward", "optimizer")


Cause = tuple[str, str, str]  # name, line and kind


@dataclass(frozen=True)
class SlowSteps:
    """What some slow steps have in common. `periods` are empty where they come at no one distance.

    `name` and `where` are the function and the line that calls it, empty where nothing was seen; `kind` is as in
    `SampledFacts`, else what the words of its name say (`kind_of`), or what it calls (`acts`); `share` is of the
    time of all timed steps; `extra_ns` the median of what one takes longer by this.
    `each_ns` is the same of each of them.
    `leaves`: whether it is a function that the script calls, or one of a library for such a kind, and that the other
    steps hardly spend time in. `library`: the one that runs the loop from that line, empty where none does.
    """

    rank: int
    name: str
    where: str
    kind: str
    steps: tuple[int, ...]
    periods: tuple[int, ...]
    share: float
    extra_ns: float
    leaves: bool = False
    each_ns: tuple[float, ...] = ()
    library: str = ""


def slow(durations_ns: Sequence[int], times: float = TIMES) -> list[int]:
    """The steps that take much longer than the others: `times` their median, and far beyond their spread."""
    found: list[int] = []
    for _ in range(len(durations_ns)):
        rest = [ns for at, ns in enumerate(durations_ns) if at not in set(found)]
        middle = median(rest)
        spread = median(abs(ns - middle) for ns in rest)
        limit = max(times * middle, middle + _MADS * spread)
        again = [at for at, ns in enumerate(durations_ns) if ns > limit]
        if again == found or 2 * len(again) > len(durations_ns):
            break
        found = again
    return found


def slow_steps(facts: Sequence[Facts], times: float = TIMES) -> list[SlowSteps]:
    """The causes of slow steps over all ranks, most time first; one without a name where none was seen."""
    windows = {
        rank_facts.rank: window for rank_facts in facts if (window := rank_facts.window("untraced")) and window.steps
    }
    causes: dict[tuple[str, str], SlowSteps] = {}
    for rank, window in windows.items():
        for cause in _causes(rank, window, times, alone=len(facts) == 1):
            known = causes.get((cause.name, cause.where))
            if known is None or cause.share > known.share:
                causes[cause.name, cause.where] = cause
    named = sorted(causes.values(), key=lambda named_cause: -named_cause.share)
    if named or not windows:
        return named
    rank = min(windows)
    durations_ns = windows[rank].step_durations_ns
    steps = slow(durations_ns, times)
    usual_ns = median(durations_ns)
    extra = {at: durations_ns[at] - usual_ns for at in steps}
    unseen = _made(rank, ("", "", ""), extra, durations_ns)
    return [unseen] if unseen is not None else []


def _causes(rank: int, window: Window, times: float, *, alone: bool) -> Iterable[SlowSteps]:
    durations_ns = window.step_durations_ns
    steps = slow(durations_ns, times)
    usual_ns = median(durations_ns)
    usual = [at for at in range(window.steps) if at not in set(steps)]
    if not steps or not usual or not window.sampled:
        return
    by_cause: dict[Cause, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    called = set()
    places: dict[Cause, list[SampledFacts]] = defaultdict(list)
    for place, cause in departures(window, usual):
        if alone or place.phase not in _WAITING or place.kind == "evaluation":  # its gathering of results is of it
            called |= {cause} if calls(place, cause) else set()
            places[cause].append(place)
            for at, ns in zip(place.steps, place.spent_ns, strict=False):
                by_cause[cause][at] += ns
    normal = {cause: sum(spent.get(at, 0) for at in usual) / len(usual) for cause, spent in by_cause.items()}
    extra: dict[Cause, dict[int, float]] = {}
    for cause, spent in by_cause.items():
        beyond = {at: spent.get(at, 0) - normal[cause] for at in steps}
        extra[cause] = {at: ns for at, ns in beyond.items() if ns > _OF_EXCESS * (durations_ns[at] - usual_ns)}
    _explain(extra, called, lambda cause: _made(rank, cause, extra[cause], durations_ns) is not None)
    for cause in by_cause:
        made = _made(rank, cause, extra[cause], durations_ns)
        if made is not None:
            kind = made.kind or (kind_of(made.name) if cause in called else "")
            kind = kind or ("experience" if _acts(places[cause], made.where) else "")
            leaves = cause in called and normal[cause] < _HARDLY * made.extra_ns
            yield replace(made, kind=kind, leaves=leaves, library=_library(window, made.where))


def _explain(extra: dict[Cause, dict[int, float]], called: set[Cause], counts: Callable[[Cause], bool]) -> None:
    """What a library does for no known purpose, in steps in most of which it also saves, say, at that line: saving."""
    known = [cause for cause in extra if cause[2] and counts(cause)]
    for cause in [cause for cause in extra if not cause[2] and cause not in called]:
        reasons = {
            at: max(same, key=lambda reason: extra[reason][at])
            for at in extra[cause]
            if (same := [reason for reason in known if reason[1] == cause[1] and at in extra[reason]])
        }
        if 2 * len(reasons) > len(extra[cause]):
            for at, reason in reasons.items():
                extra[reason][at] += extra[cause].pop(at)


def _library(window: Window, where: str) -> str:
    """The library that the script calls at that line, beside torch."""
    through = (place.through for place in window.sampled if place.path and _split(place.path[-1])[1] == where)
    return next((library for name in through if (library := name.partition(".")[0]) not in ("", "torch")), "")


def _acts(places: Sequence[SampledFacts], where: str) -> bool:
    """Whether what the line there calls acts in an environment."""
    inside = [place for place in places if where in {_split(line)[1] for line in place.path}]
    functions = set()
    for place in inside:
        lines = [_split(line) for line in place.path]
        at = next(at for at, line in enumerate(lines) if line[1] == where)
        functions |= {function for function, _ in lines[at + 1 :]}
    return acts(functions, {place.through for place in inside})


def share_inside(cause: SlowSteps, window: Window, function: str) -> float:
    """The share of a cause's samples, in the steps that it slows, in which a function of the script runs."""
    inside = whole = 0
    for place in window.sampled:
        lines = [_split(line) for line in place.path]
        if cause.where not in {where for _, where in lines}:
            continue
        spent_ns = sum(ns for at, ns in zip(place.steps, place.spent_ns, strict=False) if at in cause.steps)
        whole += spent_ns
        inside += spent_ns if function in {name for name, _ in lines} else 0
    return inside / whole if whole else 0.0


def share_of(cause: SlowSteps, durations_ns: Sequence[int]) -> Share:
    """The share of the time that is saved without this cause, if slow steps are as frequent as their period says.

    The upper end is the timed excess of the slow steps, if samples of the cause cover most of it; the lower end is what
    the samples cover. The interval includes the variation of slow steps, and of their number in the window.
    """
    usual_ns = median(durations_ns)
    count, each = len(cause.steps), cause.each_ns
    timed = sum(max(0.0, durations_ns[at] - usual_ns) for at in cause.steps) / sum(durations_ns)
    most = max(timed, cause.share) if cause.share >= _OF_TIMED * timed else cause.share
    least = min(timed, cause.share)
    differ = _Z * stdev(each) / mean(each) / sqrt(count) if count > 1 else 1.0
    if len(cause.periods) == 1:
        times, by_chance = len(durations_ns) / cause.periods[0] / count, 0.0
    else:
        times, by_chance = 1.0, 1 / count if cause.periods else _Z / sqrt(count)
    error = hypot(differ, by_chance)
    least, likely, most = (share * of for share, of in ((least, 1 - error), (cause.share, 1.0), (most, 1 + error)))
    return Share(*(_as_often(max(0.0, share), times) for share in (least, likely, most)))


def _as_often(share: float, times: float) -> float:
    """The share of the time that something takes if it becomes `times` as frequent."""
    return min(1.0, share * times / (1 + share * (times - 1)))


def calls(place: SampledFacts, cause: Cause) -> bool:
    """Whether a place is in a function of the script that its line there calls, or in a library of a known kind."""
    name, where, kind = cause
    lines = [_split(line) for line in place.path]
    return (
        bool(kind)
        or (name, where) in lines
        or any((before[1], after[0]) == (where, name) for before, after in pairwise(lines))
    )


def _made(rank: int, cause: Cause, extra: dict[int, float], durations_ns: Sequence[int]) -> SlowSteps | None:
    """None where it takes too little of the time."""
    share = min(1.0, sum(extra.values()) / sum(durations_ns))
    if share < _LEAST_SHARE:
        return None
    name, where, kind = cause
    every = tuple(period.every for period in periods(list(extra), len(durations_ns)))
    each = tuple(extra[at] for at in sorted(extra))
    return SlowSteps(rank, name, where, kind, tuple(sorted(extra)), every, share, median(each), each_ns=each)


def departures(window: Window, usual: Sequence[int]) -> list[tuple[SampledFacts, Cause]]:
    """Each place, with what the script calls there beside its way through every step: name, line and kind."""
    common = set(usual)
    ways = [
        place.path
        for place in window.sampled
        if place.phase in _STEPPING and place.kind != "evaluation" and common.intersection(place.steps)
    ]
    in_training = {line for way in ways for line in way}
    found: list[tuple[SampledFacts, Cause]] = []
    beside: list[tuple[SampledFacts, Cause]] = []
    for place in window.sampled:
        if not place.path:
            continue
        along = max((_alike(place.path, way) for way in ways), default=_shared(window))
        at = min(along, len(place.path) - 1)
        function, where = _split(place.path[at])
        same = [way for way in ways if way[:at] == place.path[:at]]
        if along == at > 0 and same and function not in {_split(way[at])[0] for way in same if len(way) > at}:
            name = function  # a library calls it
        elif at + 1 < len(place.path):
            name = _split(place.path[at + 1])[0]
        else:
            through = "" if waits(place.through) else place.through
            name = through if place.kind and through else _PHASES.get(place.phase, through)
        kind = "" if waits(place.through) else place.kind or ("logging" if makes_text(place.through) else "")
        (found if place.path[at] in in_training else beside).append((place, (name, where, kind)))
    return [*found, *_joined(beside)]


def _split(line: str) -> tuple[str, str]:
    """Function, and `file:line`."""
    function, _, where = line.rpartition(" (")
    return function, where.removesuffix(")")


def _joined(found: list[tuple[SampledFacts, Cause]]) -> list[tuple[SampledFacts, Cause]]:
    """The places of one line under the name that takes most time there: what a call does before and after is its."""
    spent: dict[str, dict[tuple[str, str], int]] = defaultdict(lambda: defaultdict(int))
    for place, (name, where, kind) in found:
        if name and place.phase not in _WAITING:
            spent[where][name, kind] += sum(place.spent_ns)
    best = {where: max(names, key=lambda name: names[name]) for where, names in spent.items()}
    kinds = {where: next((kind for (_, kind) in names if kind), "") for where, names in spent.items()}
    return [
        (place, (best[where][0] if where in best else name, where, kinds.get(where, kind)))
        for place, (name, where, kind) in found
    ]


def _alike(path: Sequence[str], way: Sequence[str]) -> int:
    """How many lines from the outermost on they have in common."""
    pairs = zip(path, way, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(path), len(way)))


def _shared(window: Window) -> int:
    """How many lines from the outermost on all places have in common."""
    paths = [place.path for place in window.sampled if place.path]
    return min((_alike(paths[0], path) for path in paths[1:]), default=0) if paths else 0
