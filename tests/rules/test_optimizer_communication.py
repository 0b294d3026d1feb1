"""Collectives of an optimizer that shards its work itself: the rule, on runs made by hand."""

import pytest

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
        "Reduce-scatters and all-gathers of NorMuon and DistAdam hold up 7 % of a step: overlap them with the backward "
        "pass and the next forward pass"
    )
    assert [round(each.value, 3) for each in advice.evidence] == [0.02, 0.05]
    assert (advice.impact, advice.saves.basis) == ("medium", "bound")


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
