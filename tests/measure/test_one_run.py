"""Ranks whose collectives are not of one run: some are missing, sizes or groups differ, other steps are traced."""

from dataclasses import replace

import pytest

from dptune.measure.communication.matching import RankCalls
from dptune.measure.communication.one_run import not_of_one_run

from .test_matching import calls, rank


def told(ranks, world_size):
    return [(number, loss.code, loss.fatal) for number, loss in not_of_one_run(ranks, world_size)]


def stepped(number, per_step, numbers=(3, 4, 5, 6), **more):
    """A rank with so many all-reduces in each step."""
    found = []
    for at, count in enumerate(per_step):
        found += [replace(one, step=at) for one in calls(["all_reduce"] * count, first_ns=at * 100_000, **more)]
    return RankCalls(number, f"cuda:{number}", 0, list(numbers), found)


@pytest.mark.parametrize(("lost", "fatal"), [(1, False), (3, True), (4, True)])
def test_a_rank_with_fewer_collectives_than_the_others_is_named(lost, fatal):
    """20 in one step: 1 is more than 1 %, but only one; 3 are more than a tenth."""
    ran = [rank(number, calls(["all_reduce"] * (20 - lost * (number == 1)))) for number in range(3)]
    ((number, loss),) = not_of_one_run(ran, 3)
    assert (number, loss.code, loss.fatal) == (1, "collectives-differ", fatal)
    verb = "is" if lost == 1 else "are"
    assert loss.text.startswith(
        f"{lost} of 20 collectives that the other ranks ran in the same steps {verb} not in its"
    )


def test_a_step_of_which_a_rank_has_lost_everything_counts():
    assert told([stepped(0, [5, 5, 5, 5]), stepped(1, [5, 0, 5, 5])], 2) == [(1, "collectives-differ", True)]


def test_a_last_step_without_collectives_may_have_outlasted_the_recording():
    assert told([stepped(0, [5, 5, 5, 5]), stepped(1, [5, 5, 5, 0])], 2) == []


def test_collectives_are_counted_where_every_rank_of_the_group_is_given():
    ran = [rank(0, calls(["all_reduce"] * 5)), rank(1, calls(["all_reduce"] * 4))]
    assert told(ran, 3) == []
    assert told([rank(0, calls(["send"] * 5)), rank(1, calls(["send"] * 4))], 2) == []
    assert told([rank(0, calls(["all_reduce"] * 5)), rank(1, calls(["all_reduce"] * 5))], 2) == []


@pytest.mark.parametrize(("wrong", "fatal"), [(1, False), (4, True)])
def test_all_reduces_of_another_size_cannot_be_the_same(wrong, fatal):
    first = calls(["all_reduce"] * 20, message_bytes=4096)
    second = [replace(one, message_bytes=8192) if at < wrong else one for at, one in enumerate(first)]
    ((number, loss),) = not_of_one_run([rank(0, first), rank(1, second)], 2)
    assert (number, loss.code, loss.fatal) == (1, "sizes-differ", fatal)
    verb = "is" if wrong == 1 else "are"
    assert loss.text.startswith(f"{wrong} of 20 all-reduces {verb} of another size than on rank 0 in the same steps")


def test_sizes_in_another_order_and_uneven_gathers_are_no_fault():
    sizes = [4096, 8192, 16384]
    first = [replace(one, message_bytes=size) for one, size in zip(calls(["all_reduce"] * 3), sizes, strict=True)]
    second = [replace(one, message_bytes=size) for one, size in zip(first, reversed(sizes), strict=True)]
    assert told([rank(0, first), rank(1, second)], 2) == []
    gathers = [rank(n, calls(["all_gather"] * 3, message_bytes=4096 + n)) for n in range(2)]
    assert told(gathers, 2) == []
    unknown = [rank(n, calls(["all_reduce"] * 3, message_bytes=4096 if n else None)) for n in range(2)]
    assert told(unknown, 2) == []


def test_a_group_of_more_ranks_than_the_run():
    ran = [rank(n, calls(["all_reduce"] * 3, group="0", group_size=8)) for n in range(2)]
    assert told(ran, 2) == [(0, "group-too-large", False), (1, "group-too-large", False)]
    assert told(ran, 8) == []
    assert told(ran, None) == []


def test_other_step_numbers_are_told():
    ran = [stepped(0, [5] * 4), stepped(1, [5] * 4, numbers=(103, 104, 105, 109)), stepped(2, [5] * 4)]
    ((number, loss),) = not_of_one_run(ran, 3)
    assert (number, loss.code, loss.fatal) == (1, "steps-not-shared", False)
    assert loss.text == (
        "its traced steps are 103-105, 109, those of rank 0 3-6: collectives are compared in steps of the same "
        "number only"
    )


def test_a_rank_that_recorded_fewer_of_the_same_steps_is_no_fault():
    assert told([stepped(0, [5] * 4), stepped(1, [5] * 2, numbers=(4, 5))], 3) == []
