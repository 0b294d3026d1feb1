"""Compute beside communication against the same compute without, in traces of made-up kernels."""

import gzip
import json
from statistics import median

import numpy as np
import pytest

from dptune.measured import Missing

from .. import reading  # noqa: TID252 - tests are no installed package
from .handmade import NCCL, annotation, launched, measure_events, operator, step


def overlap_of(tmp_path, places, slow, extra_in_second=False, covered=(0, 1), more=()):
    """Two steps of `places` kernels, alone in the first; in the second beside an all-reduce and `slow` times as long.

    Kernel n takes 10 + n: the same name, another size. `covered`: by which share of a kernel in each step.
    """
    events, number = [*more], 0
    for second in (False, True):
        begin = at = 100_000 * second
        events.append(step(int(second), begin, begin + 100_000))
        times = [(10 + place) * (slow if second else 1) for place in range(places)]
        if extra_in_second and second:
            times.append(10)
        for place, took in enumerate(times):
            number += 2
            start = at + 1000
            events += launched("gemm", begin + place, start, start + took, number)
            if beside := covered[second] * took:
                events += launched(NCCL, begin + place, start, start + beside, number + 1, stream=8)
            at += took + 1
    return measure_events(tmp_path, events).overlap


@pytest.mark.parametrize("slow", [1, 1.5, 3])
def test_the_same_place_in_another_step_takes_longer(tmp_path, slow):
    found = overlap_of(tmp_path, 40, slow)
    assert found.slowdown == pytest.approx(slow)
    assert found.slowdown_pairs == 40


def test_few_places_are_not_enough(tmp_path):
    found = overlap_of(tmp_path, 29, 2)
    with pytest.raises(Missing, match=r"^29 operations of a step overlapped .*; comparing needs at least 30$"):
        _ = found.slowdown


@pytest.mark.parametrize(("other_us", "told"), [(50_000, True), (70_000, False)])
def test_little_compute_beside_communication_is_no_base_for_a_ratio(tmp_path, other_us, told):
    """Places of 10 to 49 us, 1,180 in all, and of them 1,180 beside an all-reduce as long: 2,360 of that and `other_us`
    twice is all compute, of which 1,180 is 1.15 % or 0.83 %."""
    events = [
        launched("big", begin, begin + 20_000, begin + 20_000 + other_us, 1000 + begin) for begin in (50, 100_050)
    ]
    found = overlap_of(tmp_path, 40, 1, more=[event for each in events for event in each])
    if told:
        assert found.slowdown == pytest.approx(1)
    else:
        with pytest.raises(Missing, match=r"^only 0\.8 % of the compute overlapped .*; comparing needs at least 1 %$"):
            _ = found.slowdown


def test_a_name_that_one_step_runs_more_often_has_no_places(tmp_path):
    assert overlap_of(tmp_path, 40, 2, extra_in_second=True).slowdown_pairs == 0


@pytest.mark.parametrize("covered", [(0, 0.4), (0.4, 1)])
def test_compute_that_communication_covers_by_less_than_half_is_neither(tmp_path, covered):
    assert overlap_of(tmp_path, 40, 2, covered=covered).slowdown_pairs == 0


def test_on_a_cpu_operators_around_others_do_their_work(tmp_path):
    """40 of 20 around one of 10; beside the all-reduce that one takes 20."""
    events = [step(0, 0, 2000), step(1, 2000, 4000), annotation("gloo:all_reduce", 2000, 4000, thread=2)]
    for begin, took in ((0, 10), (2000, 20)):
        for at in range(begin, begin + 2000, 50):
            events += [operator("aten::linear", at, at + took + 10), operator("aten::mm", at + 5, at + 5 + took)]
    found = measure_events(tmp_path, events).overlap
    assert (found.slowdown_pairs, found.slowdown) == (40, 2)


def test_a_real_run_is_slowed_as_a_plain_count_says(real_traces):
    """By kernel name and place, from the JSON itself."""
    path = real_traces / "hta_training" / "b1ceb4c_control.json.gz"
    events = [e for e in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"] if e.get("ph") == "X"]
    steps = {e["name"]: e for e in events if e["name"].startswith("ProfilerStep#") and "runtime" not in e["cat"]}
    launches = {}
    for e in sorted(events, key=lambda e: float(e["ts"])):
        if e.get("cat") in ("cuda_runtime", "cuda_driver", "Runtime"):
            launches.setdefault(e["args"].get("correlation"), float(e["ts"]))
    kernels = [e for e in events if e.get("cat") in ("kernel", "Kernel")]
    collectives = [(float(e["ts"]), float(e["ts"]) + e["dur"]) for e in kernels if "nccl" in e["name"].lower()]
    begins, ends = np.array(collectives).T
    of_step = {name: {} for name in steps}
    for e in sorted(kernels, key=lambda e: (launches.get(e["args"]["correlation"], 0), float(e["ts"]))):
        called = launches.get(e["args"]["correlation"])
        for name, mark in steps.items():
            began = float(mark["ts"])
            if called is None or not began <= called < began + mark["dur"]:
                continue
            if "nccl" not in e["name"].lower() and e["dur"] > 0:
                begin, end = float(e["ts"]), float(e["ts"]) + e["dur"]
                beside = np.maximum(0.0, np.minimum(end, ends) - np.maximum(begin, begins)).sum()
                of_step[name].setdefault(e["name"], []).append((e["dur"], beside / e["dur"]))
    beside = without = pairs = 0
    for name in set.intersection(*(set(one) for one in of_step.values())):
        if len({len(one[name]) for one in of_step.values()}) == 1:
            for place in zip(*(one[name] for one in of_step.values()), strict=True):
                hidden = [took for took, share in place if share >= 0.5]
                clean = [took for took, share in place if share == 0]
                if hidden and clean:
                    pairs += 1
                    beside += len(hidden) * median(hidden)
                    without += len(hidden) * median(clean)
    found = reading.measured(path).overlap
    assert found.slowdown_pairs == pairs > 100
    assert found.slowdown == pytest.approx(beside / without, rel=1e-6)
    assert 1 < found.slowdown < 2
