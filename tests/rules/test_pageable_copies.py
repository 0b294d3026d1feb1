import pytest

from dptune.measured import CopyFigures
from dptune.runfile.loader import LoaderFacts


def copies(hand_made, share, pinned=False, direction="h2d", held=0.0, most=None):
    """One copy a step on each of two ranks, none of it hidden; `most` of the step of one rank, `held` the script."""
    calls = 2 * hand_made.STEPS
    told = {"calls": calls, "calls_per_step": 1.0, "total_ns": int(share * hand_made.STEP_NS * calls)}
    return hand_made.figures(
        CopyFigures,
        direction=direction,
        pinned=pinned,
        exposed_ns=told["total_ns"],
        most_share=share if most is None else most,
        most_held_share=held,
        gb_per_s=4.2,
        **told,
    )


def test_exposed_copies_from_pageable_memory(ask, make_measured, make_facts, hand_made):
    loader = LoaderFacts("train.py:20", pin_memory=False, batches_drawn=9)
    run = make_measured(copies=[copies(hand_made, 0.06), copies(hand_made, 0.2, direction="d2h")])
    (advice,) = ask("DP503", run, [make_facts(loaders=[loader])])
    assert advice.title == "6 % of a step is copies to the GPU from pageable memory that nothing overlaps"
    (change,) = advice.changes
    assert (change.knob, change.now, change.then, str(change.at)) == ("loader.pin_memory", False, True, "train.py:20")
    assert advice.saves.high_share == pytest.approx(0.06)
    assert (advice.impact, advice.confidence) == ("medium", "medium")


def test_a_trace_alone_names_no_loader(ask, make_measured, hand_made):
    (advice,) = ask("DP503", make_measured(copies=[copies(hand_made, 0.06)]))
    assert (advice.changes[0].now, advice.changes[0].at, advice.confidence) == (None, None, "low")


def test_a_script_without_a_loader_pins_what_it_copies_itself(ask, make_measured, make_facts, hand_made):
    (advice,) = ask("DP503", make_measured(copies=[copies(hand_made, 0.06)]), [make_facts(loaders=[])])
    assert advice.changes == []
    assert "pin tensors with tensor.pin_memory()" in advice.watch


def test_quiet(ask, make_measured, make_facts, hand_made):
    pinned = LoaderFacts("train.py:20", pin_memory=True, batches_drawn=9)
    assert ask("DP503", make_measured(copies=[copies(hand_made, 0.01)])) == []
    assert ask("DP503", make_measured(copies=[copies(hand_made, 0.3, pinned=True)])) == []
    assert ask("DP503", make_measured(copies=[copies(hand_made, 0.3, pinned=None)])) == []
    assert ask("DP503", make_measured(copies=[copies(hand_made, 0.3)]), [make_facts(loaders=[pinned])]) == []
    assert ask("DP503", make_measured(device="cpu", copies=None)) == []


def test_what_they_hold_the_script_for_may_be_idle_time(ask, make_measured, hand_made):
    """Of 10 ms each copy takes 0.6 and holds the script for 4, and the device is idle for 1 beside input."""
    copied = copies(hand_made, 0.06, held=0.4)
    whole = hand_made.STEP_NS
    account = hand_made.Account(
        window_ns=whole, compute_ns=int(0.84 * whole), copy_ns=int(0.06 * whole), host_idle_ns=int(0.1 * whole)
    )
    (advice,) = ask("DP503", make_measured(copies=[copied], spent=[account]))
    assert advice.saves.high_share == pytest.approx(0.16)
    assert {each.label: each.value for each in advice.evidence}["script blocked in these copies"] == pytest.approx(0.4)


def test_the_gpu_that_pays_holds_up_the_others(ask, make_measured, hand_made):
    """The mean over two GPUs is 1.5 %, all of it on one of them."""
    (advice,) = ask("DP503", make_measured(copies=[copies(hand_made, 0.015, most=0.03)]))
    assert advice.saves.high_share == pytest.approx(0.03)
    assert advice.title.startswith("3 % of a step")
