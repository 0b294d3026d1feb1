import pytest

from dptune.measured import Missing, OneHotProduct, UserCodeFigures
from dptune.rule import RunView
from dptune.testing import measured_run

from .conftest import RULES, spent_in


def product(share=0.3, backward_ns=5_000_000, sums=False):
    return OneHotProduct(
        name="look_up",
        at="songs.py:21",
        calls=1.0,
        rank=0,
        cost_ns=10_000_000,
        backward_ns=backward_ns,
        share=share,
        classes=5000,
        rows=448,
        sums=sums,
    )


def ask(*found, basis="untraced"):
    code = UserCodeFigures(ranks=[0], steps=2, basis=basis, sites=[], one_hot_products=list(found))
    return list(RULES["DP617"].check(RunView(measured_run(user_code=code), [])))


def test_the_function_its_share_and_what_to_use_instead():
    (advice,) = ask(product())
    assert advice.title == (
        "`look_up` (songs.py:21) spends 30 % of the step multiplying one-hot rows over 5,000 classes, with the "
        "backward pass: use F.embedding or nn.Embedding to look the rows up"
    )
    assert (advice.impact, advice.confidence, advice.numerics) == ("high", "medium", "same")
    assert (advice.saves.basis, advice.saves.low_share, advice.saves.high_share) == ("bound", 0, 0.3)
    assert [(one.label, one.value) for one in advice.evidence] == [
        ("look_up at songs.py:21", 10.0),
        ("their backward pass", 5.0),
        ("classes", 5000),
        ("one-hot rows", 448),
        ("products", 1.0),
    ]


def test_a_sum_by_class():
    (advice,) = ask(product(backward_ns=0, sums=True), basis="traced")
    assert advice.title.endswith("over 5,000 classes: use index_add_ to sum by class")
    assert "no fixed order" in advice.watch
    assert advice.confidence == "low"


def test_quiet_below_five_percent():
    assert ask(product(share=0.049)) == []
    assert [advice.impact for advice in ask(product(share=0.05))] == ["medium"]


@pytest.mark.parametrize(("name", "asks"), [("aten::one_hot", True), ("aten::mm", False)])
def test_without_stacks_it_is_skipped_only_where_an_operator_shows_one(name, asks):
    view = spent_in(name)
    if asks:
        with pytest.raises(Missing):
            list(RULES["DP617"].check(view))
    else:
        assert list(RULES["DP617"].check(view)) == []
