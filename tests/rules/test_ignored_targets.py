import pytest

from dptune.measured import Missing, OutputLoss, UserCodeFigures
from dptune.runfile.ignored_targets import IgnoredTargetFacts


def head(share=0.5, classes=5000, backward_ns=24_000_000):
    return OutputLoss(
        name="forward",
        at="bert.py:54",
        calls=1.0,
        rank=0,
        cost_ns=16_000_000,
        backward_ns=backward_ns,
        share=share,
        classes=classes,
        rows=768.0,
    )


def ignored(labelled=(115, 125), padding=(0, 0), rows=(400, 400), classes=5000, where="bert.py:63"):
    return IgnoredTargetFacts(classes, where, list(rows), list(labelled), list(padding))


@pytest.fixture
def advice(ask, make_measured, make_facts):
    def asked(facts, *heads, basis="untraced"):
        code = UserCodeFigures(ranks=[0], steps=2, basis=basis, sites=[], output_losses=list(heads))
        of_ranks = [make_facts(rank=rank, ignored_targets=[of_rank]) for rank, of_rank in enumerate(facts)]
        return ask("DP616", make_measured(user_code=code), of_ranks)

    return asked


def test_the_line_the_share_of_rows_and_the_saving_that_it_bounds(advice):
    """240 of 800 rows have a label: 70 % of half a step."""
    (found,) = advice([ignored()], head())
    assert found.title == (
        "70 % of the logits that `forward` computes do not count in the loss (bert.py:63): select the labelled "
        "positions before the output projection"
    )
    assert (found.impact, found.confidence, found.numerics) == ("high", "medium", "same")
    assert (found.saves.basis, found.saves.low_share) == ("bound", 0)
    assert found.saves.high_share == pytest.approx(0.35)
    assert [(one.label, one.value) for one in found.evidence] == [
        ("rows of logits without a label", pytest.approx(0.7)),
        ("projection in forward at bert.py:54, and loss", 16.0),
        ("their backward pass", 24.0),
        ("classes", 5000),
        ("rows of logits", 768),
    ]


def test_ranks_are_added_up(advice):
    (found,) = advice([ignored((100,), (0,), (400,), where=None), ignored((300,), (0,), (400,))], head())
    assert found.title.startswith("50 % of the logits")
    assert "(bert.py:63)" in found.title


def test_quiet_where_what_is_ignored_is_padding(advice):
    """Of 800 rows 400 are padding; the others have labels, or three quarters of them."""
    assert advice([ignored((200, 200), (200, 200))], head()) == []
    assert advice([ignored((151, 150), (200, 200))], head()) == []
    (found,) = advice([ignored((150, 150), (200, 200))], head())
    assert found.saves.high_share == pytest.approx(0.5 * 500 / 800)


def test_quiet_where_the_projection_takes_little_or_is_not_of_these_classes(advice):
    assert advice([ignored()], head(share=0.07)) == []  # 70 % of it: 4.9 %
    assert [found.impact for found in advice([ignored()], head(share=0.072))] == ["medium"]
    assert advice([ignored()], head(classes=1000)) == []


def test_traced_shares_have_low_confidence(advice):
    assert [found.confidence for found in advice([ignored()], head(), basis="traced")] == ["low"]


def test_it_is_skipped_without_a_detailed_window_only_where_targets_are_ignored(ask, make_measured, make_facts):
    with pytest.raises(Missing):
        ask("DP616", make_measured(), [make_facts(ignored_targets=[ignored()])])
    assert ask("DP616", make_measured(), [make_facts(ignored_targets=[ignored((400, 400))])]) == []
