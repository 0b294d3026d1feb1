import pytest

from dptune.measured import Decomposition, Missing, UserCodeFigures
from dptune.rule import RunView
from dptune.testing import measured_run

from .conftest import RULES, spent_in


def decomposition(operator="svdvals", share=0.35, backward_ns=1_000_000):
    return Decomposition(
        name="forward",
        at="critic.py:16",
        operator=operator,
        calls=8.0,
        rank=0,
        cost_ns=round(share * 10_000_000) - backward_ns,
        backward_ns=backward_ns,
        share=share,
    )


def ask(*found, basis="untraced"):
    code = UserCodeFigures(ranks=[0], steps=2, basis=basis, sites=[], decompositions=list(found))
    return list(RULES["DP613"].check(RunView(measured_run(user_code=code), [])))


def test_the_line_its_share_with_the_backward_pass_and_what_to_use_instead():
    (advice,) = ask(decomposition())
    assert advice.title == (
        "`forward` (critic.py:16) spends 35 % of the step in torch.linalg.svdvals and its backward pass: use power "
        "iteration (torch.nn.utils.parametrizations.spectral_norm), or compute it every N steps"
    )
    assert (advice.impact, advice.confidence, advice.numerics) == ("high", "medium", "changes")
    assert (advice.saves.basis, advice.saves.low_share, advice.saves.high_share) == ("bound", 0, 0.35)
    assert [(one.label, one.value) for one in advice.evidence] == [
        ("forward at critic.py:16", 2.5),
        ("their backward pass", 1.0),
        ("calls of torch.linalg.svdvals", 8.0),
    ]


@pytest.mark.parametrize(
    ("operator", "remedy"),
    [
        ("eigh", "Newton-Schulz"),
        ("inv", "torch.linalg.solve"),
        ("matrix_exp", "smaller matrix"),
        ("cholesky", "every N steps"),
    ],
)
def test_what_may_be_the_method_has_low_confidence(operator, remedy):
    (advice,) = ask(decomposition(operator, backward_ns=0))
    assert advice.confidence == "low"
    assert "backward pass" not in advice.title
    assert remedy in advice.title


def test_quiet_below_five_percent():
    assert ask(decomposition(share=0.049)) == []
    assert [one.impact for one in ask(decomposition(share=0.05))] == ["medium"]


@pytest.mark.parametrize(("name", "asks"), [("aten::_linalg_svd", True), ("aten::mm", False), ("aten::linear", False)])
def test_without_stacks_it_is_skipped_only_where_an_operator_shows_one(name, asks):
    view = spent_in(name)
    if asks:
        with pytest.raises(Missing):
            list(RULES["DP613"].check(view))
    else:
        assert list(RULES["DP613"].check(view)) == []
