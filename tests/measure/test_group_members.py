"""Calls of a process group are counted per rank of the group, not per rank of the run."""

import pytest

from .handmade import all_reduce, launch, measure_events, operator, step

STEPS = 3
CALLS = {"1": 2, "2": 6}  # of a rank of each group in a step, beside one of all ranks


def events(group):
    """Steps of 1 ms, in each an all-reduce of all four ranks, and some of the rank's own group of two."""
    found = []
    for number in range(STEPS):
        at = 1000 * number
        found += [step(number, at, at + 1000), operator("aten::mm", at + 1, at + 5)]
        for place, (name, size) in enumerate([("0", 4), *[(group, 2)] * CALLS[group]]):
            correlation, begin = 10 * number + place + 1, at + 100 * (place + 1)
            found += [
                launch(correlation, begin, begin + 1),
                all_reduce(begin + 5, begin + 55, correlation, 1000, name, size),
            ]
    return found


def test_by_hand(tmp_path):
    """Group 2 makes 6 calls on 2 ranks in 3 steps: 36 in all, 3 per rank of the run, 6 per rank of the group."""
    found = {one.group: one for one in measure_events(tmp_path, *map(events, "1122")).collectives}
    assert {name: one.calls for name, one in found.items()} == {"0": 12, "1": 12, "2": 36}
    assert {name: one.calls_per_member for name, one in found.items()} == pytest.approx({"0": 1, "1": 2, "2": 6})
    assert {name: one.calls_per_step for name, one in found.items()} == pytest.approx({"0": 1, "1": 1, "2": 3})
