import pytest

from dptune.measured import MatmulFigures, Missing
from dptune.predicted import Prediction
from dptune.runfile.facts import DeviceFacts


def products(hand_made, fp32, used=0.0, there=True):
    return hand_made.figures(MatmulFigures, fp32_share=fp32, tensor_core_share=used, tensor_cores=there)


V100 = {"device_name": "Tesla V100-SXM2-32GB"}


def test_a_volta_whose_tensor_cores_are_idle(ask, make_measured, hand_made):
    """All of the products, 30 %, and half of the other 70 % that is computed."""
    (advice,) = ask("DP404", make_measured(matmul=products(hand_made, 0.3), **V100))
    assert (
        advice.title
        == "fp32 convolutions and matrix products take 30 % of a step, and tensor cores idle: use fp16 autocast"
    )
    assert [(one.knob, one.then) for one in advice.changes] == [("precision.autocast", "fp16")]
    assert advice.saves.high_share == pytest.approx(0.65)
    assert (advice.impact, advice.numerics, advice.saves.basis) == ("high", "changes", "bound")


@pytest.mark.parametrize("shown", ["Volta or later", "Turing or later", "Ampere or later", ""])
def test_a_gpu_that_only_its_kernels_show(ask, make_measured, hand_made, shown):
    known = {"fp32_share": 0.3, "tensor_core_share": 0.0, "architecture": shown}
    run = make_measured(matmul=hand_made.figures(MatmulFigures, **known), device_name=None)
    if not shown.startswith(("Volta", "Turing")):
        with pytest.raises(Missing, match="tensor_cores was not measured"):
            ask("DP404", run)
        return
    (advice,) = ask("DP404", run)
    assert advice.title == (
        "fp32 convolutions and matrix products take 30 % of a step, and no kernel uses tensor cores: if this GPU "
        "has any, use fp16 "
        "autocast"
    )
    assert (advice.confidence, advice.saves.high_share) == ("low", pytest.approx(0.65))
    assert advice.evidence[-1].value == shown


@pytest.mark.parametrize(("fp32", "used", "there"), [(0.03, 0.0, True), (0.3, 0.2, True), (0.3, 0.0, False)])
def test_quiet(ask, make_measured, hand_made, fp32, used, there):
    assert ask("DP404", make_measured(matmul=products(hand_made, fp32, used, there), **V100)) == []


def test_quiet_on_cards_that_know_tf32_which_has_a_rule_of_its_own(ask, make_measured, make_facts, hand_made):
    told = {"matmul": products(hand_made, 0.3)}
    assert ask("DP404", make_measured(**told)) == []
    assert ask("DP404", make_measured(**told, **V100), [make_facts()]) == []  # its facts say 8.0
    assert ask("DP404", make_measured(**told, device_name="NVIDIA A100-SXM4-80GB")) == []
    with pytest.raises(Missing, match="the GPU model is unknown"):
        ask("DP404", make_measured(**told, device_name=None))


@pytest.mark.parametrize(("rule", "what"), [("DP401", "TF32"), ("DP404", "tensor cores for fp16 only")])
def test_ranks_on_a_volta_and_an_a100(ask, make_measured, hand_made, rule, what):
    measured = make_measured(matmul=products(hand_made, 0.3), **V100)
    first, second = measured.ranks
    mixed = [first, second.model_copy(update={"device_name": "NVIDIA A100-SXM4-80GB"})]
    why = f"different GPU models, and not all have {what}: Tesla V100-SXM2-32GB and NVIDIA A100-SXM4-80GB"
    with pytest.raises(Missing, match=why):
        ask(rule, measured.model_copy(update={"ranks": mixed}))


def test_steps_that_vary_are_not_stretched_by_a_profiler(ask, make_measured, hand_made):
    """Where all steps are traced, a median of 5 ms beside a mean of 10 makes no product take more of a step."""
    step = make_measured().step.model_copy(update={"basis": "traced", "time_ns": 5_000_000})
    run = make_measured(matmul=products(hand_made, 0.2), exposed_share=0.5, step=step, **V100)
    (advice,) = ask("DP404", run)
    assert advice.saves.high_share == pytest.approx(0.35)  # the products, 20 %, and half of the other 30 %
    assert [one.value for one in advice.evidence] == pytest.approx([0.2, 0.5, 0.0])


def test_the_evidence_is_of_the_step_that_the_saving_is_of(ask, make_measured, make_facts, hand_made):
    """Kernels of 2 ms in a traced step of 10 are 25 % of a step of 8 without the profiler, compute of 5 ms is 62.5."""
    step = make_measured().step.model_copy(update={"median_ns": 8_000_000, "untraced_median_ns": 8_000_000})
    run = make_measured(matmul=products(hand_made, 0.2), exposed_share=0.5, step=step, **V100)
    (advice,) = ask("DP404", run)
    assert advice.title.startswith("fp32 convolutions and matrix products take 25 % of a step")
    assert advice.saves.high_share == pytest.approx((0.25 + 0.625) / 2)
    assert [one.value for one in advice.evidence] == pytest.approx([0.25, 0.625, 0.0])


def test_with_a_scaler_and_no_autocast_the_scaler_is_to_stay(ask, make_measured, make_facts, hand_made):
    """DP403 says to leave it out or to compute in fp16; this says the same, and which of the two is worth it here."""
    run = make_measured(matmul=products(hand_made, 0.3), **V100)
    volta = DeviceFacts("cuda", compute_capability="7.0")
    (own,) = ask("DP404", run, [make_facts(grad_scaler=True, device=volta)])
    (other,) = ask("DP403", run, [make_facts(grad_scaler=True, device=volta)])
    assert "keep the existing GradScaler" in own.watch
    assert "or use fp16 autocast" in other.title
    (own,) = ask("DP404", run, [make_facts(autocast="cuda:bfloat16", device=volta)])
    assert ([one.now for one in own.changes], "use a GradScaler" in own.watch) == (["bf16"], True)


@pytest.mark.parametrize("waits", [True, False])
def test_a_replay_that_may_save_nothing_limits_the_bound(ask, make_measured, hand_made, predict, waits):
    """A step of 10 ms takes 9.1 to 10.1 by a replay whose host the profiler slows: at most 9 % is saved, not 65."""
    step = make_measured().step.model_copy(update={"basis": "traced"})
    run = make_measured(matmul=products(hand_made, 0.3), wait_share=0.2 if waits else 0.0, step=step, **V100)
    (advice,) = ask("DP404", run, predictor=predict("precision.autocast", {"fp16": 0.96}))
    assert advice.saves.basis == "bound"
    assert advice.saves.high_share == pytest.approx(0.09 + run.share("host_idle_ns") + run.share("launch_idle_ns"))
    most = "at most what the replay saves, 4.0 % of a step (0 to 9.0 %), plus idle time"
    assert most in advice.saves.how
    assert ("waiting for the data loader" in advice.saves.how) is waits


def test_a_traced_host_that_limits_the_replay_leaves_its_bound(ask, make_measured, hand_made):
    """The bound of the rule is more than 30 % of 10 ms; the replay knows only that a step takes 8 ms or more."""
    why = "the traced host limits the replay: only an upper bound of the saving is known"

    def predictor(changes):
        return Prediction.only(why, changes=dict(changes), low_ns=8_000_000)

    run = make_measured(matmul=products(hand_made, 0.3), **V100)
    (advice,) = ask("DP404", run, predictor=predictor)
    assert (advice.saves.basis, advice.saves.high_share) == ("bound", pytest.approx(0.2))
    assert advice.saves.how.endswith("; the traced host limits the replay")
    assert advice.saves.unpredicted == why
