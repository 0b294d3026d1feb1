from hypothesis import given
from hypothesis import strategies as st

from dptune.advice import Change, Evidence
from dptune.advise.ranking import merged, ranked, settled


def rules(advice):
    return [one.rule for one in advice]


def test_the_higher_impact_comes_first_whatever_its_upper_bound(make_advice):
    loose = make_advice("XX101", low=0, high=0.9, impact="low")
    costly = make_advice("XX102", low=0, high=0.2, impact="high")
    assert rules(ranked([loose, costly])) == ["XX102", "XX101"]


def test_an_upper_bound_above_half_of_the_step_ranks_as_half_of_it(make_advice):
    """0 to 50 % counts 25 %, and so does 0 to 100 %."""
    unknown = make_advice("XX101", low=0, high=1)
    more, less = make_advice("XX102", low=0.26, high=0.26), make_advice("XX103", low=0.24, high=0.24)
    assert rules(ranked([less, unknown, more])) == ["XX102", "XX101", "XX103"]


def test_then_time_is_ranked_by_the_middle_of_what_it_saves(make_advice):
    ceiling = make_advice("XX101", low=0, high=0.3)
    measured = make_advice("XX102", low=0.2, high=0.22)
    small = make_advice("XX103", low=0, high=0.1)
    assert rules(ranked([small, ceiling, measured])) == ["XX102", "XX101", "XX103"]


def test_of_what_costs_alike_what_leaves_learning_as_it_is_comes_first(make_advice):
    larger = make_advice("XX101", low=0.5, high=0.6, numerics="changes")
    safe = make_advice("XX102", low=0.1, high=0.2)
    worse = make_advice("XX103", low=0.1, high=0.2, impact="high", numerics="changes")
    batch = make_advice("XX104", numerics="changes")
    batch = batch.model_copy(update={"saves": batch.saves.model_copy(update={"samples_times": 4.0, "high_share": 0.9})})
    assert rules(ranked([batch, larger, safe, worse])) == ["XX103", "XX102", "XX101", "XX104"]


def test_then_by_confidence_and_name(make_advice):
    one = make_advice("XX104", impact="medium")
    unsure = make_advice("XX103", impact="high", confidence="low")
    surer = make_advice("XX102", impact="high", confidence="high")
    same = make_advice("XX101", impact="medium")
    assert rules(ranked([one, unsure, surer, same])) == ["XX102", "XX101", "XX104", "XX103"]


def test_kinds_are_ranked_within_themselves(make_advice):
    time = make_advice("XX101", high=0.01, impact="low")
    risk = make_advice("XX102", kind="risk", impact="high", saves=None)
    lesser = make_advice("XX103", kind="risk", impact="low", saves=None)
    learning = make_advice("XX104", kind="convergence", impact="high", saves=None)
    assert rules(ranked([learning, lesser, risk, time])) == ["XX101", "XX102", "XX103", "XX104"]


def test_low_confidence_comes_after_every_other_kind(make_advice):
    unsure = make_advice("XX101", impact="high", high=0.5, confidence="low")
    risk = make_advice("XX102", kind="risk", impact="low", saves=None, confidence="medium")
    assert rules(ranked([unsure, risk])) == ["XX102", "XX101"]


def test_what_certainly_trains_another_model_comes_before_what_saves_time(make_advice):
    time = make_advice("XX101", low=0.4, high=0.5, impact="high")
    wrong = make_advice("XX102", kind="risk", impact="high", saves=None, numerics="changes")
    beside = make_advice("XX103", kind="risk", impact="high", saves=None)
    assert rules(ranked([time, beside, wrong])) == ["XX102", "XX103", "XX101"]
    unsure = wrong.model_copy(update={"confidence": "medium"})
    assert rules(ranked([time, unsure])) == ["XX101", "XX102"]


def test_a_certain_risk_comes_before_a_bound_that_may_come_to_nothing(make_advice):
    """0 to 60 % is a bound; 0 to 40 %, or high confidence, is known well enough."""
    unknown = make_advice("XX101", low=0, high=0.6, impact="high", confidence="medium")
    risk = make_advice("XX102", kind="risk", impact="medium", saves=None, numerics="changes", confidence="high")
    assert rules(ranked([unknown, risk])) == ["XX102", "XX101"]
    smaller = make_advice("XX103", low=0, high=0.4, impact="high", confidence="medium")
    assert rules(ranked([smaller, risk])) == ["XX103", "XX102"]
    sure = unknown.model_copy(update={"confidence": "high"})
    assert rules(ranked([sure, risk])) == ["XX101", "XX102"]
    for changed in ({"impact": "low"}, {"confidence": "medium"}, {"numerics": "same"}):
        assert rules(ranked([unknown, risk.model_copy(update=changed)])) == ["XX101", "XX102"]


def test_a_risk_comes_before_savings_of_low_impact(make_advice):
    small = make_advice("XX101", impact="low", high=0.04)
    risk = make_advice("XX102", kind="risk", impact="medium", saves=None, numerics="changes", confidence="medium")
    assert rules(ranked([small, risk])) == ["XX102", "XX101"]
    larger = make_advice("XX103", impact="medium", high=0.1)
    assert rules(ranked([small, larger, risk])) == ["XX103", "XX101", "XX102"]
    for changed in ({"impact": "low"}, {"numerics": "same"}):
        assert rules(ranked([small, risk.model_copy(update=changed)])) == ["XX101", "XX102"]


def test_a_saving_does_not_lift_a_risk(make_advice):
    costly = make_advice("XX101", kind="risk", impact="low", high=0.9)
    severe = make_advice("XX102", kind="risk", impact="high", saves=None)
    assert rules(ranked([costly, severe])) == ["XX102", "XX101"]


@given(st.permutations(range(6)))
def test_the_order_does_not_depend_on_the_order_of_the_rules(hand_made, order):
    from dptune.advice import Advice

    base = {"slug": "", "kind": "risk", "impact": "low", "title": "", "why": "", "changes": [], "evidence": []}
    advice = [
        Advice(**base, rule=f"XX{n}", confidence="low", numerics="same", fingerprint=f"XX{n}:subject") for n in order
    ]
    assert rules(ranked(advice)) == [f"XX{n}" for n in range(6)]


def test_one_mechanism_gives_one_card(make_advice):
    first = make_advice(high=0.3, impact="high", evidence=[Evidence(label="a", value=1)])
    again = make_advice(
        high=0.1,
        impact="medium",
        changes=[*first.changes, Change(knob="ddp.no_sync", now=False, then=True)],
        evidence=[Evidence(label="a", value=1), Evidence(label="b", value=2)],
    )
    other = make_advice("XX102", high=0.2)
    card, left = merged([again, other, first])
    assert (card.rule, left.rule) == ("XX101", "XX102")
    assert card.saves.high_share == 0.3
    assert card.impact == "high"
    assert [change.knob for change in card.changes] == ["loader.num_workers", "ddp.no_sync"]
    assert [evidence.label for evidence in card.evidence] == ["a", "b"]


def workers(count, at=None):
    return [Change(knob="loader.num_workers", now=0, then=count, at=at)]


def test_contradictions_are_resolved_for_the_better_ranked(make_advice):
    better = make_advice("XX101", high=0.3, changes=workers(4))
    worse = make_advice("XX102", high=0.1, changes=workers(8))
    kept, dropped = settled([worse, better])
    assert rules(kept) == ["XX101"]
    assert [(one.rule, "XX101" in one.reason) for one in dropped] == [("XX102", True)]


def test_what_is_predicted_goes_before_what_may_come_to_nothing(make_advice):
    bound = make_advice("XX101", high=0.3, changes=workers(4))
    predicted = make_advice("XX102", high=0.1, changes=workers(8))
    surer = predicted.model_copy(update={"saves": predicted.saves.model_copy(update={"basis": "replayed"})})
    risk = make_advice("XX103", kind="risk", saves=None, changes=workers(2))
    alone = make_advice("XX104", high=0.2, changes=[])
    kept, dropped = settled([bound, surer, alone])
    assert (rules(kept), rules(dropped)) == (["XX104", "XX102"], ["XX101"])  # as ranked, whatever was surer
    assert rules(settled([bound, risk])[0]) == ["XX103"]


def test_a_contradiction_is_never_settled_for_low_confidence(make_advice):
    bound = make_advice("XX101", high=0.1, changes=workers(4), confidence="medium")
    unsure = make_advice("XX102", low=0.2, high=0.4, changes=workers(8), confidence="low")
    unsure = unsure.model_copy(update={"saves": unsure.saves.model_copy(update={"basis": "replayed"})})
    assert rules(settled([unsure, bound])[0]) == ["XX101"]


def test_agreement_and_other_places_are_no_contradiction(make_advice):
    here, there = {"file": "train.py", "line": 1}, {"file": "val.py", "line": 1}
    advice = [
        make_advice("XX101", changes=workers(4, here)),
        make_advice("XX102", changes=workers(4, here)),
        make_advice("XX103", changes=workers(2, there)),
    ]
    assert settled(advice) == (advice, [])
    kept, dropped = settled([*advice, make_advice("XX104", changes=workers(9))])
    assert rules(dropped) == ["XX104"]
    assert kept == advice
