import pytest

from dptune.measured import BroadcastReduction, Missing, UserCodeFigures
from dptune.rule import RunView
from dptune.testing import measured_run

from .conftest import RULES, spent_in


def pairs(share=0.35, kind="squared", left=(16, 96, 1, 48), backward_ns=0):
    return BroadcastReduction(
        name="nearest",
        at="jets.py:13",
        calls=3.0,
        rank=0,
        cost_ns=16_000_000,
        backward_ns=backward_ns,
        share=share,
        kind=kind,
        left=list(left),
        right=[16, 1, 96, 48],
        whole=[16, 96, 96, 48],
    )


def ask(*found, basis="untraced", device="cpu", facts=()):
    code = UserCodeFigures(ranks=[0], steps=2, basis=basis, sites=[], broadcast_reductions=list(found))
    return list(RULES["DP621"].check(RunView(measured_run(user_code=code, device_kind=device), [*facts])))


def test_the_function_its_share_and_what_computes_it():
    (advice,) = ask(pairs())
    assert advice.title == (
        "`nearest` (jets.py:13) spends 35 % of the step on squared distances of all pairs, which materializes "
        "16 x 96 x 96 x 48 elements: use torch.cdist(a, b).square()"
    )
    assert (advice.impact, advice.confidence, advice.numerics) == ("high", "medium", "same")
    assert "donot_use_mm_for_euclid_dist" in advice.watch
    assert (advice.saves.basis, advice.saves.low_share, advice.saves.high_share) == ("bound", 0, 0.35)
    assert [(each.label, each.value) for each in advice.evidence] == [
        ("nearest at jets.py:13", 16.0),
        ("first input", "16 x 96 x 1 x 48"),
        ("second input", "16 x 1 x 96 x 48"),
        ("materialized", "16 x 96 x 96 x 48"),
        ("calls", 3.0),
    ]


@pytest.mark.parametrize(
    ("kind", "words", "remedy"),
    [
        ("distance", "on distances of", "torch.cdist(a, b)"),
        ("product", "on sums of products of", "a matrix product or torch.einsum"),
        (
            "cosine",
            "on cosine similarities of",
            "a matrix product of F.normalize(a, dim=-1) and F.normalize(b, dim=-1).mT",
        ),
        ("absolute", "on sums of absolute differences of", "torch.cdist(a, b, p=1)"),
    ],
)
def test_each_kind_has_its_call(kind, words, remedy):
    (advice,) = ask(pairs(kind=kind, backward_ns=9_000_000))
    assert words in advice.title
    assert advice.title.endswith(f", with the backward pass: use {remedy}")


@pytest.mark.parametrize(
    ("kind", "numerics"), [("product", "changes"), ("cosine", "changes"), ("squared", "same"), ("distance", "same")]
)
def test_autocast_lowers_the_precision_of_products(make_facts, kind, numerics):
    (advice,) = ask(pairs(kind=kind), facts=[make_facts(autocast="cpu:bfloat16")])
    assert advice.numerics == numerics
    assert ("autocast" in advice.watch) == (numerics == "changes")
    assert ask(pairs(kind=kind), facts=[make_facts()])[0].numerics == "same"


def test_absolute_differences_without_a_backward_pass_on_a_cpu():
    assert ask(pairs(kind="absolute")) == []
    assert len(ask(pairs(kind="absolute"), device="cuda")) == 1


def test_quiet_below_five_percent_and_below_sixteen_times():
    assert ask(pairs(share=0.049)) == []
    assert [advice.impact for advice in ask(pairs(share=0.05))] == ["medium"]
    assert ask(pairs(left=(16, 96, 7, 48))) == []
    assert len(ask(pairs(left=(16, 96, 6, 48)))) == 1


def test_traced_steps_alone_give_low_confidence():
    assert ask(pairs(), basis="traced")[0].confidence == "low"


@pytest.mark.parametrize(
    ("name", "asks"), [("aten::sub", True), ("vectorized_elementwise_kernel", True), ("aten::mm", False)]
)
def test_without_stacks_it_is_skipped_only_where_elementwise_operators_take_time(name, asks):
    view = spent_in(name)
    if asks:
        with pytest.raises(Missing):
            list(RULES["DP621"].check(view))
    else:
        assert list(RULES["DP621"].check(view)) == []
