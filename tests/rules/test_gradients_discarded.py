"""Gradients that are cleared before an optimizer uses them: facts are made up."""

import pytest

from dptune.measured import Missing
from dptune.runfile.communication import DdpFacts
from dptune.runfile.discarded_gradients import DiscardedGradientFacts
from dptune.runfile.window import Window


def discarded(passes=(4, 4, 4), cleared=(3, 3, 3), where="train.py:30"):
    return DiscardedGradientFacts(where, "train.py:32", list(passes), list(cleared))


def untraced(batches, passes):
    return Window("untraced", 6, [10_000_000] * 20, loader_batches=[batches] * 20, backwards=[passes] * 20)


def test_the_line_that_clears_and_how_many_passes_count(ask, make_measured, make_facts):
    ranks = [make_facts(rank=rank, discarded_gradients=discarded(), windows=[untraced(4, 4)]) for rank in (0, 1)]
    (advice,) = ask("DP304", make_measured(), ranks)
    assert advice.title == (
        "Gradients of 3 of 4 backward passes per optimizer step are cleared before the optimizer uses them "
        "(train.py:30)"
    )
    assert "only the last micro-batch counts" in advice.why
    assert "4x the samples" in advice.watch
    assert (advice.kind, advice.impact, advice.confidence, advice.saves) == ("risk", "high", "high", None)
    assert advice.threatens_results
    assert [one.value for one in advice.evidence] == [4, 3, 1.0, "train.py:30", "train.py:32"]


def test_a_step_that_uses_two_of_four(ask, make_measured, make_facts):
    facts = make_facts(discarded_gradients=discarded(cleared=(2, 2)), windows=[untraced(4, 4)])
    facts.discarded_gradients.passes = [4, 4]
    (advice,) = ask("DP304", make_measured(), [facts])
    assert "only the last 2 micro-batches count" in advice.why
    assert "2x the samples" in advice.watch


def test_steps_without_gradients(ask, make_measured, make_facts):
    (advice,) = ask("DP304", make_measured(), [make_facts(discarded_gradients=discarded((1, 1), (1, 1), None))])
    assert advice.title == "Gradients of each backward pass are cleared before the optimizer uses them"
    assert "no weight is trained" in advice.why
    assert advice.remedy == "Call zero_grad after optimizer.step()."
    assert advice.confidence == "high"


def test_confidence_is_medium_where_batches_are_not_counted(ask, make_measured, make_facts):
    (advice,) = ask("DP304", make_measured(), [make_facts(discarded_gradients=discarded())])
    assert advice.confidence == "medium"
    assert not advice.threatens_results


def test_quiet_where_several_passes_are_of_one_batch(ask, make_measured, make_facts):
    facts = make_facts(discarded_gradients=discarded(), windows=[untraced(1, 4)])
    assert ask("DP304", make_measured(), [facts]) == []


@pytest.mark.parametrize(
    "facts",
    [
        None,
        discarded((4, 4), (0, 0)),
        discarded((4,), (3,)),  # a single step
        discarded((4, 4, 4), (3, 0, 0)),  # an exception
    ],
)
def test_quiet(ask, make_measured, make_facts, facts):
    assert ask("DP304", make_measured(), [make_facts(discarded_gradients=facts)]) == []


def test_traces_alone_do_not_say(ask, make_measured):
    with pytest.raises(Missing):
        ask("DP304", make_measured(), [])


@pytest.mark.parametrize("code", ["DP102", "DP301"])
def test_rules_that_count_micro_batches_are_skipped(ask, make_measured, make_facts, code):
    ddp = DdpFacts("Net", "train.py:10")
    with pytest.raises(Missing, match="cleared before the optimizer uses them"):
        ask(code, make_measured(), [make_facts(ddp=[ddp], discarded_gradients=discarded())])
