"""Padding that no sample needs: sizes are made up, savings are worked out by hand."""

from dataclasses import replace

import pytest

from dptune.measured import InputFigures, PreparingFigures, UserCodeFigures
from dptune.runfile.compilation import CompileFacts
from dptune.runfile.loader import LoaderFacts, PreparingFacts
from dptune.runfile.padding import PaddingFacts


def run(make_facts, longest=64, filled=0.3, **more):
    padding = PaddingFacts(batches=10, columns=1280, longest_columns=10 * longest, filled_share=filled)
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


IDS = 10 * 16 * 128 * 8 * 4  # of ten batches of 16 rows with four tensors of ids


def of_ids(make_facts, tensor_bytes=IDS, **more):
    (facts,) = run(make_facts, **more)
    (loader,) = facts.loaders
    preparing = PreparingFacts(10, collated_by="collate (data.py:12)", tensor_bytes=tensor_bytes)
    facts.loaders = [replace(loader, batch_size=16, preparing=preparing)]
    return [facts]


def prepared(tensor_bytes, **more):
    parts = {"batch_ns": 1, "reading_share": 0.5, "reading_computed_share": 1.0, "collating_share": 0.5}
    preparing = PreparingFigures(**parts, computed_share=1.0, tensor_bytes=tensor_bytes)
    return InputFigures(wait_ns=1, computed_share=1.0, preparing=preparing, **{"wait_share": 0.04, **more})


def test_a_replay_with_fewer_samples_gives_the_lower_end(ask, make_measured, make_facts, predict):
    """Half of the length: replayed with 8 instead of 16 samples; the bound is as above."""
    predictor = predict("loader.batch_size", {8: 0.7})
    measured = make_measured(device="cpu", input=prepared(IDS // 10))
    (advice,) = ask("DP506", measured, of_ids(make_facts), predictor=predictor)
    assert advice.saves.basis == "replayed"
    assert advice.saves.predicted_share == pytest.approx(0.3)
    assert 0.2 < advice.saves.low_share < 0.3
    assert advice.saves.high_share == pytest.approx(0.75 * 0.96)
    assert advice.saves.how.startswith("replayed with 8 instead of 16 samples per batch, a step takes ")


@pytest.mark.parametrize(
    ("input_more", "device", "predicts"),
    [
        ({}, "cuda", True),
        ({"wait_share": 0.06}, "cpu", True),
        ({"tensor_bytes": IDS // 10 + 1}, "cpu", True),  # images beside them
        ({}, "cpu", False),
    ],
)
def test_elsewhere_the_saving_is_an_upper_bound(ask, make_measured, make_facts, predict, input_more, device, predicts):
    predictor = predict("loader.batch_size", {8: 0.7}) if predicts else None
    figures = prepared(**{"tensor_bytes": IDS // 10, **input_more})
    (advice,) = ask("DP506", make_measured(device=device, input=figures), of_ids(make_facts), predictor=predictor)
    assert (advice.saves.basis, advice.saves.low_share) == ("bound", 0)


def test_lengths_that_differ_are_not_replayed(ask, make_measured, make_facts, predict):
    predictor = predict("loader.batch_size", {8: 0.7, 7: 0.7, 9: 0.7})
    facts = of_ids(make_facts, longest=128, filled=0.4)
    (advice,) = ask("DP506", make_measured(device="cpu", input=prepared(IDS // 10)), facts, predictor=predictor)
    assert advice.saves.basis == "bound"


def test_quiet_where_the_longest_sample_needs_it(ask, make_measured, make_facts):
    measured = make_measured(device="cpu")
    assert ask("DP506", measured, run(make_facts, longest=120, filled=0.7)) == []  # 6 %, as rounding up gives
    assert ask("DP506", measured, [make_facts()]) == []


def test_quiet_where_each_length_would_compile_anew(ask, make_measured, make_facts):
    assert ask("DP506", make_measured(device="cpu"), run(make_facts, compiled=CompileFacts(["train.py:9"]))) == []


def mixed(make_facts, filled=0.4, longest=128, sampler="RandomSampler", **more):
    """Batches of 128 columns, all of which the longest sample needs unless a test says so."""
    padding = PaddingFacts(batches=10, columns=1280, longest_columns=10 * longest, filled_share=filled)
    loader = LoaderFacts("train.py:40", batches_drawn=10, dataset="Texts", padding=padding, sampler=sampler)
    return [make_facts(loaders=[loader], **more)]


def test_lengths_that_differ_within_batches(ask, make_measured, make_facts):
    (advice,) = ask("DP506", make_measured(device="cpu", wait_share=0.2), mixed(make_facts))
    assert advice.title == (
        "60 % of each batch is padding, because the lengths of its samples differ (train.py:40): group samples of "
        "similar length"
    )
    assert 'train_sampling_strategy="group_by_length"' in advice.why
    # Passes take 80 % of a step; 0.4 of the length takes 0.16 of the time at least.
    assert (advice.saves.low_share, advice.saves.high_share) == (0, pytest.approx(0.84 * 0.8))
    assert (advice.numerics, advice.changes, advice.impact) == ("changes", [], "high")
    assert "validation loss" in advice.watch


def test_lengths_are_compared_with_the_longest_sample_and_not_with_the_columns(ask, make_measured, make_facts):
    """0.56 of 128 columns are 0.6 of 119, and 0.57 are more."""
    measured = make_measured(device="cpu")
    assert len(ask("DP506", measured, mixed(make_facts, filled=0.55, longest=119))) == 1
    assert ask("DP506", measured, mixed(make_facts, filled=0.57, longest=119)) == []


def test_padding_to_a_fixed_length_comes_first(ask, make_measured, make_facts):
    (advice,) = ask("DP506", make_measured(device="cpu"), mixed(make_facts, filled=0.2, longest=64))
    assert "pad to the longest sample of the batch" in advice.title


@pytest.mark.parametrize(
    "changed",
    [
        {"filled": 0.79},
        {"filled": 1.0},
        {"sampler": "LengthGroupedSampler"},
        {"sampler": "BucketSampler"},
        {"compiled": CompileFacts(["train.py:9"])},
    ],
)
def test_quiet_where_batches_are_full_or_grouped(ask, make_measured, make_facts, changed):
    assert ask("DP506", make_measured(device="cpu"), mixed(make_facts, **changed)) == []


def test_quiet_where_sequences_are_packed(ask, make_measured, make_facts):
    code = UserCodeFigures(ranks=[0], steps=2, basis="untraced", sites=[], packs=True)
    measured = make_measured(device="cpu", user_code=code)
    assert ask("DP506", measured, mixed(make_facts)) == []
