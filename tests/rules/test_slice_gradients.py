"""Gradients of slices: figures are made up."""

import pytest

from dptune.measured import Missing, OperatorLoop, SliceGradients, UserCodeFigures
from dptune.rule import RunView
from dptune.testing import facts_of, measured_run

from .conftest import RULES, spent_in


def slices(share=0.44, through=""):
    return SliceGradients(
        name="read",
        at="net.py:12",
        calls=336,
        rank=0,
        cost_ns=500_000,
        backward_ns=17_000_000,
        share=share,
        size=[84, 28, 56],
        through=through,
        saved_share=0.5 if through else share + 0.01,
    )


def ask(*found, basis="untraced"):
    code = UserCodeFigures(ranks=[0], steps=2, basis=basis, sites=[], slice_gradients=list(found))
    return list(RULES["DP622"].check(RunView(measured_run(user_code=code), [])))


def test_the_function_its_slices_and_what_takes_them_at_once():
    (advice,) = ask(slices())
    assert advice.title == (
        "`read` (net.py:12) spends 44 % of the step on the gradients of 336 slices of 84 x 28 x 56 tensors: use "
        "unbind, split or chunk, or unfold if they overlap"
    )
    assert (advice.impact, advice.confidence, advice.saves.high_share) == ("high", "medium", 0.45)
    assert advice.saves.how == "these slices and their backward pass"
    assert ask(slices(), basis="traced")[0].confidence == "low"


def test_a_jacobian_over_the_batch():
    (advice,) = ask(slices(through="jacobian"))
    assert "tensors in `jacobian`: use torch.autograd.grad on sums over the batch" in advice.title
    assert (advice.saves.high_share, advice.saves.how) == (0.5, "all of `jacobian` and its backward pass")


def test_slices_that_a_layer_of_torch_takes_are_no_matter_of_the_script():
    assert ask(slices(through="_call_impl")) == []


def test_quiet_below_five_percent():
    assert ask(slices(share=0.049)) == []
    assert [advice.impact for advice in ask(slices(share=0.05))] == ["medium"]


@pytest.mark.parametrize(("name", "asks"), [("aten::fill_", True), ("aten::mm", False)])
def test_without_stacks_it_is_skipped_only_where_filling_takes_time(name, asks):
    view = spent_in(name)
    if asks:
        with pytest.raises(Missing):
            list(RULES["DP622"].check(view))
    else:
        assert list(RULES["DP622"].check(view)) == []


@pytest.mark.parametrize(("share", "backward", "named"), [(0.2, None, 1), (0.12, 0.6, 1), (0.12, None, 0)])
def test_a_loop_that_takes_much_longer_than_its_slices_is_named_beside_them(share, backward, named):
    """Its slices take 10 % of the step, with their backward pass."""
    loop = OperatorLoop(
        name="read", at="net.py:12", phase="forward", operator="aten::mul", repeats=64, rank=0, cost_ns=9, share=share
    )
    loop = loop.model_copy(update={"backward_share": backward})
    code = UserCodeFigures(ranks=[0], steps=2, basis="untraced", sites=[], slice_gradients=[slices(0.1)], loops=[loop])
    run = RunView(measured_run(user_code=code), [])
    found = list(RULES["DP622"].check(run))
    loops = list(RULES["DP610"].check(RunView(measured_run(user_code=code), [facts_of()], advised=found)))
    assert (len(found), len(loops)) == (1, named)


def test_slices_for_a_recurrent_cell_are_named_with_its_layer():
    def beside(share, **changed):
        loop = {"name": "read", "at": "net.py:12", "phase": "forward", "operator": "aten::lstm_cell", "repeats": 84.0}
        loop = OperatorLoop(**loop | {"rank": 0, "cost_ns": 9_000_000, "share": share} | changed)
        return UserCodeFigures(
            ranks=[0], steps=2, basis="untraced", sites=[], slice_gradients=[slices(0.07)], loops=[loop]
        )

    def advised(code):
        return list(RULES["DP622"].check(RunView(measured_run(user_code=code), [])))

    assert advised(beside(0.3)) == []
    assert len(advised(beside(0.06))) == 1
    assert len(advised(beside(0.3, operator="aten::mul"))) == 1
    assert len(advised(beside(0.3, at="net.py:40"))) == 1
