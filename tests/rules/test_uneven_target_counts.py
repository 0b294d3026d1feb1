"""Mean losses of different numbers of targets: facts are made up."""

import math

import pytest

from dptune.measured import Missing
from dptune.runfile.target_counts import TargetCountFacts, between_micro_batches, between_ranks

SHORT, LONG = [20.0, 90.0] * 6, [80.0, 30.0] * 6
EVEN = [50.0, 55.0] * 6


def loss(counts, weights=1.0, size=1, drawn=None, loaders=1, where="train.py:80"):
    """Of passes of which `size` are of one step."""
    numbers = [*range(len(counts))]
    weights = [weights] * len(counts) if isinstance(weights, float) else weights
    drawn = [number + 1 for number in numbers] if drawn is None else drawn
    steps = [number // size for number in numbers]
    return TargetCountFacts("NllLossBackward0", 400, where, loaders, numbers, steps, drawn, counts, weights)


def ranks(make_facts, *losses):
    return [make_facts(rank=rank, target_counts=[each]) for rank, each in enumerate(losses)]


def test_ranks_that_divide_by_their_counts(ask, make_measured, make_facts):
    (advice,) = ask("DP315", make_measured(), ranks(make_facts, loss(SHORT), loss(LONG)))
    assert advice.title == (
        "Each rank divides its loss by its own number of targets (backward pass at train.py:80): in a step, "
        "a target of one rank weighs up to 4.0 times as much as one of another"
    )
    spread = math.sqrt(((0.6**2 * 2) + (0.5**2 * 2)) / 2)  # of 20 and 80, and of 90 and 30
    assert [found.value for found in advice.evidence] == [round(spread, 3), 3.5, 12, 2]
    assert (advice.kind, advice.impact, advice.confidence) == ("risk", "medium", "high")
    assert "`all_reduce` of the count" in advice.remedy


def test_micro_batches_that_are_divided_by_their_counts(ask, make_measured, make_facts):
    (advice,) = ask("DP315", make_measured(), ranks(make_facts, loss([20.0, 80.0, 50.0, 50.0] * 6, size=4)))
    assert advice.title.startswith(
        "The loss of each micro-batch is divided by its own number of targets (backward pass at train.py:80)"
    )
    assert [found.value for found in advice.evidence][2:] == [5, 4]  # without the last step
    assert advice.confidence == "medium"


@pytest.mark.parametrize("drawn", [[4 * (at // 4 + 1) for at in range(24)], [at // 4 for at in range(24)]])
def test_batches_that_are_drawn_ahead_and_parts_of_one_batch(drawn):
    """The latter are told from several tasks by losses that are divided by the number of passes."""
    assert between_micro_batches(loss([20.0, 80.0, 50.0, 50.0] * 6, 0.25, 4, drawn)).groups == 5


@pytest.mark.parametrize(
    "of_tasks",
    [
        loss([20.0, 80.0] * 6, size=2, drawn=[at // 2 for at in range(12)]),
        loss([20.0, 80.0] * 6, size=2, loaders=2),
        loss([20.0, 80.0] * 6, [1.0, 0.5] * 6, size=2),
        loss([20.0, 80.0] * 6),
    ],
)
def test_passes_that_are_no_micro_batches(of_tasks):
    assert between_micro_batches(of_tasks) is None


def test_a_small_difference_is_a_note(ask, make_measured, make_facts):
    (advice,) = ask("DP315", make_measured(), ranks(make_facts, loss([50.0] * 12), loss([63.0] * 12)))
    assert advice.impact == "low"


@pytest.mark.parametrize(
    "losses",
    [
        (loss(EVEN), loss(EVEN[::-1])),
        (loss(SHORT),),
        (loss(SHORT), loss(SHORT)),  # batches of like length
        (loss(SHORT[:7]), loss(LONG[:7])),  # too few
        (loss(SHORT, [count / 50 for count in SHORT]), loss(LONG, [count / 50 for count in LONG])),  # one divisor
        (loss([64.0] * 12), loss([64.0] * 11 + [3.0])),  # the last batch of an epoch
        (loss(SHORT), loss(LONG, where="train.py:90")),
        (loss([0.0] * 12), loss([math.nan] * 12, [math.inf] * 12)),
        (loss(SHORT, []), loss(LONG, [])),
        (loss([]), loss([])),
    ],
)
def test_quiet(ask, make_measured, make_facts, losses):
    assert ask("DP315", make_measured(), ranks(make_facts, *losses)) == []


def test_one_divisor_of_all_ranks_is_no_mean_of_each():
    of_ranks = [loss(counts, [count / 50 for count in counts]) for counts in (SHORT, LONG)]
    assert between_ranks(of_ranks) is None


def test_traces_alone_do_not_show_it(ask, make_measured):
    with pytest.raises(Missing):
        ask("DP315", make_measured(), [])
