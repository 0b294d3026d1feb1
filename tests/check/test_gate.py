"""What trips the gate: advice of most runs, budgets, and a baseline."""

from __future__ import annotations

from typing import Any

import pytest

from dptune.advice import Advice, Confidence, Headline, Impact, Report, RunSummary, Saving, Skipped, Trust, Verified
from dptune.check.gate import BUDGETS, Terms, judge, of_comparison, of_proof
from dptune.compare.result import Comparison
from dptune.finding import Finding
from dptune.measured import (
    Account,
    AccumulationFigures,
    InputFigures,
    MatmulFigures,
    Measured,
    MemoryFigures,
    StepTime,
)
from dptune.measured.inferred import InferredBatch, InferredFacts
from dptune.present.ink import paint
from dptune.present.sections.gate import page
from dptune.prove.result import Look, Proof, Trial
from dptune.runfile.facts import Facts

WHY = "it was not recorded"


def advice(fingerprint: str, impact: Impact = "high", confidence: Confidence = "high") -> Advice:
    saves = Saving(low_ms=1, high_ms=2, low_share=0.1, high_share=0.2, basis="bound", how="by reasoning")
    return Advice(
        rule=fingerprint[:5],
        slug="made-up",
        kind="time",
        impact=impact,
        title=f"{fingerprint} is {impact}",
        why="because",
        changes=[],
        saves=saves,
        confidence=confidence,
        evidence=[],
        numerics="same",
        fingerprint=fingerprint,
    )


def report(*found: Advice, level: str = "sound", step_ms: float = 10.0, **more: Any) -> Report:
    measured = Measured.only(
        WHY,
        step=StepTime.only(WHY, basis="untraced", time_ns=round(step_ms * 1e6)),
        ranks=[],
        input=InputFigures.only(WHY),
        accumulation=AccumulationFigures.only(WHY),
        matmul=MatmulFigures.only(WHY),
        **more,
    )
    findings = [] if level == "sound" else [Finding(code="x", level=level, text="something is missing")]  # type: ignore[arg-type]
    return Report(
        dptune="0.1",
        run=RunSummary(sources=["runs/one"], command="python train.py"),
        headline=Headline(verdict="v", why="w", next="n"),
        trust=Trust.model_validate({"level": level, "findings": findings}),
        advice=list(found),
        skipped=[],
        quiet=["DP501"],
        measured=measured,
    )


def rules(found: list[Advice]) -> list[str]:
    return [one.fingerprint for one in found]


def test_of_several_runs_what_most_have_counts_in_their_order():
    runs = [
        report(advice("DP101:a"), advice("DP102:b")),
        report(advice("DP103:c"), advice("DP102:b"), advice("DP101:a")),
        report(advice("DP102:b")),
    ]
    gate = judge(runs, Terms())
    assert (gate.outcome, rules(gate.tripped)) == ("failed", ["DP101:a", "DP102:b"])
    assert gate.runs == ["runs/one (python train.py)"] * 3
    assert rules(judge(runs[:2], Terms()).tripped) == ["DP101:a", "DP102:b"]  # half is not most
    assert judge(runs[1:], Terms(fail_on="never")).outcome == "passed"


def test_what_is_accepted_or_was_there_before_is_passed_over():
    now = [report(advice("DP101:a"), advice("DP102:b"), advice("DP103:c"))]
    gate = judge(now, Terms(accepted={"DP101:a": ""}), before=[report(advice("DP102:b"))])
    assert rules(gate.tripped) == ["DP103:c"]
    assert [(one.advice.fingerprint, one.why) for one in gate.passed_over] == [
        ("DP101:a", "accepted"),
        ("DP102:b", "the baseline has it too"),
    ]
    accepted = Terms(accepted=dict.fromkeys(("DP101:a", "DP102:b", "DP103:c"), "high"))
    assert judge(now, accepted).outcome == "passed"


def test_what_has_become_more_severe_is_not_passed_over():
    now = [report(advice("DP101:a", "high"))]
    assert judge(now, Terms(accepted={"DP101:a": "medium"})).outcome == "failed"
    assert judge(now, Terms(), before=[report(advice("DP101:a", "low"))]).outcome == "failed"
    assert judge([report(advice("DP101:a", "medium"))], Terms(accepted={"DP101:a": "high"})).outcome == "passed"


@pytest.mark.parametrize("turn", range(4))
def test_impact_is_the_one_that_most_runs_reach_in_whatever_order_they_are_named(turn):
    runs = [report(advice("DP101:a", impact)) for impact in ("low", "high", "high", "high")]
    (one,) = judge(runs[turn:] + runs[:turn], Terms(fail_on="high")).tripped
    assert one.impact == "high"
    two = [report(advice("DP101:a", impact)) for impact in ("low", "low", "high", "high")]
    assert judge(two[turn:] + two[:turn], Terms(fail_on="high")).outcome == "passed"


def test_of_several_runs_no_step_is_named_that_is_another_one_s():
    assert judge([report()], Terms()).step_ns == report().measured.step.time_ns
    assert judge([report()] * 2, Terms()).step_ns is None


def test_budgets_are_of_the_median_run():
    account = Account(**{**dict.fromkeys(Account.model_fields, 0), "window_ns": 10, "compute_ns": 7, "gc_idle_ns": 3})
    memory = [MemoryFigures.only(WHY, rank=0, device="cuda:0", peak_reserved_bytes=size) for size in (10**9, 3 * 10**9)]
    runs = [report(step_ms=ms, samples_per_step=100, account=account, memory=memory) for ms in (10.0, 12.0, 30.0)]
    limits = {"step_ms": 12.0, "us_per_sample": 119.9, "idle_share": 0.3, "peak_memory_gb": 2.9}
    gate = judge(runs, Terms(budgets=limits))
    assert {one.name: (one.value, one.kept) for one in gate.budgets} == {
        "step_ms": (12.0, True),
        "us_per_sample": (120.0, False),
        "idle_share": (0.3, True),
        "peak_memory_gb": (3.0, False),
    }
    assert gate.outcome == "failed"
    assert judge(runs, Terms(budgets={"step_ms": 12.0})).outcome == "passed"


def test_a_budget_by_an_inferred_batch_size_says_so():
    batch = InferredBatch(samples=50, confidence="low", sources=["inputs of linear"])
    inferred = InferredFacts(facts=Facts(rank=0), confidence={}, batch=batch)
    gate = judge([report(samples_per_step=100, inferred=inferred)], Terms(budgets={"us_per_sample": 119.9}))
    assert gate.budgets[0].what == "time per sample in us, with an inferred batch size"


@pytest.mark.parametrize("name", sorted(set(BUDGETS) - {"step_ms"}))
def test_a_budget_that_cannot_be_judged_does_not_pass(name):
    gate = judge([report()], Terms(budgets={name: 1e9}))
    (budget,) = gate.budgets
    assert (gate.outcome, budget.value, budget.why_missing) == ("unjudgeable", None, "it was not recorded")
    broken = judge([report(advice("DP101:a"))], Terms(budgets={name: 1e9}))
    assert broken.outcome == "failed"


def test_the_run_that_can_be_judged_least_decides():
    gate = judge([report(), report(level="unjudgeable")], Terms())
    assert (gate.outcome, gate.trust.level) == ("unjudgeable", "unjudgeable")
    gate = judge([report().model_copy(update={"skipped": [Skipped(rule="DP103", reason="no links")]})], Terms())
    assert gate.reservations == ["1 rule could not run (see `dptune report --section skipped`)"]


def compared(outcome: str, ratio: float | None = None, high: float | None = None) -> Comparison:
    """As `dptune compare` finds it, but for what the gate does not read."""
    figures = {"ratio": ratio, "low_ratio": 0.9 if high else None, "high_ratio": high}
    missing = dict.fromkeys([name for name, value in figures.items() if value is None] + ["p_value"], "too few runs")
    verdict = {"outcome": outcome, "reason": "too few runs", "level": 0.05, "runs_needed": 4, **figures}
    blank = {"missing": {"a": "x", "b": "x", "difference": "x"}}
    return Comparison.model_validate(
        {
            "dptune": "0.1",
            "headline": {"verdict": "v", "why": "w", "next": "n"},
            "compared": {
                "objective": "time per sample",
                "basis": "untraced",
                "runs": [],
                "time_ns": blank,
                "step_ns": blank,
                "loader_wait_ns": blank,
                "verdict": {**verdict, "missing": missing},
                "conditions": [],
                "remarks": [],
                "missing": dict.fromkeys(
                    ("ratio", "categories", "phases", "ranks", "collectives", "copies", "straggler", "facts"), "x"
                ),
            },
        }
    )


@pytest.mark.parametrize(
    ("found", "outcome", "text"),
    [
        (compared("worse", 1.10, 1.12), "failed", "Time per sample is 10.0 % more; limit 5 %"),
        (compared("worse", 1.03, 1.05), "passed", "Time per sample is 3.0 % more; limit 5 %"),
        (
            compared("worse", 1.03, 1.06),
            "inconclusive",
            "Time per sample is 3.0 % more, and 6.0 % more is not excluded; limit 5 %",
        ),
        (compared("better", 0.8, 0.9), "passed", "Time per sample is 20.0 % less; limit 5 %"),
        (compared("inconclusive", 1.0, 1.04), "passed", "Time per sample is 0.0 % less; limit 5 %"),
        (
            compared("inconclusive", 1.04, 1.09),
            "inconclusive",
            "Time per sample is 4.0 % more, not significant: too few runs",
        ),
        (compared("inconclusive"), "inconclusive", "Too few runs"),
        (compared("not comparable"), "inconclusive", "Too few runs"),
    ],
)
def test_a_baseline_of_recordings(found, outcome, text):
    told = of_comparison(found, 0.05)
    assert (told.outcome, told.text) == (outcome, text)
    assert judge([report()], Terms(), [report()], told).outcome == outcome
    severe = judge([report(advice("DP101:a"))], Terms(), [report()], told)
    assert severe.outcome == "failed"


def proof(outcome: str, decided_by: str, **figures: float) -> Proof:
    look = {"runs": 6, "level": 0.01, "p_value": 0.5, "fast_p_value": 0.5, "ratio": 1.0, "fast_ratio": 1.0}
    look |= {"low_ratio": 0.95, "high_ratio": 1.2, "fast_low_ratio": 0.99, "fast_high_ratio": 1.01, **figures}
    kept = {"outcome": outcome, "decided_by": decided_by, "objective": "time per step", "reason": "as it is"}
    trials = [Trial.model_construct(side=side, status="ran") for _ in range(6) for side in "AB"]
    kept |= {"ended": "decided", "trials": trials, "looks": [Look.model_validate(look)], "missing": {}}
    return Proof.model_construct(**kept, **figures)


def test_trials_are_judged_by_the_steps_that_decided():
    fast = of_proof(proof("worse", "fast", ratio=1.0, fast_ratio=1.07), 0.05)
    assert (fast.outcome, fast.ratio, fast.low_ratio, fast.high_ratio) == ("failed", 1.07, 0.99, 1.01)
    undecided = of_proof(proof("inconclusive", "", ratio=1.02, fast_ratio=1.0), 0.05, 1.06)
    assert (undecided.outcome, undecided.high_ratio) == ("inconclusive", 1.2)
    assert of_proof(proof("inconclusive", "", ratio=1.02, fast_ratio=1.0), 0.06, 1.06).outcome == "passed"
    assert of_proof(proof("inconclusive", "", ratio=1.02, fast_ratio=1.0), 0.2).outcome == "inconclusive"
    assert fast.text == "Time per step of the fastest steps is 7.0 % more; limit 5 %"
    assert (fast.fast_steps, undecided.fast_steps) == (True, False)


def test_less_than_is_allowed_passes_only_where_more_is_excluded_of_all_steps():
    """All steps take 5 % less to 20 % more."""
    slower = of_proof(proof("worse", "fast", ratio=1.08, fast_ratio=1.03), 0.05, 1.2)
    assert slower.outcome == "inconclusive"
    assert slower.text.endswith("3.0 % more, and 20.0 % more is not excluded; limit 5 %")
    assert of_proof(proof("worse", "fast", ratio=1.08, fast_ratio=1.03), 0.2, 1.2).outcome == "passed"
    assert of_proof(proof("better", "fast", ratio=1.08, fast_ratio=0.9), 0.05).outcome == "inconclusive"
    assert of_proof(proof("better", "mean", ratio=0.9, fast_ratio=0.9), 0.05).outcome == "passed"


def test_trials_since_the_last_look_do_not_count():
    found = proof("inconclusive", "", ratio=1.0, fast_ratio=1.0)
    more = found.model_copy(update={"trials": [*found.trials, *found.trials[:2]], "ratio": 1.3, "fast_ratio": 1.3})
    assert of_proof(more, 0.2, 1.2) == of_proof(found, 0.2, 1.2)
    assert (of_proof(more, 0.2, 1.2).ratio, of_proof(more, 0.2, 1.2).outcome) == (1.0, "passed")


@pytest.mark.parametrize("ended", ["cannot run", "not comparable"])
def test_sides_that_cannot_be_compared_do_not_pass(ended):
    found = proof("inconclusive", "").model_copy(update={"ended": ended, "reason": "side B cannot run"})
    gate = judge([report()], Terms(), [report()], of_proof(found, 0.05))
    assert gate.outcome == "unjudgeable"
    shown = " ".join(paint(page(gate, 100), False).split())
    assert shown.startswith("UNJUDGEABLE: it cannot be compared with the baseline, so it does not pass.")
    assert "baseline: unjudgeable: side B cannot run." in shown


def test_what_decides_nothing_fails_where_that_is_asked_for():
    told = of_comparison(compared("inconclusive", 1.04, 1.09), 0.05)
    gate = judge([report()], Terms(inconclusive_fails=True), [report()], told)
    assert (gate.outcome, told.outcome, gate.baseline_fails) == ("failed", "inconclusive", True)
    shown = " ".join(paint(page(gate, 100), False).split())
    assert shown.startswith("FAILED: a slowdown against the baseline is not excluded.")


def test_advice_that_gave_way_is_no_rule_that_could_not_run():
    aside = [Skipped.giving_way("DP101", "DP103 saves more"), Skipped(rule="DP201", reason="no links")]
    gate = judge([report().model_copy(update={"skipped": aside})], Terms())
    assert gate.reservations == ["1 rule could not run (see `dptune report --section skipped`)"]
    assert [one.rule for one in gate.skipped] == ["DP101", "DP201"]


def test_the_baseline_is_named():
    gate = judge([report()], Terms(), [report()], None)
    assert gate.baseline == gate.runs == [report().run.subject]
    assert f"baseline: {report().run.subject}" in paint(page(gate, 100), False)


def test_rules_that_are_not_there_are_a_reservation():
    broken = Trust(level="sound", findings=[Finding(code="rule-pack", level="info", text="acme: no module")])
    gate = judge([report().model_copy(update={"trust": broken, "quiet": []})], Terms())
    assert gate.reservations == ["1 rule pack did not load (see `dptune rules list`)", "no rules were selected"]


def test_what_came_of_running_the_advice_stands_beside_it():
    proof = Verified(
        name="ddp.no_sync=true",
        advice="DP101",
        changes={"ddp.no_sync": True},
        outcome="better",
        reason="the trials lie apart",
        objective="time per step",
        ratio=0.5,
        low_ratio=None,
        high_ratio=None,
        trials=6,
        learning="alike",
    )
    found = report(advice("DP101:a")).model_copy(
        update={"verified": [proof, proof.model_copy(update={"advice": "DP102"})]}
    )
    gate = judge([found], Terms())
    assert gate.verified == [proof]
    assert "verified: faster: 50.0 % less time per step" in " ".join(paint(page(gate, 100), False).split())


@pytest.mark.parametrize(
    ("confidence", "least", "outcome"),
    [
        ("low", "medium", "passed"),
        ("medium", "medium", "failed"),
        ("medium", "high", "passed"),
        ("low", "low", "failed"),
    ],
)
def test_advice_trips_the_gate_with_the_confidence_asked_for(confidence, least, outcome):
    gate = judge([report(advice("DP101:a", "high", confidence))], Terms(least_confidence=least))
    assert gate.outcome == outcome
    assert gate.below == ([] if outcome == "failed" else ["DP101"])


def test_low_confidence_fails_nothing_by_default():
    assert judge([report(advice("DP101:a", "high", "low"))], Terms()).outcome == "passed"
    now, before = [report(advice("DP101:a", "high", "low"))], [report(advice("DP101:a", "low", "low"))]
    assert judge(now, Terms(accepted={"DP101:a": "low"}), before=before).outcome == "passed"


@pytest.mark.parametrize("turn", range(3))
def test_of_several_runs_most_must_have_both_impact_and_confidence(turn):
    """Two of three have medium impact, two of three medium confidence, but only one has both."""
    rated = (("medium", "medium"), ("medium", "low"), ("low", "medium"))
    runs = [report(advice("DP101:a", impact, confidence)) for impact, confidence in rated]
    gate = judge(runs[turn:] + runs[:turn], Terms())
    assert (gate.outcome, gate.below) == ("passed", ["DP101"])
    assert judge([runs[0], runs[1], runs[0]], Terms()).outcome == "failed"
