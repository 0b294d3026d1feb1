import pytest

from dptune.measured import FullSort, Missing, UserCodeFigures
from dptune.rule import RunView
from dptune.testing import measured_run

from .conftest import RULES, spent_in


def sort(share=0.55, read=20, **others):
    return FullSort(
        name="update",
        at="songs.py:38",
        calls=1.0,
        rank=0,
        cost_ns=28_000_000,
        backward_ns=0,
        share=share,
        length=5000,
        rows=64,
        read=read,
        **others,
    )


def ask(*found, basis="untraced"):
    code = UserCodeFigures(ranks=[0], steps=2, basis=basis, sites=[], full_sorts=list(found))
    return list(RULES["DP618"].check(RunView(measured_run(user_code=code), [])))


def test_the_function_its_share_and_how_much_is_read():
    (advice,) = ask(sort())
    assert advice.title == (
        "`update` (songs.py:38) spends 55 % of the step sorting rows of 5,000 values to read 20 of each: use torch.topk"
    )
    assert (advice.impact, advice.confidence) == ("high", "medium")
    assert (advice.saves.basis, advice.saves.low_share, advice.saves.high_share) == ("bound", 0, 0.55)
    assert [(one.label, one.value) for one in advice.evidence] == [
        ("update at songs.py:38", 28.0),
        ("row length", 5000),
        ("values read per row", 20),
        ("rows", 64),
        ("sorts", 1.0),
    ]


def test_where_it_is_not_known_what_is_read_confidence_is_low():
    (advice,) = ask(sort(read=None))
    assert advice.title.endswith("sorting rows of 5,000 values: use torch.topk if only the first values are read")
    assert advice.confidence == "low"
    assert "leave it unchanged" in advice.watch
    assert ask(sort(), basis="traced")[0].confidence == "low"


def test_the_best_one():
    (advice,) = ask(sort(read=1))
    assert advice.title.endswith("to read one: use torch.topk, max or kthvalue")


def test_inner_values_are_selected_one_by_one():
    (advice,) = ask(sort(read=1, inner=True))
    assert advice.title.endswith("sorting rows of 5,000 values to read one: use torch.kthvalue")
    assert (advice.confidence, advice.numerics, advice.watch) == ("medium", "same", "")
    (advice,) = ask(sort(read=4, inner=True))
    assert advice.title.endswith("to read 4 of each: use torch.kthvalue")
    assert ask(sort(read=5, inner=True)) == []  # a table of quantiles


def test_a_quantile_needs_no_sort():
    (advice,) = ask(sort(read=2, inner=True, quantile=True))
    assert advice.title == (
        "`update` (songs.py:38) spends 55 % of the step in torch.quantile, which sorts rows of 5,000 values: use "
        "torch.kthvalue"
    )
    assert advice.numerics == "changes"
    assert "interpolates" in advice.watch
    assert len(ask(sort(read=8, inner=True, quantile=True))) == 1
    assert ask(sort(read=10, inner=True, quantile=True)) == []  # five of them


def test_quiet_below_five_percent_and_where_much_is_read():
    assert ask(sort(share=0.049)) == []
    assert [advice.impact for advice in ask(sort(share=0.05))] == ["medium"]
    assert ask(sort(read=1251)) == []
    assert len(ask(sort(read=1250))) == 1


@pytest.mark.parametrize(("name", "asks"), [("aten::sort", True), ("radixSortKVInPlace", True), ("aten::mm", False)])
def test_without_stacks_it_is_skipped_only_where_an_operator_shows_one(name, asks):
    view = spent_in(name)
    if asks:
        with pytest.raises(Missing):
            list(RULES["DP618"].check(view))
    else:
        assert list(RULES["DP618"].check(view)) == []
