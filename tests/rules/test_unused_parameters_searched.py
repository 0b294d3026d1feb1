import pytest

from dptune.measured import Missing
from dptune.runfile.communication import DdpFacts


def searching(unused=0, on=True):
    return DdpFacts(
        "Net", "train.py:31", find_unused_parameters=on, unused_parameter_bytes=unused, parameter_tensors=100
    )


def marks(make_all_reduce, dtype="int32"):
    """400 bytes of marks, exchanged in 0.3 ms, 0.15 at the least: what is more may be waiting for a rank."""
    return make_all_reduce(400, 1, 150_000, dtype=dtype)


def test_a_search_that_finds_nothing(ask, make_measured, make_facts, make_all_reduce):
    """Of a step of 10 ms the marks take 0.15 ms and 100 tensors 0.4."""
    run = make_measured(exposed_share=0.1, collectives=[marks(make_all_reduce), make_all_reduce(2**20, 4)])
    (advice,) = ask("DP106", run, [make_facts(ddp=[searching()])])
    assert advice.title == (
        "DDP looks for parameters without a gradient in every step, and there were none: without the search a step "
        "takes up to 14 % less"
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
    assert advice.title.endswith("without the search a step takes about 7 % less")
