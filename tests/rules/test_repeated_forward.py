"""Forward passes that a step repeats: facts are made up."""

import pytest

from dptune.measured import Missing
from dptune.runfile.loader import LoaderFacts
from dptune.runfile.repeated_forward import FrozenFeatureFacts, RepeatedForwardFacts
from dptune.runfile.window import Window

MS = 1_000_000


def repeated(again_ms=2, *, graph=True, module="encoder", calls=2, lines=("vae.py:53", "vae.py:54"), **more):
    """In warm-up steps of 10 ms, 4 of them in forward passes with gradients."""
    again = [again_ms * MS] * 2
    times = {"step_ns": [10 * MS] * 2, "again_ns": again, "forward_ns": [4 * MS] * 2}
    times["graph_ns"] = again if graph else [0, 0]
    return RepeatedForwardFacts(module, calls=calls, lines=[*lines], **{"inputs": 1, **times, **more})


@pytest.fixture
def advice(ask, make_measured, make_facts):
    """On a CPU: 5 steps of 10 ms, which spend 6 in backward passes."""

    def found(*facts, **measured):
        window = Window("untraced", 3, [10 * MS] * 5, backward_ns=[6 * MS] * 5)
        run = make_measured(**{"device": "cpu", "world": 1, **measured})
        return ask("DP612", run, [make_facts(windows=[window], repeated_forward=[*facts])])

    return found


def test_an_encoder_called_twice(advice):
    (found,) = advice(repeated())
    assert found.title == (
        "`encoder` is called twice in each step with the same input (vae.py:53 and :54): call it once and use the "
        "result twice"
    )
    # 2 of 10 ms, and half of the forward passes, so 0.5 to 1.5 times half of 6 ms of 10
    assert found.saves.predicted_share == pytest.approx(0.2 + 0.3)
    assert (found.saves.low_share, found.saves.high_share) == pytest.approx((0.8 * 0.35, 1.3 * 0.65))
    assert found.why.startswith("The repeated calls take 20 % of the step, and the backward pass through them 30 %.")
    assert (found.impact, found.confidence, found.numerics) == ("high", "high", "same")
    assert found.saves.basis == "timed"


def test_several_inputs_and_many_lines(advice):
    (found,) = advice(repeated(calls=6, inputs=2, lines=["a.py:1", "b.py:2", "b.py:3", "a.py:4", "a.py:9"]))
    assert found.title == (
        "`encoder` is called 6 times in each step with only 2 different inputs (a.py:1, b.py:2, :3 and 2 more): call "
        "it once per input and reuse the result"
    )


def test_a_loop_over_prefixes_has_medium_confidence(advice):
    (found,) = advice(repeated(module="decoder", calls=10, lines=["load.py:51"], prefixes=True))
    assert found.title == (
        "`decoder` is called for 10 growing prefixes of the same tensor in a loop (load.py:51): run one pass over the "
        "longest with a causal mask"
    )
    assert (found.confidence, found.numerics) == ("medium", "changes")
    assert "only if `decoder` is causal" in found.watch
    assert found.saves.how == "all but the longest prefix, with the backward pass"


def test_a_pass_without_gradients_has_no_backward_pass(advice):
    (found,) = advice(repeated(graph=False, without_graph=True))
    assert found.title == (
        "`encoder` runs without gradients (vae.py:54) on the same input as with gradients (vae.py:53): use that pass's "
        "output, detached"
    )
    assert found.saves.high_share == pytest.approx(1.3 * 0.2)
    assert "backward" not in found.why


def test_one_line_with_and_without_gradients(advice):
    (found,) = advice(repeated(graph=False, without_graph=True, lines=["vae.py:53"]))
    assert found.title.endswith("with the same input (vae.py:53): call it once and keep one result and detach it")


def test_what_is_known_of_one_step_only_and_of_a_busy_machine_is_a_bound(ask, make_measured, make_facts):
    run = make_measured(device="cpu", world=1)
    once = repeated(graph=False, step_ns=[10 * MS], again_ns=[2 * MS], graph_ns=[0], forward_ns=[4 * MS])
    (found,) = ask("DP612", run, [make_facts(repeated_forward=[once])])
    assert (found.saves.basis, found.saves.low_share, found.saves.high_share) == ("bound", 0, pytest.approx(0.2))
    (found,) = ask("DP612", run, [make_facts(repeated_forward=[repeated(graph=False)])], times_hold=False)
    assert found.saves.basis == "bound"


def test_the_interval_holds_how_steps_and_ranks_vary(ask, make_measured, make_facts):
    """Calls take 1 to 3 of 10 ms; another rank does not make them, so nothing may be saved."""
    windows = [Window("untraced", 3, [10 * MS] * 5, backward_ns=[6 * MS] * 5)]
    varied = repeated(graph=False, again_ns=[1 * MS, 3 * MS], graph_ns=[0, 0])
    facts = make_facts(windows=windows, repeated_forward=[varied])
    (found,) = ask("DP612", make_measured(device="cpu", world=1), [facts])
    assert (found.saves.low_share, found.saves.high_share) == pytest.approx((0.08, 0.39))
    ranks = [make_facts(windows=windows, repeated_forward=[varied]), make_facts(windows=windows, rank=1)]
    (found,) = ask("DP612", make_measured(device="cpu", world=2), ranks)
    assert found.saves.basis == "bound"


def test_it_saves_no_more_than_a_step(advice):
    (found,) = advice(repeated(again_ms=9))
    assert found.saves.high_share == pytest.approx(1.0)


def test_quiet_below_the_threshold(advice):
    assert advice(repeated(again_ms=0.4, graph=False)) == []  # 4 %
    assert len(advice(repeated(again_ms=0.6, graph=False))) == 1
    assert advice() == []


def test_a_gpu_saves_its_part_of_the_compute_of_each_pass(advice, hand_made, make_measured):
    """The host's half of either pass, of the 30 and 50 % of the step that the device computes in them."""
    phases = hand_made.phases(0.3, 0.5, 0.2)
    window = make_measured(world=1).account.window_ns
    shares = {"forward": 0.3, "backward": 0.5, "optimizer": 0}
    computing = [one.model_copy(update={"compute_ns": round(shares[one.phase] * window)}) for one in phases]
    (found,) = advice(repeated(), device="cuda", phases=computing)
    assert found.saves.high_share == pytest.approx(0.15 + 0.25)


def test_a_trace_without_phases_is_not_judged(advice):
    with pytest.raises(Missing, match="forward pass"):
        advice(repeated(graph=False), device="cuda", phases=[])


def test_rows_of_a_batch_that_are_repeated(advice):
    (found,) = advice(repeated(module="reader", calls=1, inputs=24, rows_repeat=5, lines=["page.py:62"]))
    assert found.title == (
        "`reader` computes each row of its input 5 times (page.py:62): call it on the distinct rows and repeat its "
        "output"
    )
    assert found.why.startswith("The repeated rows take 20 % of the step")
    assert (found.confidence, found.numerics, found.fingerprint) == ("high", "same", "DP612:reader:rows")
    assert ("distinct rows", 24) in [(evidence.label, evidence.value) for evidence in found.evidence]


def test_a_pass_for_a_metric(advice):
    (found,) = advice(repeated(1, graph=False, module="Net", lines=("train.py:85", "train.py:52"), trained=True))
    assert found.title == (
        "`Net` runs again without gradients (train.py:52) on the batch it was trained on (train.py:85): use the "
        "outputs of the training pass"
    )
    assert found.why == (
        "The repeated pass takes 10 % of the step. The training pass already computed outputs for this batch."
    )
    assert (found.saves.low_share, found.saves.high_share) == pytest.approx((0.08, 0.13))
    assert (found.confidence, found.numerics, found.fingerprint) == ("medium", "same", "DP612:Net:trained")
    assert found.watch.startswith("Outputs of the training pass are from before the update")
    random = repeated(1, graph=False, module="Net", lines=("train.py:85",), trained=True, in_training=True)
    (found,) = advice(random)
    assert found.numerics == "changes"
    assert found.watch.startswith("Without this pass, later dropout masks and BatchNorm statistics differ. Outputs")


def test_a_pass_whose_gradients_are_not_used(advice):
    lines = ("train.py:30", "train.py:28")
    (found,) = advice(repeated(1, graph=False, module="Net", lines=lines, trained=True, unused=True, in_training=True))
    assert found.title == (
        "`Net` runs a second time (train.py:28) on the batch it is trained on (train.py:30), and no backward pass uses "
        "the result: use the outputs of the training pass"
    )
    assert (found.saves.high_share, found.fingerprint) == (pytest.approx(0.13), "DP612:Net:unused")


def frozen(share=0.4, **more):
    return FrozenFeatureFacts("encoder", "train.py:41", 9, [10 * MS] * 2, [round(share * 10 * MS)] * 2, **more)


@pytest.fixture
def of_frozen(ask, make_measured, make_facts):
    def found(*features, epochs=20, device="cpu", **loader):
        given = {"batches_drawn": 90, "dataset_samples": 640, "random_samples": False, "iterable": False, **loader}
        facts = make_facts(
            frozen_features=[*features], planned_epochs=epochs, loaders=[LoaderFacts("train.py:30", **given)]
        )
        return ask("DP612", make_measured(device=device, world=1), [facts])

    return found


def test_features_of_a_frozen_module(of_frozen):
    (advice,) = of_frozen(frozen())
    assert advice.title == (
        "`encoder` computes the same features of the same samples in each of 20 epochs (train.py:41), 40 % of the "
        "step: compute them once and store them"
    )
    assert (advice.impact, advice.confidence, advice.numerics) == ("high", "medium", "same")
    assert (advice.saves.low_share, advice.saves.high_share) == (0, pytest.approx(0.4))
    assert [found.value for found in advice.evidence] == [pytest.approx(0.4), "train.py:41", 640, 20]


@pytest.mark.parametrize(
    "changed",
    [
        {"epochs": 1},
        {"epochs": None},
        {"device": "cuda"},
        {"random_samples": True},
        {"random_samples": None},
        {"iterable": True},
    ],
)
def test_features_that_may_differ_or_are_needed_once(of_frozen, changed):
    assert of_frozen(frozen(), **changed) == []


def test_a_frozen_module_with_the_same_input_in_every_step(of_frozen):
    (advice,) = of_frozen(frozen(same_inputs=1), epochs=None, random_samples=True)
    assert advice.title == (
        "`encoder` is called with the same input in every step (train.py:41), 40 % of the step: call it once before "
        "training and keep the result"
    )
    assert (advice.impact, advice.confidence, advice.numerics) == ("high", "medium", "same")
    assert (advice.saves.low_share, advice.saves.high_share) == (pytest.approx(0.32), pytest.approx(0.52))
    assert advice.fingerprint == "DP612:encoder:fixed"
    (advice,) = of_frozen(frozen(same_inputs=2))
    assert "with the same inputs in every step" in advice.title
    assert of_frozen(frozen(0.04, same_inputs=1)) == []
    assert of_frozen(frozen(same_inputs=1), device="cuda") == []


def test_epochs_that_a_trainer_of_a_library_plans(of_frozen):
    (advice,) = of_frozen(frozen(epochs=4), epochs=None)
    assert "in each of 4 epochs" in advice.title
    assert of_frozen(frozen(epochs=1), epochs=None) == []


def test_features_that_take_little(of_frozen):
    assert of_frozen(frozen(0.04)) == []
    assert len(of_frozen(frozen(0.06), frozen(0.055))) == 1


def test_fewer_rows_save_most_of_their_time_if_calls_are_long(advice):
    """Each row occurs five times: four fifths of a call are 3 ms or 2.3, so a call takes 3.75 or 2.9 ms."""
    rows = {"graph": False, "calls": 1, "inputs": 24, "rows_repeat": 5}
    (found,) = advice(repeated(again_ms=3, **rows))
    assert found.saves.basis == "timed"
    assert (found.saves.low_share, found.saves.high_share) == pytest.approx((0.8 * 0.6 * 0.3, 1.3 * 0.3))
    assert found.saves.predicted_share == pytest.approx(0.9 * 0.3)
    (short,) = advice(repeated(again_ns=[2_300_000] * 2, graph_ns=[0] * 2, **{**rows, "graph": True}))
    assert (short.saves.basis, short.saves.low_share) == ("bound", 0)
