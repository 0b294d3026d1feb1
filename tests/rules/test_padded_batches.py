"""Padding that no sample needs: sizes are made up, savings are worked out by hand."""

import pytest

from dptune.runfile.facts import CompileFacts, LoaderFacts, PreparingFacts
from dptune.runfile.padding import PaddingFacts


def run(make_facts, longest=64, **more):
    padding = PaddingFacts(batches=10, columns=1280, longest_columns=10 * longest, filled_share=0.3)
    preparing = PreparingFacts(10, collated_by="collate (data.py:12)")
    loader = LoaderFacts("train.py:40", batches_drawn=10, dataset="Texts", padding=padding, preparing=preparing)
    return [make_facts(loaders=[loader], **more)]


def test_batches_twice_as_long_as_their_longest_sample(ask, make_measured, make_facts):
    (advice,) = ask("DP506", make_measured(device="cpu", wait_share=0.2), run(make_facts))
    assert advice.title == (
        "50 % of each batch is padding that no sample needs (`collate`, data.py:12): pad to the longest sample of the "
        "batch"
    )
    # Passes take 80 % of a step; half of the length takes a quarter of the time at least.
    assert (advice.saves.low_share, advice.saves.high_share) == (0, pytest.approx(0.75 * 0.8))
    assert (advice.confidence, advice.changes) == ("medium", [])


def test_quiet_where_the_longest_sample_needs_it(ask, make_measured, make_facts):
    measured = make_measured(device="cpu")
    assert ask("DP506", measured, run(make_facts, longest=120)) == []  # 6 %, as rounding up gives
    assert ask("DP506", measured, [make_facts()]) == []


def test_quiet_where_each_length_would_compile_anew(ask, make_measured, make_facts):
    assert ask("DP506", make_measured(device="cpu"), run(make_facts, compiled=CompileFacts(["train.py:9"]))) == []
