"""What the script does in usual steps beside training: logging, metrics, plotting and saving, by function and line."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from math import sqrt

from dptune.runfile.facts import Facts
from dptune.runfile.histories import HistoryFacts
from dptune.runfile.removed import Share
from dptune.runfile.slow_steps import Cause, calls, departures, slow
from dptune.runfile.window import SampledFacts, Window
from dptune.runfile.work_kinds import kind_of, makes_text

_TRAINING = ("loader", "backward", "optimizer", "collective")
_OF_STEPS = ("forward", "backward", "optimizer")
LEAST_SAMPLES = 5
_LEAST_OF_HISTORY = 2  # where it is known that later steps take longer
_Z = 1.645  # of a normal distribution: 95 % lie below


@dataclass(frozen=True)
class HostWork:
    """One such thing: `share` is of the usual steps of the rank where it takes most, `most_share` its upper bound.

    The thread's stack is sampled: the bound holds in 95 of 100 recordings. `hottest` is the line with most samples,
    `by_rank` the share on each rank with samples there. `everywhere`: whether every rank spends at least half of the
    largest share there. `of_tensors`: whether most of it makes text of tensors. `history`: the line where it joins the
    values of all steps so far; `steps_joined`: of how many steps these are in the middle of the timed ones.
    """

    rank: int
    name: str
    where: str
    kind: str
    share: float
    most_share: float
    samples: int
    hottest: str
    by_rank: dict[int, Share] = field(default_factory=dict)
    everywhere: bool = True
    of_tensors: bool = False
    history: str = ""
    steps_joined: float = 0.0


def work_between(facts: Sequence[Facts]) -> list[HostWork]:
    """Over all ranks, most time first; each function on the rank where it takes most."""
    found: dict[tuple[str, str], list[HostWork]] = defaultdict(list)
    ranks = 0
    for rank_facts in facts:
        window = rank_facts.window("untraced")
        if window is None or not window.sampled:
            continue
        ranks += 1
        on_gpu = rank_facts.device is not None and rank_facts.device.kind != "cpu"
        for work in _of_rank(rank_facts.rank, window, rank_facts.histories, on_gpu=on_gpu):
            found[work.name, work.where].append(work)
    most = [_most(each, ranks) for each in found.values()]
    return sorted(most, key=lambda host_work: -host_work.share)


def _most(each: Sequence[HostWork], ranks: int) -> HostWork:
    most = max(each, key=lambda work: work.share)
    by_rank = {rank: share for one in each for rank, share in one.by_rank.items()}
    return replace(most, by_rank=by_rank, everywhere=sum(2 * one.share >= most.share for one in each) == ranks)


def _of_rank(rank: int, window: Window, histories: Sequence[HistoryFacts], *, on_gpu: bool) -> list[HostWork]:
    """On a GPU only what libraries for it do: a function of the script may wait for the device there."""
    left_out = set(slow(window.durations_ns))
    usual = [at for at in range(window.steps) if at not in left_out]
    time_ns = sum(window.durations_ns[at] for at in usual)
    all_samples = sum(sample.looks for sample in window.sampled)
    spent: dict[Cause, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    samples: dict[Cause, int] = defaultdict(int)
    texts_ns: dict[Cause, int] = defaultdict(int)
    joined: dict[Cause, HistoryFacts] = {}
    trains = {_function(line) for place in window.sampled if place.phase in _OF_STEPS for line in place.path}
    for place, cause in departures(window, usual):
        name, where, kind = cause
        text = not place.kind and makes_text(place.through)
        if text and on_gpu:
            continue  # it waits for the device
        kind = kind or ("" if on_gpu or not calls(place, cause) else kind_of(name))
        history = None if on_gpu else _history(place, histories, trains)
        kind = kind or ("history" if history else "")
        own = place.kind == "evaluation" and any(kind_of(_function(line)) == place.kind for line in place.path)
        if kind in ("", "experience") or (place.phase in _TRAINING and not own) or (own and on_gpu):
            continue
        if history is not None:
            joined[name, where, kind] = history
        in_usual = [ns for at, ns in zip(place.steps, place.spent_ns, strict=False) if at not in left_out]
        spent[name, where, kind][place.path[-1]] += sum(in_usual)
        samples[name, where, kind] += len(in_usual)
        texts_ns[name, where, kind] += text * sum(in_usual)
    found = []
    for cause, lines in spent.items():
        share = min(1.0, sum(lines.values()) / time_ns) if time_ns else 0.0
        if samples[cause] >= (_LEAST_OF_HISTORY if cause in joined else LEAST_SAMPLES) and share:
            error = _Z * sqrt(share * (1 - share) / all_samples)
            hottest = max(lines, key=lambda line: lines[line])
            interval = Share(max(0.0, share - error), share, min(1.0, share + error))
            work = HostWork(rank, *cause, share, interval.most, samples[cause], hottest, {rank: interval})
            if history := joined.get(cause):
                steps = history.steps_joined(window.first_step + window.steps / 2)
                work = replace(work, history=history.where, steps_joined=steps)
            found.append(replace(work, of_tensors=2 * texts_ns[cause] >= sum(lines.values())))
    return found


def _history(place: SampledFacts, histories: Sequence[HistoryFacts], trains: Collection[str]) -> HistoryFacts | None:
    """The list of the values of all steps that a place is about: of its line, or of a function that does not train."""
    lines = {line.rpartition(" (")[2].removesuffix(")") for line in place.path}
    functions = {_function(line) for line in place.path} - {*trains}
    found = (facts for facts in histories if facts.where in lines or facts.function in functions)
    return next(found, None)


def _function(line: str) -> str:
    return line.rpartition(" (")[0]
