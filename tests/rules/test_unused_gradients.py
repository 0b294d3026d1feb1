"""Gradients that nobody uses: facts are made up, shares are worked out by hand."""

from dataclasses import replace

import pytest

from dptune.measured import Missing
from dptune.runfile.facts import OptimizerFacts
from dptune.runfile.unused import UnusedGradientFacts
from dptune.runfile.window import Window


def run(make_facts, *, window=True, **changed):
    """Of 10 ms, a step spends 6 in backward passes; this one takes 4 of them."""
    timed = Window("untraced", 3, [10_000_000] * 5, backward_ns=[6_000_000] * 5)
    found = {"where": "train.py:52", "tensors": 8, "of_tensors": 20, "gradient_bytes": 4096, "spent_ns": 20_000_000}
    return [make_facts(windows=[timed] if window else [], unused_gradients=[UnusedGradientFacts(**found | changed)])]


def test_parameters_without_an_optimizer(ask, make_measured, make_facts):
    facts = run(make_facts, modules=["encoder", "embed"], made_at="train.py:30", reduced=True)
    (advice,) = ask("DP109", make_measured(device="cpu"), facts)
    assert advice.title == (
        "The backward pass at train.py:52 computes gradients of 8 of 20 parameter tensors (`encoder`, `embed`) that no "
        "optimizer updates: freeze them"
    )
    assert advice.why == "These gradients are computed, averaged over the ranks, and never used."
    assert advice.remedy == (
        "Set requires_grad_(False) on them before DistributedDataParallel wraps the model. If they should be trained, "
        "pass them to the optimizer instead."
    )
    assert (advice.saves.low_share, advice.saves.high_share) == (0, pytest.approx(0.4))
    assert (advice.impact, advice.confidence, advice.numerics, advice.changes) == ("high", "high", "same", [])


def test_the_call_of_a_module_that_no_optimizer_has_is_evidence(ask, make_measured, make_facts):
    (advice,) = ask("DP109", make_measured(device="cpu"), run(make_facts, runs_at="train.py:49"))
    (line,) = (evidence.value for evidence in advice.evidence if evidence.label == "their module is called at")
    assert line == "train.py:49"


def test_the_lines_that_make_the_optimizers_are_evidence_where_none_has_the_parameters(ask, make_measured, make_facts):
    made = [OptimizerFacts("AdamW", where="train.py:31"), OptimizerFacts("SGD", where="train.py:32")]
    labels = {}
    for optimizer in (None, "train.py:31"):
        facts = [replace(rank, optimizers=made) for rank in run(make_facts, optimizer=optimizer)]
        (advice,) = ask("DP109", make_measured(device="cpu"), facts)
        labels[optimizer] = {one.label: one.value for one in advice.evidence}
    assert labels[None]["optimizers created at"] == "train.py:31, train.py:32"
    assert "optimizers created at" not in labels["train.py:31"]
    assert labels["train.py:31"]["their optimizer"] == "train.py:31"


def test_an_input_to_detach(ask, make_measured, make_facts):
    facts = run(make_facts, optimizer="train.py:31", entered_at="train.py:50")
    (advice,) = ask("DP109", make_measured(device="cpu"), facts)
    assert advice.title == (
        "Detach the input of the call at train.py:50: the backward pass at train.py:52 computes gradients of 8 of 20 "
        "parameter tensors that are zeroed before use"
    )
    assert str(advice.place) == "train.py:50"
    assert advice.remedy.startswith("Pass `tensor.detach()` there")
    # What goes forward through DDP and not back is no error: its hooks wait for gradients that begin to arrive.
    (advice,) = ask(
        "DP109", make_measured(device="cpu"), run(make_facts, optimizer="a.py:1", entered_at="a.py:5", reduced=True)
    )
    assert advice.title.startswith("Detach the input of the call at a.py:5")


def test_gradients_that_are_zeroed_before_their_optimizer_steps(ask, make_measured, make_facts):
    facts = run(make_facts, optimizer="train.py:31", modules=["0", "2"], reduced=True)
    (advice,) = ask("DP109", make_measured(device="cpu"), facts)
    assert advice.title == (
        "The backward pass at train.py:52 computes gradients of 8 of 20 parameter tensors that are zeroed before use: "
        "freeze them in this pass"
    )
    assert "`.module`" in advice.remedy  # a forward pass through DDP expects a gradient of each


def test_a_gpu_pays_for_its_part_of_the_backward_compute(ask, make_measured, make_facts, hand_made):
    phases = [
        one.model_copy(update={"compute_ns": 5 * hand_made.STEP_NS}) if one.phase == "backward" else one
        for one in hand_made.phases(0.4, 0.5, 0.1)
    ]
    (advice,) = ask("DP109", make_measured(phases=phases), run(make_facts))
    # Backward passes compute 5 of the account's 10 steps' time; the call takes 4 of 6 ms of them on the host.
    assert advice.saves.high_share == pytest.approx(4 / 6 * 5 / 10)


def test_quiet_where_little_is_unused(ask, make_measured, make_facts):
    measured = make_measured(device="cpu")
    assert ask("DP109", measured, run(make_facts, spent_ns=2_400_000)) == []  # 4.8 % of a step
    assert ask("DP109", measured, run(make_facts, tensors=1)) == []
    assert ask("DP109", measured, [make_facts()]) == []


def test_what_was_not_timed_is_missing(ask, make_measured, make_facts):
    with pytest.raises(Missing, match="no untraced steps were timed"):
        ask("DP109", make_measured(device="cpu"), run(make_facts, window=False))


def test_on_a_cpu_the_part_of_the_pass_that_these_gradients_need_is_saved(ask, make_measured, make_facts):
    """The pass takes 40 % of a step, 20 to 50 % of it for these gradients; three quarters of backward time computes."""
    computing = Window("untraced", 3, [10_000_000] * 5, backward_ns=[6_000_000] * 5, backward_cpu_ns=[4_500_000] * 5)

    def advised(measured, **more):
        (facts,) = run(make_facts, needless=[0.2, 0.3, 0.5])
        return ask("DP109", measured, [replace(facts, windows=[replace(computing, **more)])])

    (advice,) = advised(make_measured(device="cpu"))
    assert advice.saves.basis == "timed"
    assert (advice.saves.low_share, advice.saves.high_share) == pytest.approx((0.8 * 0.4 * 0.2 * 0.75, 1.1 * 0.4 * 0.5))
    assert (advice.saves.predicted_share, advice.impact) == (pytest.approx(0.12), "medium")
    (advice,) = advised(make_measured(device="cpu"), backward_cpu_ns=[])
    assert (advice.saves.basis, advice.saves.high_share, advice.impact) == ("bound", pytest.approx(0.4), "high")


def test_quiet_where_the_gradients_need_little_of_their_pass(ask, make_measured, make_facts):
    """10 % of a pass that takes 40 % of a step."""
    computing = Window("untraced", 3, [10_000_000] * 5, backward_ns=[6_000_000] * 5, backward_cpu_ns=[6_000_000] * 5)
    (facts,) = run(make_facts, needless=[0.05, 0.1, 0.12])
    assert ask("DP109", make_measured(device="cpu"), [replace(facts, windows=[computing])]) == []
