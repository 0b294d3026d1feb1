import pytest

from dptune.measured import InputFigures, PreparingFigures
from dptune.runfile.loader import LoaderFacts


def lines(**more):
    return LoaderFacts(where="train.py:55", num_workers=0, dataset="Lines", batches_drawn=20, iterable=True, **more)


LATE = {"prepares_at": "Lines.__iter__ (data.py:33)", "drops_at": "data.py:34"}


def waiting(share, reading):
    made_of = PreparingFigures(
        batch_ns=1, reading_share=reading, reading_computed_share=1, collating_share=1 - reading, computed_share=1
    )
    return InputFigures(wait_share=share, wait_ns=1, computed_share=1.0, preparing=made_of)


def test_the_call_and_the_test_are_named(ask, make_measured, make_facts):
    """Half of the step waits for batches, and 80 % of that is reading."""
    measured = make_measured(input=waiting(0.5, 0.8), world=1)
    (advice,) = ask("DP505", measured, [make_facts(loaders=[lines(**LATE)])])
    assert advice.title == (
        "Lines.__iter__ (data.py:33) prepares samples that data.py:34 then drops: test first. "
        "Reading samples takes 40 % of a step"
    )
    assert (advice.saves.low_share, advice.saves.high_share) == (0, pytest.approx(0.4))
    assert (advice.changes, advice.impact, advice.confidence) == ([], "high", "medium")


def test_quiet_where_nothing_is_dropped_or_little_is_waited_for(ask, make_measured, make_facts):
    assert ask("DP505", make_measured(input=waiting(0.5, 0.8)), [make_facts(loaders=[lines()])]) == []
    assert ask("DP505", make_measured(input=waiting(0.05, 0.8)), [make_facts(loaders=[lines(**LATE)])]) == []
    assert ask("DP505", make_measured(wait_share=0.5), [make_facts()]) == []
