from dataclasses import replace

import pytest

from dptune.measured import Missing
from dptune.runfile.communication import DdpFacts
from dptune.runfile.window import Window


def searching(unused=0, on=True):
    return DdpFacts(
        "Net", "train.py:31", find_unused_parameters=on, unused_parameter_bytes=unused, parameter_tensors=100
    )


def marks(make_all_reduce, dtype="int32"):
    """400 bytes of marks, communicated in 0.3 ms, 0.15 at the least: what is more may be waiting for a rank."""
    return make_all_reduce(400, 1, 150_000, dtype=dtype)


def test_a_search_that_finds_nothing(ask, make_measured, make_facts, make_all_reduce):
    """Of a step of 10 ms the marks take 0.15 ms and 100 tensors 0.4."""
    run = make_measured(exposed_share=0.1, collectives=[marks(make_all_reduce), make_all_reduce(2**20, 4)])
    (advice,) = ask("DP106", run, [make_facts(ddp=[searching()])])
    assert advice.title == (
        "DDP looks for parameters without a gradient in every step, and there were none: without the search a step "
        "takes up to 14 % less time"
    )
    (change,) = advice.changes
    assert (change.knob, change.now, change.then) == ("ddp.find_unused_parameters", True, False)
    assert str(change.at) == "train.py:31"
    assert advice.saves.high_share == pytest.approx(0.14)  # the tensors, and the 10 % that are exposed, marks and all
    assert [one.value for one in advice.evidence] == pytest.approx([100, 0.055, 0.1])
    assert (advice.impact, advice.saves.basis) == ("medium", "bound")


def test_an_upper_bound_above_half_of_the_step_is_no_promise(ask, make_measured, make_facts, make_all_reduce):
    run = make_measured(exposed_share=0.6, collectives=[marks(make_all_reduce), make_all_reduce(2**20, 4)])
    (advice,) = ask("DP106", run, [make_facts(ddp=[searching()])])
    assert advice.title.endswith("without the search a step takes less time, by an unknown amount")


def test_quiet(ask, make_measured, make_facts, make_all_reduce):
    run = make_measured(collectives=[marks(make_all_reduce)])
    assert ask("DP106", run, [make_facts(ddp=[searching(on=False)])]) == []
    other = make_facts(rank=1, ddp=[searching(unused=64)])
    assert ask("DP106", run, [make_facts(ddp=[searching()]), other]) == []  # found on one rank is found
    static = DdpFacts(
        "Net", find_unused_parameters=True, static_graph=True, unused_parameter_bytes=0, parameter_tensors=800
    )
    assert ask("DP106", run, [make_facts(ddp=[static])]) == []  # which searches once
    few = DdpFacts("Net", find_unused_parameters=True, unused_parameter_bytes=0, parameter_tensors=10)
    assert ask("DP106", make_measured(), [make_facts(ddp=[few])]) == []


def test_another_all_reduce_is_not_that_of_the_marks(ask, make_measured, make_facts, make_all_reduce):
    run = make_measured(collectives=[marks(make_all_reduce, "float32")])
    (advice,) = ask("DP106", run, [make_facts(ddp=[searching()])])
    assert advice.saves.high_share == pytest.approx(0.04)


def test_it_says_what_it_does_not_know(ask, make_measured, make_facts):
    with pytest.raises(Missing, match="torch did not report whether"):
        ask("DP106", make_measured(), [make_facts(ddp=[searching(unused=None)])])


def test_the_title_says_what_is_predicted(ask, make_measured, make_facts, make_all_reduce, predict):
    run = make_measured(exposed_share=0.1, collectives=[marks(make_all_reduce)])
    told = predict("ddp.find_unused_parameters", {False: 0.93})
    (advice,) = ask("DP106", run, [make_facts(ddp=[searching()])], predictor=told)
    assert advice.title.endswith("without the search a step takes about 7 % less time")


def test_of_a_range_the_title_has_both_ends(ask, make_measured, make_facts, make_all_reduce, predict_range):
    run = make_measured(exposed_share=0.1, collectives=[marks(make_all_reduce)])
    told = predict_range("ddp.find_unused_parameters", {False: (0.4, 0.93)})
    (advice,) = ask("DP106", run, [make_facts(ddp=[searching()])], predictor=told)
    assert advice.title.endswith("without the search a step takes 7 to 60 % less time")


def timed(make_facts, *of_ranks, **ddp):
    """Ranks with these ms of search in each of two steps of 10 ms."""
    module = replace(searching(), **ddp)
    return [
        make_facts(
            rank=rank,
            ddp=[module],
            windows=[Window("untraced", 3, [10_000_000] * 2, unused_search_ns=[int(ms * 1e6) for ms in of_steps])],
        )
        for rank, of_steps in enumerate(of_ranks)
    ]


ONE_BUCKET = {"gradient_bytes": 2**19, "first_bucket_bytes": 2**20}
IN_ORDER = {"gradient_bytes": 2**24, "first_bucket_bytes": 2**20, "grad_ready_order": [8, 9, 7, 6, 5, 4, 3, 2, 0, 1]}
ANOTHER = {**IN_ORDER, "grad_ready_order": [4, 3, 2, 1, 0, 9, 8, 7, 6, 5]}


@pytest.mark.parametrize(("ddp", "exposed"), [(ONE_BUCKET, 0.015), (IN_ORDER, 0.015), (ANOTHER, 0.1)])
def test_on_a_cpu_the_search_is_timed(ask, make_measured, make_facts, make_all_reduce, ddp, exposed):
    """6 and 8 % of the steps, marks of 1.5 %; in another order buckets may hide the 10 % that are exposed."""
    run = make_measured(world=2, device="cpu", exposed_share=0.1, collectives=[marks(make_all_reduce)])
    (advice,) = ask("DP106", run, timed(make_facts, (0.5, 0.7), (0.9, 0.7), **ddp))
    assert advice.saves.basis == "timed"
    assert (advice.saves.low_share, advice.saves.high_share) == pytest.approx((0.8 * 0.06, 1.1 * (0.08 + exposed)))
    assert [found.value for found in advice.evidence] == pytest.approx([100, 0.07 + 0.015, 0.1])
    assert advice.evidence[1].unit == "of a step"
    assert "about" in advice.title


def test_a_rank_without_times_or_a_gpu_leaves_a_bound(ask, make_measured, make_facts, make_all_reduce):
    run = make_measured(world=2, device="cpu", collectives=[marks(make_all_reduce)])
    (advice,) = ask("DP106", run, timed(make_facts, (0.5, 0.7), (0, 0)))
    assert (advice.saves.basis, advice.saves.low_share) == ("bound", 0)
    (advice,) = ask("DP106", make_measured(world=2, exposed_share=0.1), timed(make_facts, (0.5, 0.7), (0.5, 0.7)))
    assert (advice.saves.basis, advice.saves.high_share) == ("bound", pytest.approx(0.06 + 0.1))


def test_a_short_search_is_not_worth_a_change(ask, make_measured, make_facts):
    """By its time: 4 us for each tensor would be 4 %."""
    run = make_measured(world=2, device="cpu")
    assert ask("DP106", run, timed(make_facts, (0.1, 0.1), (0.1, 0.1))) == []


def test_the_line_of_the_argument(ask, make_measured, make_facts):
    lines = {"argument_lines": {"find_unused_parameters": "train.py:34"}}
    (advice,) = ask("DP106", make_measured(world=2, device="cpu"), timed(make_facts, (0.5, 0.7), (0.9, 0.7), **lines))
    assert [found.value for found in advice.evidence][-1] == "train.py:34"
