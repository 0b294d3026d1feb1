import pytest

from dptune.measured import MemoryFigures

MIB = 2**20


def memory(hand_made, growth, **more):
    told = {"growth_bytes_per_step": growth, "least_growth_bytes": growth, **more}
    return [hand_made.figures(MemoryFigures, rank=0, device="cuda:0", **told)]


def test_memory_that_each_step_leaves(ask, make_measured, hand_made):
    (advice,) = ask("DP802", make_measured(memory=memory(hand_made, 3 * MIB)))
    assert advice.title == "Each step leaves 3 MiB more allocated than the one before"
    assert (advice.kind, advice.impact, advice.saves) == ("risk", "medium", None)


@pytest.mark.parametrize(("capacity_mib", "impact", "left"), [(4000, "high", "1,000"), (60_000, "medium", "19,666")])
def test_how_long_there_is_room(ask, make_measured, hand_made, capacity_mib, impact, left):
    """1,000 MiB are taken, and 3 more with each step."""
    kept = {"capacity_bytes": capacity_mib * MIB, "peak_reserved_bytes": 1000 * MIB}
    (advice,) = ask("DP802", make_measured(memory=memory(hand_made, 3 * MIB, **kept)))
    assert advice.title.endswith(f": the device is full after about {left} more steps")
    assert advice.impact == impact


def test_memory_that_does_not_grow_is_nothing_at_any_threshold(ask, make_measured, hand_made):
    kept = {"capacity_bytes": 4000 * MIB, "peak_reserved_bytes": 1000 * MIB}
    assert ask("DP802", make_measured(memory=memory(hand_made, 0, **kept)), limits={"least_kib": 0}) == []


def test_quiet(ask, make_measured, hand_made):
    assert ask("DP802", make_measured(memory=memory(hand_made, 1000))) == []
    assert ask("DP802", make_measured(memory=memory(hand_made, -3 * MIB))) == []
    assert ask("DP802", make_measured(memory=memory(hand_made, None))) == []
    uneven = memory(hand_made, 3 * MIB, least_growth_bytes=-5 * MIB)  # batches of several lengths
    assert ask("DP802", make_measured(memory=uneven)) == []
    assert ask("DP802", make_measured(memory=memory(hand_made, 3 * MIB, least_growth_bytes=None))) == []
