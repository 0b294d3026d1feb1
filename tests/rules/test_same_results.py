"""Results that every step computes again: facts are made up."""

import pytest

from dptune.measured import Missing
from dptune.runfile.repeated_forward import FrozenFeatureFacts, RepeatedForwardFacts
from dptune.runfile.same_results import SameResultFacts
from dptune.runfile.window import SampledFacts, Window

MS = 1_000_000


def same(again_ms=2, function="normalized (graph.py:31)", steps=2, **more):
    """Steps of 10 ms, 5 of them in operators outside of backward passes."""
    times = {"step_ns": [10 * MS] * steps, "again_ns": [again_ms * MS] * steps, "forward_ns": [5 * MS] * steps}
    return SameResultFacts(function, ["matmul", "diag"], **{"calls": 3, "size": [900, 900], **times, **more})


@pytest.fixture
def advice(ask, make_measured, make_facts):
    def found(*facts, **measured):
        run = make_measured(**{"device": "cpu", "world": 1, **measured})
        return ask("DP625", run, [make_facts(same_results=[*facts])])

    return found


def test_the_function_its_line_and_its_operators(advice):
    (found,) = advice(same())
    assert found.title == (
        "`normalized` (graph.py:31) computes the same results in every step, 20 % of the step: compute them once, "
        "before training (matmul, diag)"
    )
    assert (found.impact, found.confidence, found.numerics) == ("high", "medium", "same")
    assert (found.saves.basis, found.saves.predicted_share) == ("timed", pytest.approx(0.2))
    assert (found.saves.low_share, found.saves.high_share) == pytest.approx((0.8 * 0.2, 1.3 * 0.2))
    assert ("largest result", "900 x 900") in [(each.label, each.value) for each in found.evidence]


def test_several_times_in_one_step(advice):
    """A mask that each of four layers makes: nine calls more than three results need."""
    (found,) = advice(same(calls=9, results=3, within_step=True))
    assert found.title == (
        "`normalized` (graph.py:31) computes the same results 4 times in each step, 20 % of the step: compute them "
        "once, and pass them on (matmul, diag)"
    )
    assert found.saves.high_share == pytest.approx(1.3 * 0.2)


def test_a_repeated_forward_pass_is_named_by_its_rule(ask, make_measured, make_facts):
    facts = make_facts(
        same_results=[same(calls=9, results=3, within_step=True)], repeated_forward=[RepeatedForwardFacts("Net")]
    )
    assert ask("DP625", make_measured(device="cpu", world=1), [facts]) == []


@pytest.mark.parametrize(("line", "named"), [("train.py:41", []), ("train.py:50", ["DP625"])])
def test_what_runs_in_a_frozen_module_with_fixed_inputs_is_named_with_it(ask, make_measured, make_facts, line, named):
    path = ["main (train.py:9)", f"encode ({line})", "Encoder.normalized (graph.py:31)"]
    window = Window("untraced", 3, [10 * MS], sampled=[SampledFacts(path, looks=9, steps=[0], spent_ns=[MS])])
    facts = make_facts(
        same_results=[same(function="Encoder.normalized (graph.py:31)")],
        frozen_features=[FrozenFeatureFacts("encoder", "train.py:41", same_inputs=1)],
        windows=[window],
    )
    assert [found.rule for found in ask("DP625", make_measured(device="cpu", world=1), [facts])] == named


@pytest.mark.parametrize("whole", [True, False])
def test_a_function_that_computes_nothing_else_counts_with_its_python(ask, make_measured, make_facts, whole):
    """Its operators take 6 % of the watched steps; it is in 40 of 100 stack samples."""
    path = ["main (train.py:9)", "Front.mel_filters (mel.py:18)"]
    sampled = [
        SampledFacts(path, looks=40, steps=[*range(10)], spent_ns=[4 * MS] * 10),
        SampledFacts(["main (train.py:12)"], "backward", looks=60, steps=[*range(10)], spent_ns=[6 * MS] * 10),
    ]
    facts = make_facts(
        same_results=[same(again_ns=[600_000] * 2, function="Front.mel_filters (mel.py:18)", whole=whole)],
        windows=[Window("untraced", 3, [10 * MS] * 10, sampled=sampled)],
    )
    (found,) = ask("DP625", make_measured(device="cpu", world=1), [facts])
    assert f", {40 if whole else 6} % of the step" in found.title
    assert found.saves.basis == ("sampled" if whole else "timed")
    assert (found.saves.predicted_share > 0.3) == whole


def test_outside_of_functions(advice):
    (found,) = advice(same(function="train.py:12"))
    assert found.title.startswith("train.py:12 computes the same results")


def test_one_comparison_is_less_certain(advice):
    assert advice(same(steps=1))[0].confidence == "low"


def test_the_mean_of_steps_that_differ(advice):
    """As a discriminator's and a generator's do: 3 of 20 ms."""
    (found,) = advice(same(again_ns=[3 * MS, 0]))
    assert found.saves.high_share == pytest.approx(0.15)


def test_quiet_below_the_threshold(advice):
    assert advice(same(again_ms=0.49)) == []
    assert len(advice(same(again_ms=0.5))) == 1
    assert advice() == []


def test_functions_that_take_little_each_count_together(advice):
    """A mask takes 3 % of a step and a bias 4 %, in steps of 10 ms."""
    mask, bias = same(0.3, "mask (net.py:14)"), same(again_ns=[0.3 * MS, 0.5 * MS], function="Layer.bias (net.py:32)")
    (found,) = advice(mask, bias)
    assert found.title == (
        "`mask` (net.py:14) and `Layer.bias` (net.py:32) compute the same results in every step, 7 % of the step: "
        "compute them once, before training (matmul, diag)"
    )
    # The steps have 6 and 8 %: 0.8 of the least, 1.3 of the largest.
    assert (found.saves.low_share, found.saves.high_share) == pytest.approx((0.8 * 0.06, 1.3 * 0.08))
    assert [each.value for each in found.evidence if each.label == "calls of these operators"] == [6]
    assert found.fingerprint == "DP625:mask,Layer.bias"
    assert advice(mask, same(0.19, "other (net.py:9)")) == []
    assert advice(mask, same(0.3, "other (net.py:9)", within_step=True, results=3)) == []
    (alone,) = advice(mask, same(1))
    assert "mask" not in alone.title


def test_a_gpu_saves_its_part_of_the_compute_of_the_forward_pass(advice, hand_made, make_measured):
    """2 of the host's 5 ms in operators, of the 30 % of the step that the device computes in the forward pass."""
    window = make_measured(world=1).account.window_ns
    shares = {"forward": 0.3, "backward": 0.5, "optimizer": 0}
    phases = [
        phase.model_copy(update={"compute_ns": round(shares[phase.phase] * window)})
        for phase in hand_made.phases(0.3, 0.5, 0.2)
    ]
    (found,) = advice(same(), device="cuda", phases=phases)
    assert found.saves.high_share == pytest.approx(0.12)


def test_traces_alone_do_not_say(ask, make_measured):
    with pytest.raises(Missing):
        ask("DP625", make_measured(), [])


def test_what_the_function_computes_in_every_step_is_saved_with_it(advice):
    """0.4 ms of another function is not."""
    within = same(calls=9, results=3, within_step=True)
    always, other = (
        same(again_ms=0.3, function="normalized (graph.py:29)"),
        same(again_ms=0.4, function="bias (a.py:2)"),
    )
    (found,) = advice(within, always, other)
    assert found.saves.high_share == pytest.approx(1.3 * 0.23)
    assert "20 % of the step" in found.title


@pytest.mark.parametrize(
    ("sampled_ms", "within", "high"),
    [
        (3, False, 0.3),  # and its error
        (3, True, 0.3 * 3 / 4),  # one call of four is needed
        (5, False, 0.2),  # most of it is something else
        (1, False, 0.2),
    ],
)
def test_stack_samples_hold_the_rest_of_the_function(ask, make_measured, make_facts, sampled_ms, within, high):
    """In 20 steps of 10 ms, of which the operators take 2."""
    window = Window(name="untraced", first_step=5, durations_ns=[10 * MS] * 20, complete=True)
    rest = [10 * MS - sampled_ms * MS] * 20
    window.sampled = [
        SampledFacts(
            ["main (train.py:9)", "normalized (graph.py:33)"],
            "forward",
            "",
            "",
            60,
            [*range(20)],
            [sampled_ms * MS] * 20,
        ),
        SampledFacts(["main (train.py:9)"], "", "", "", 100, [*range(20)], rest),
    ]
    found = same(calls=9, results=3, within_step=True) if within else same()
    facts = make_facts(same_results=[found], windows=[window])
    (advice,) = ask("DP625", make_measured(device="cpu", world=1), [facts])
    assert advice.saves.high_share == pytest.approx(1.3 * high, abs=0.013)


def test_the_interval_holds_how_steps_vary(advice):
    (found,) = advice(same(again_ns=[MS, 3 * MS]))
    assert (found.saves.low_share, found.saves.high_share) == pytest.approx((0.8 * 0.1, 1.3 * 0.3))


def test_one_compared_step_and_another_rank_without_it_give_a_bound(ask, make_measured, make_facts, advice):
    (found,) = advice(same(steps=1))
    assert (found.saves.basis, found.saves.low_share, found.saves.high_share) == ("bound", 0, pytest.approx(0.2))
    ranks = [make_facts(same_results=[same()]), make_facts(rank=1)]
    (found,) = ask("DP625", make_measured(device="cpu", world=2), ranks)
    assert found.saves.basis == "bound"
