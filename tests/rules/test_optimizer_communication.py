"""Collectives of an optimizer that shards its work itself: the rule, on runs made by hand."""

import math

import pytest

from dptune.predicted import Prediction
from dptune.runfile.facts import OptimizerFacts

ROWS = (
    ("reduce_scatter", "optimizer", 0.02, "other"),
    ("all_gather", "optimizer", 0.05, "other"),
    ("reduce_scatter", "backward", 0.3, "gradients"),
)


@pytest.fixture
def said(ask, make_measured, make_facts, hand_made):
    def say(*names, rows=ROWS):
        facts = make_facts(optimizers=[OptimizerFacts(name) for name in names])
        return ask("DP207", make_measured(overlap=hand_made.overlap(*rows)), [facts])

    return say


def test_an_optimizer_that_averages_and_gathers(said):
    (advice,) = said("NorMuon", "DistAdam")
    assert advice.title == (
        "Exposed reduce-scatters and all-gathers of NorMuon and DistAdam take 7 % of a step: overlap them with the "
        "backward pass and the next forward pass"
    )
    assert [round(each.value, 3) for each in advice.evidence] == [0.02, 0.05]
    assert (advice.impact, advice.saves.basis) == ("medium", "bound")


@pytest.mark.parametrize(
    ("basis", "step", "added", "confidence"),
    [
        ("traced", (0.9, 0.99), "communication saves only 1 to 10 %: the host, slowed", "medium"),
        ("traced", 1.0, "removing all communication in the replay saves nothing: the host, slowed by the", "low"),
        (
            "traced",
            0.96,
            "replaying the traced steps without communication saves only 4.0 %: the host, slowed",
            "medium",
        ),
        ("traced", 0.9, "", "medium"),
        ("untraced", 1.0, "", "medium"),
    ],
)
def test_a_replay_that_saves_less_than_the_bound(
    ask, make_measured, make_facts, hand_made, basis, step, added, confidence
):
    """The bound is 7 % of a step; the replay waits for a host that the profiler slows."""
    measured = make_measured(overlap=hand_made.overlap(*ROWS))
    measured = measured.model_copy(update={"step": measured.step.model_copy(update={"basis": basis})})
    ends = step if isinstance(step, tuple) else (step, step)
    low_ns, high_ns = (round(end * measured.step.time_ns) for end in ends)

    def predictor(changes):
        assert changes == {"link.alpha_us": 0.0, "link.gb_per_s": math.inf}
        named = low_ns if low_ns == high_ns else None
        return Prediction.only("a range", changes={}, step_ns=named, low_ns=low_ns, high_ns=high_ns)

    facts = [make_facts(optimizers=[OptimizerFacts("DistAdam")])]
    (advice,) = ask("DP207", measured, facts, predictor=predictor)
    assert advice.saves.how.startswith("the exposed collectives of the optimizer step")
    assert advice.confidence == confidence
    assert (added in advice.saves.how) if added else ("replay" not in advice.saves.how)


@pytest.mark.parametrize(
    "rows",
    [
        ROWS[:1],  # an average, as any script may make it
        ROWS[2:],
        (("all_gather", "optimizer", 0.01, "other"),),
        (("all_gather", "optimizer", 0.1, "other"), ("all_gather", "forward", 0.0, "sharding")),
        (("all_reduce", "optimizer", 0.1, "other"),),
    ],
)
def test_what_is_no_sharded_optimizer_is_left_alone(said, rows):
    assert said("AdamW", rows=rows) == []


def test_zero_has_a_rule_of_its_own(said):
    assert said("ZeroRedundancyOptimizer", "AdamW") == []


def test_a_process_alone_lacks_nothing(ask, make_measured, make_facts):
    """Its steps hold no communication, which no other recording would change."""
    without = make_measured(world_size=1)
    assert "overlap" in without.missing
    assert ask("DP207", without, [make_facts(optimizers=[OptimizerFacts("AdamW")])]) == []
