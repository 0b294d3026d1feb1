"""Gradients that are sent after the backward pass, or that it waits for: the rules, on runs made by hand."""

import pytest

from dptune.advice import Advice
from dptune.measured import DelayedFigures
from dptune.rule import RunView
from dptune.runfile.communication import CallFacts
from dptune_rules.communication import gradients_after_backward

MIB = 2**20


@pytest.fixture
def delays(make_measured, hand_made):
    """A run whose collectives are delayed by one cause, for shares of the step."""

    def make(cause, share=0.08, most=0.1, kinds=("all_reduce",), **more):
        steps_ns = make_measured().account.window_ns
        known = {"group": "0", "bytes_per_step": 3 * MIB, "streams": [8], "on_compute_stream": False, **more}
        figures = {"exposed_ns": int(0.2 * steps_ns), "could_hide_ns": int(share * steps_ns), "calls_per_step": 4.0}
        shares = {"most_share": most, "most_transfer_share": share}
        return make_measured(
            delayed=[hand_made.figures(DelayedFigures, cause=cause, kinds=[*kinds], **figures, **shares, **known)]
        )

    return make


def test_reductions_after_the_pass(delays, ask):
    (advice,) = ask("DP114", delays("after_backward"))
    assert advice.title == (
        "3 MiB of gradients are sent only after the backward pass, which could overlap 8 % of a step: "
        "wrap the model in DDP, or send each gradient from a hook"
    )
    assert (advice.impact, advice.confidence, advice.saves.basis) == ("medium", "medium", "bound")
    assert advice.saves.high_share == pytest.approx(0.1)
    shown = {each.label: (each.value, each.unit) for each in advice.evidence}
    assert shown["exposed all-reduces (process group 0, stream 8)"][0] == pytest.approx(0.2)
    assert shown["part that compute could overlap"][0] == pytest.approx(0.08)
    assert shown["sent"] == (3 * MIB, "bytes per step and rank")


def test_a_recording_names_the_line(delays, ask, make_facts):
    called = [
        CallFacts("all_reduce", where="train.py:9", ranks=[0, 1], calls=20, sent_bytes=60 * MIB),
        CallFacts("all_reduce", where="train.py:40", ranks=[0, 1], calls=20, sent_bytes=80),
        CallFacts("all_reduce", where="train.py:80", ranks=[0, 1], calls=1, sent_bytes=60 * MIB),
        CallFacts("broadcast", where="train.py:90", ranks=[0, 1], calls=20, sent_bytes=60 * MIB),
    ]
    (advice,) = ask("DP114", delays("after_backward"), [make_facts(calls=called, calls_steps=20)])
    assert "after the backward pass (train.py:9), which could overlap 8 %" in advice.title


@pytest.mark.parametrize(("rule", "speaks"), [("DP110", False), ("DP105", False), ("DP401", True)])
def test_it_gives_way_to_rules_that_name_each_line(delays, rule, speaks):
    other = Advice.model_construct(rule=rule, kind="time")
    assert bool([*gradients_after_backward.check(RunView(delays("after_backward"), [], advised=[other]))]) == speaks


def test_small_delays_and_other_causes(delays, ask, make_measured):
    assert ask("DP114", delays("after_backward", share=0.019)) == []
    assert ask("DP114", delays("waited_for_in_backward")) == []
    assert ask("DP114", make_measured()) == []


@pytest.mark.parametrize(("on_stream", "where"), [(True, " on the compute stream"), (False, "")])
def test_hooks_that_wait(delays, ask, on_stream, where):
    (advice,) = ask("DP115", delays("waited_for_in_backward", on_compute_stream=on_stream))
    title = f"The backward pass waits for 4 all-reduces of gradients per step{where} and could overlap 8 % of a step"
    assert advice.title.startswith(title)
    assert ask("DP115", delays("after_backward")) == []


def test_the_size_is_left_out_where_it_is_not_known(delays, ask):
    (advice,) = ask("DP114", delays("after_backward", bytes_per_step=None, group=None, streams=[]))
    assert advice.title.startswith("4 all-reduces of gradients are sent only after the backward pass")
    assert advice.evidence[0].label == "exposed all-reduces"
