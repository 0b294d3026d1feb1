"""The best bucket sizes, and the best set of changes that leave what is learned as it is.

Sizes that are one for all buckets are tried in steps of 1, 2, 5; those that make the same buckets are one. For a list
of sizes all plans of few gradients are tried; of more, gradients are moved between neighbouring buckets, buckets merged
and split, as long as that shortens the step and not too many were tried. What else is tried is tried together with the
sizes, because what is best for them depends on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise, product

from dptune.knobs import KNOBS, Value
from dptune.measured import Missing
from dptune.predicted import BucketSize
from dptune.whatif.cpu.buckets import MIB, Caps, assign
from dptune.whatif.cpu.changes import changed
from dptune.whatif.cpu.communication import accepted
from dptune.whatif.cpu.hybrid import WITHIN_HOSTS, is_hybrid
from dptune.whatif.cpu.model import StepModel
from dptune.whatif.cpu.replay import step_ns

LEAST_GAIN = 0.01  # of a step: what a list has to save over one size for all, a size and any change over none
_ALIKE = 0.002  # of the step: what is so near to the best is as good
_MOST_TRIED = 300  # plans: all of nine gradients, or those of one way downhill
_FEW = 24  # gradients: with more no plan of a bucket for each is tried, whose replay takes long
_CUTS = 16  # places at which a bucket is split, at most
_MOST_WORKERS = 8
_ROUND = (1, 2, 5)
_CAP = "ddp.bucket_cap_mb"


def curve(model: StepModel) -> list[BucketSize]:
    """The step by the size that is asked for, in MiB, ascending; torch's default first."""
    tried = [BucketSize(cap_mb=None, buckets=len(_buckets(model, Caps.of())), step_ns=_with(model, Caps.of()))]
    seen = set()
    for cap in _sizes(model.gradient_bytes):
        if not accepted(model, Caps.of(cap)):
            continue
        buckets = _buckets(model, Caps.of(cap))
        if tuple(buckets) not in seen:
            seen.add(tuple(buckets))
            tried.append(BucketSize(cap_mb=cap, buckets=len(buckets), step_ns=_with(model, Caps.of(cap))))
    return tried


def plan(model: StepModel, start: Caps) -> tuple[int, ...]:
    """How many gradients go into each bucket, in the order of becoming ready: the best that is found.

    Of few gradients all plans are tried. Of more it is gone downhill from several: `start`, the best size for all,
    one bucket, and one for each.
    """
    count = len(model.gradient_bytes)
    if 2 ** (count - 1) <= _MOST_TRIED:
        return min(_plans(count), key=lambda counts: (_planned(model, counts), len(counts)))
    best = min(curve(model), key=lambda size: size.step_ns)
    starts = {tuple(_buckets(model, start)), tuple(_buckets(model, Caps.of(best.cap_mb))), (count,)}
    if count <= _FEW:
        starts.add((1,) * count)
    found = [_downhill(model, one) for one in sorted(starts)]
    return min(found, key=lambda one: (_planned(model, one), len(one)))


def _plans(count: int) -> Iterator[tuple[int, ...]]:
    """All ways to cut so many in a row into runs."""
    for cuts in range(2 ** (count - 1)):
        borders = [0, *(at + 1 for at in range(count - 1) if cuts >> at & 1), count]
        yield tuple(after - before for before, after in pairwise(borders))


def _downhill(model: StepModel, best: tuple[int, ...]) -> tuple[int, ...]:
    """Each turn takes the best of all moves of one gradient to a neighbouring bucket, merges of two, splits of one."""
    took = _planned(model, best)
    tried = {best}
    while len(tried) < _MOST_TRIED:
        moves = [move for move in _moves(best) if move not in tried][: _MOST_TRIED - len(tried)]
        tried.update(moves)
        quickest = min(((_planned(model, counts), counts) for counts in moves), default=None)
        if quickest is None or quickest[0] >= took:
            break
        took, best = quickest
    return best


def caps_text(gradient_bytes: Sequence[int], counts: Sequence[int]) -> str:
    """The sizes in MiB to ask for, so that buckets of so many gradients come of it, as short as they can be written."""
    borders = [0, *accumulate(counts)]
    sizes = [gradient_bytes[first:last] for first, last in pairwise(borders)]
    return ",".join(_shortest(sum(size) - size[-1], sum(size)) for size in sizes)


def best_sets(model: StepModel, accumulates: bool) -> Iterator[dict[str, Value]]:
    """Changes that leave what is learned as it is, the quickest set first: with one size for all buckets, and a list.

    Nothing where no set saves a hundredth of the step. `no_sync` is such a change where gradients add up only.
    """
    found: list[tuple[float, dict[str, Value]]] = []
    for settings in _others(model, accumulates):
        try:
            other = changed(model, settings)
        except Missing:
            continue
        took = step_ns(other)
        found.append((took, settings))
        sizes = [bucket_size for bucket_size in curve(other) if bucket_size.step_ns <= (1 - LEAST_GAIN) * took]
        found += [(bucket_size.step_ns, {**settings, _CAP: bucket_size.cap_mb}) for bucket_size in sizes]
    least = min(took for took, _ in found)
    took, settings = next(
        candidate for candidate in found if candidate[0] <= (1 + _ALIKE) * least
    )  # the simplest come first
    if took <= (1 - LEAST_GAIN) * step_ns(model):
        yield settings
    other = changed(model, settings)
    counts = plan(other, other.caps)
    text = caps_text(model.gradient_bytes, counts)
    if not accepted(model, Caps.of(each_mb=[float(size) for size in text.split(",")])):
        return
    if _planned(other, counts) <= (1 - LEAST_GAIN) * took:
        rest = {name: value for name, value in settings.items() if name != _CAP}
        yield {**rest, "ddp.bucket_cap_mb_list": text}


def changes_of_units(model: StepModel, accumulates: bool) -> Iterator[dict[str, Value]]:
    """Changes of how units of fully_shard communicate, one by one; fewer units down to one, and twice as many.

    `fsdp.no_sync` is such a change where gradients add up only.
    """
    count = len(model.sharding.names) if model.sharding is not None else 0
    yield {"fsdp.reshard_after_forward": False}
    if accumulates and max(len(step.passes) for steps in model.steps.values() for step in steps) > 1:
        yield {"fsdp.no_sync": True}
    for units in dict.fromkeys((1, count // 4, count // 2, 2 * count)):
        if units and units != count:
            yield {"fsdp.units": units}
    yield {"fsdp.reduce_dtype": "bf16"}
    if model.hosts > 1 and not is_hybrid(model):
        yield {WITHIN_HOSTS: True}


def _others(model: StepModel, accumulates: bool) -> Iterator[dict[str, Value]]:
    """Sets of the other safe changes that the run has room for."""
    passes = max(len(step.passes) for steps in model.steps.values() for step in steps)
    loading = model.loading
    most = 0 if loading is None or loading.prepare_ns is None else _MOST_WORKERS
    choices: Mapping[str, list[Value]] = {
        "ddp.no_sync": [None, *([True] if passes > 1 and accumulates else [])],
        "loader.num_workers": [None, *range(1, most + 1)],
    }
    assert all(KNOBS[name].numerics == "same" for name in choices)
    kept = bool(loading and loading.epoch and not loading.persistent)
    for values in product(*choices.values()):
        settings: dict[str, Value] = {
            name: value for name, value in zip(choices, values, strict=True) if value is not None
        }
        if kept and "loader.num_workers" in settings:
            settings["loader.persistent_workers"] = True
        yield settings


def _sizes(gradient_bytes: Sequence[int]) -> Iterator[float]:
    """1, 2, 5 times powers of ten, from what each gradient reaches to what only all together do."""
    total, power = sum(gradient_bytes) / MIB, -3
    while True:
        for figure in _ROUND:
            size = round(figure * 10.0**power, -power if power < 0 else 0)
            yield size
            if size >= total:
                return
        power += 1


def _buckets(model: StepModel, caps: Caps) -> list[int]:
    return [len(bucket) for bucket in assign(model.gradient_bytes, caps)]


def _with(model: StepModel, caps: Caps) -> int:
    return round(step_ns(replace(model, caps=caps)))


def _planned(model: StepModel, counts: Sequence[int]) -> float:
    borders = [0, *accumulate(counts)]
    return step_ns(replace(model, caps=Caps(tuple(sum(model.gradient_bytes[a:b]) for a, b in pairwise(borders)))))


def _moves(counts: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    for at in range(len(counts) - 1):
        before, current, other, after = counts[:at], counts[at], counts[at + 1], counts[at + 2 :]
        yield (*before, current + other, *after)
        if current > 1:
            yield (*before, current - 1, other + 1, *after)
        if other > 1:
            yield (*before, current + 1, other - 1, *after)
    for at, count in enumerate(counts):
        for first in range(1, count, -(-count // _CUTS)):
            yield (*counts[:at], first, count - first, *counts[at + 1 :])


def _shortest(above: int, most: int) -> str:
    """The shortest number of MiB whose bytes are more than the one and at most the other."""
    for digits in range(10):
        size = int(most / MIB * 10**digits) / 10**digits
        if above < int(size * MIB) <= most:
            return f"{size:.{digits}f}"
    return repr(most / MIB)
