"""Losses that are given probabilities for logits: facts are made up."""

import pytest

from dptune.measured import Missing
from dptune.runfile.probability_losses import ProbabilityLossFacts


def softmax(**changed):
    known = {"applied": "softmax", "loss": "log_softmax", "where": "model.py:8", "loss_where": "train.py:30"}
    return ProbabilityLossFacts(**{**known, "classes": 14, "passes": 3, "passes_seen": 3, **changed})


def test_both_lines_and_the_lowest_loss(ask, make_measured, make_facts):
    (advice,) = ask(
        "DP407", make_measured(), [make_facts(rank=rank, probability_losses=[softmax()]) for rank in (0, 1)]
    )
    assert advice.title == (
        "The cross-entropy loss (train.py:30) expects logits and gets softmax outputs (model.py:8): with 14 classes it "
        "cannot fall below 1.75"
    )
    assert advice.remedy.startswith("Return the logits, and apply softmax only where")
    assert (advice.kind, advice.impact, advice.confidence, advice.saves) == ("risk", "high", "high", None)
    assert [one.value for one in advice.evidence] == [
        3,
        14,
        pytest.approx(1.7548, abs=1e-4),
        "model.py:8",
        "train.py:30",
    ]


def test_a_loss_with_logits_after_a_sigmoid(ask, make_measured, make_facts):
    loss = softmax(applied="sigmoid", loss="binary_cross_entropy_with_logits", classes=None, where=None)
    (advice,) = ask("DP407", make_measured(), [make_facts(probability_losses=[loss])])
    assert advice.title == (
        "The loss binary_cross_entropy_with_logits (train.py:30) expects logits and gets sigmoid outputs"
    )
    assert "below 0.5 or above 0.73" in advice.why
    assert [one.value for one in advice.evidence] == [3, "train.py:30"]


def test_nll_loss_of_the_outputs_of_a_layer(ask, make_measured, make_facts):
    loss = softmax(applied="layer", loss="nll_loss", classes=None)
    (advice,) = ask("DP407", make_measured(), [make_facts(probability_losses=[loss])])
    assert advice.title == (
        "The loss nll_loss (train.py:30) expects log-probabilities and gets outputs of a layer (model.py:8): it can "
        "fall without limit"
    )
    assert advice.remedy.startswith("Use cross_entropy, or apply log_softmax first.")
    assert [one.label for one in advice.evidence[1:]] == ["layer called at", "loss computed at"]


def test_nll_loss_of_probabilities(ask, make_measured, make_facts):
    (advice,) = ask("DP407", make_measured(), [make_facts(probability_losses=[softmax(loss="nll_loss", classes=None)])])
    assert advice.title == (
        "The loss nll_loss (train.py:30) expects log-probabilities and gets softmax outputs (model.py:8)"
    )
    assert advice.remedy.startswith("Use cross_entropy on the logits, or log_softmax in place of softmax.")


def test_both_on_one_line_are_named_once(ask, make_measured, make_facts):
    (advice,) = ask("DP407", make_measured(), [make_facts(probability_losses=[softmax(where="train.py:30")])])
    assert advice.title.count("train.py:30") == 1


def test_quiet(ask, make_measured, make_facts):
    assert ask("DP407", make_measured(), [make_facts()]) == []


def test_traces_alone_do_not_say(ask, make_measured):
    with pytest.raises(Missing):
        ask("DP407", make_measured(), [])


@pytest.mark.parametrize(
    ("applied", "argument", "title", "remedy"),
    [
        (
            "softmax",
            "input",
            "The loss kl_div (train.py:30) expects log-probabilities and gets softmax outputs",
            "Use log_softmax in place of softmax",
        ),
        (
            "layer",
            "input",
            "The loss kl_div (train.py:30) expects log-probabilities and gets outputs of a layer",
            "Apply log_softmax to the logits",
        ),
        (
            "log-probabilities",
            "target",
            "The target of kl_div (train.py:30) has log-probabilities and must have probabilities",
            "Pass log_target=True",
        ),
        (
            "negative values",
            "target",
            "The target of kl_div (train.py:30) has negative values and must have probabilities",
            "Apply softmax to it",
        ),
        (
            "probabilities",
            "log target",
            "The target of kl_div (train.py:30) with log_target=True has probabilities and must have log-probabilities",
            "Leave out log_target=True",
        ),
        (
            "probabilities",
            "swapped",
            "The arguments of kl_div (train.py:30) are swapped: it expects log-probabilities first, then probabilities",
            "Pass the log-probabilities first",
        ),
    ],
)
def test_arguments_of_kl_div(ask, make_measured, make_facts, applied, argument, title, remedy):
    loss = softmax(applied=applied, loss="kl_div", argument=argument, where=None, classes=None)
    (advice,) = ask("DP407", make_measured(), [make_facts(probability_losses=[loss])])
    assert advice.title == title
    assert advice.remedy.startswith(remedy)
    assert [(one.label, one.value) for one in advice.evidence] == [
        ("calls at this line with this fault", 3),
        ("loss computed at", "train.py:30"),
    ]
