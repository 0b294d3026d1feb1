import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptune.measured import DtypeFlops, EfficiencyFigures, MatmulFigures, Missing
from dptune.runfile.facts import DeviceFacts

from .conftest import ask_rule


def test_fp32_products_on_an_a100(ask, make_measured, make_facts):
    facts = make_facts(settings={"float32_matmul_precision": "highest"})
    (advice,) = ask("DP401", make_measured(fp32_share=0.4), [facts])
    (change,) = advice.changes
    assert (change.knob, change.now, change.then) == ("precision.float32_matmul", "highest", "high")
    assert change.paste == 'torch.set_float32_matmul_precision("high")'
    assert (advice.saves.low_share, advice.saves.high_share) == (0, pytest.approx(0.4))
    assert advice.impact == "high"
    assert advice.numerics == "changes"
    assert "10 bits" in advice.watch


def test_the_name_of_the_card_decides_without_facts(ask, make_measured):
    assert len(ask("DP401", make_measured(fp32_share=0.4, device_name="NVIDIA H100 80GB HBM3"))) == 1
    assert ask("DP401", make_measured(fp32_share=0.4, device_name="Tesla V100-SXM2-16GB")) == []
    assert ask("DP401", make_measured(fp32_share=0.4, device_name="Tesla V100S-PCIE-32GB")) == []
    assert ask("DP401", make_measured(fp32_share=0.4, device_name="NVIDIA T4G")) == []
    assert ask("DP401", make_measured(fp32_share=0.4, device_name="Tesla T4")) == []
    with pytest.raises(Missing, match="the GPU model is unknown"):
        ask("DP401", make_measured(fp32_share=0.4, device_name=None))


def test_compute_capability_decides_where_it_was_recorded(ask, make_measured, make_facts):
    volta = make_facts(device=DeviceFacts("cuda", compute_capability="7.0"))
    blackwell = make_facts(device=DeviceFacts("cuda", compute_capability="10.0"))
    measured = make_measured(fp32_share=0.4, device_name="some card")
    assert ask("DP401", measured, [volta]) == []
    assert len(ask("DP401", measured, [blackwell])) == 1


def test_a_compute_capability_that_is_none_leaves_it_to_the_name(ask, make_measured, make_facts):
    spelt = make_facts(device=DeviceFacts("cuda", compute_capability="sm_70"))
    assert ask("DP401", make_measured(fp32_share=0.4, device_name="some card"), [spelt]) == []
    none = make_facts(device=DeviceFacts("cuda", compute_capability="abc"))
    assert ask("DP401", make_measured(fp32_share=0.4, device_name="Tesla T4"), [none]) == []
    with pytest.raises(Missing, match="the GPU model is unknown"):
        ask("DP401", make_measured(fp32_share=0.4, device_name=None), [none])


@pytest.mark.parametrize(
    "run", [{"device": "cpu", "tensor_cores": None}, {"device": "rocm"}, {"tensor_cores": False}, {"fp32_share": 0.04}]
)
def test_quiet(ask, make_measured, run):
    assert ask("DP401", make_measured(**{"fp32_share": 0.4, **run})) == []


@pytest.mark.parametrize(
    ("allowed", "knobs", "share"),
    [
        (None, ["precision.float32_matmul"], 0.1),  # torch's default
        (False, ["precision.float32_matmul", "cudnn.allow_tf32"], 0.4),
        (True, ["precision.float32_matmul"], 0.1),  # cuDNN chose fp32 for its convolutions
    ],
)
def test_convolutions_have_a_switch_of_their_own(ask, make_measured, make_facts, allowed, knobs, share):
    """30 % of the step are fp32 convolutions, 10 % are products; then convolutions alone."""
    facts = make_facts(settings={} if allowed is None else {"backends.cudnn.allow_tf32": allowed})
    run = make_measured(fp32_share=0.4)
    mixed = {"matmul": run.matmul.model_copy(update={"fp32_convolution_share": 0.3})}
    (advice,) = ask("DP401", run.model_copy(update=mixed), [facts])
    assert [change.knob for change in advice.changes] == knobs
    assert advice.saves.high_share == pytest.approx(share)
    only = {"matmul": run.matmul.model_copy(update={"fp32_convolution_share": 0.4})}
    found = [change.knob for each in ask("DP401", run.model_copy(update=only), [facts]) for change in each.changes]
    assert found == (["cudnn.allow_tf32"] if allowed is False else [])


@pytest.mark.parametrize("precision", ["high", "medium"])
def test_quiet_where_tf32_is_on(ask, make_measured, make_facts, precision):
    facts = make_facts(settings={"float32_matmul_precision": precision})
    assert ask("DP401", make_measured(fp32_share=0.4), [facts]) == []


def test_the_threshold_can_be_set(ask, make_measured):
    assert ask("DP401", make_measured(fp32_share=0.4), limits={"worth_share": 0.5}) == []
    assert len(ask("DP401", make_measured(fp32_share=0.03), limits={"worth_share": 0.02})) == 1


def test_what_was_not_measured(ask, make_measured):
    with pytest.raises(Missing, match="tensor_cores was not measured"):
        ask("DP401", make_measured(tensor_cores=None))
    with pytest.raises(Missing, match="fp32_share was not measured"):
        ask("DP401", make_measured(fp32_share=None))


@given(share=st.floats(0, 1))
def test_a_saving_never_exceeds_the_kernels_time(hand_made, share):
    for advice in ask_rule("DP401", hand_made.measured_run(fp32_share=share)):
        assert advice.saves.high_share <= share


def test_title_evidence_and_saving_are_of_one_step(ask, make_measured):
    """Kernels of 2 ms in a traced step of 10 are 25 % of a step of 8 without the profiler."""
    step = make_measured().step.model_copy(update={"median_ns": 8_000_000, "untraced_median_ns": 8_000_000})
    (advice,) = ask("DP401", make_measured(fp32_share=0.2, step=step))
    assert advice.title.startswith("fp32 convolutions and matrix products take 25 % of a step")
    assert advice.evidence[0].value == advice.saves.high_share == pytest.approx(0.25)


def card(hand_made, **peaks):
    """40 % of a step of 10 ms is fp32 products of 40 GFLOP, of 50 that are counted, on a card of these peaks."""
    dtypes = [DtypeFlops.only("", dtype=name, flops=flops) for name, flops in (("fp32", 80), ("fp16", 20))]
    efficiency = EfficiencyFigures.only("not measured", flops=100, flops_per_step=50e9, dtypes=dtypes)
    matmul = hand_made.figures(MatmulFigures, fp32_share=0.4, tensor_cores=True)
    return {"efficiency": efficiency, "matmul": matmul.model_copy(update={"peaks": peaks})}


def test_the_flops_at_the_peak_of_tf32_stay(ask, make_measured, hand_made):
    """40 GFLOP at 20 TFLOP/s take 2 ms, 20 % of the step."""
    run = make_measured(**card(hand_made, fp32=10e12, tf32=20e12, bf16=40e12))
    (advice,) = ask("DP401", run)
    assert advice.saves.high_share == pytest.approx(0.4 - 0.2)
    assert advice.changes[0].knob == "precision.float32_matmul"
    assert ask("DP401", make_measured(**card(hand_made, fp32=5e12, tf32=10e12, bf16=20e12))) == []  # nothing is left


def test_bf16_where_the_peak_of_tf32_is_that_of_fp32(ask, make_measured, make_facts, hand_made):
    """40 GFLOP at 40 TFLOP/s take 1 ms: 10 % of the step remain of the products, 40 %, and half of the other 60 %."""
    run = make_measured(**card(hand_made, fp32=20e12, tf32=20e12, bf16=40e12))
    (advice,) = ask("DP401", run)
    assert [(change.knob, change.then) for change in advice.changes] == [("precision.autocast", "bf16")]
    assert advice.saves.high_share == pytest.approx(0.4 + 0.6 / 2 - 0.1)
    assert "20 TFLOP/s in fp32, 20 in TF32 and 40 in bf16" in advice.why
    assert ask("DP401", run, [make_facts(autocast="cuda:bfloat16")]) == []


@pytest.mark.parametrize(
    ("name", "capability", "confidence"),
    [
        ("Xavier", "7.2", None),
        ("NVIDIA CMP 100-210", "7.0", None),
        ("NVIDIA A100-SXM4-80GB", "7.5", None),  # the trace decides, not the name
        ("some card", "8.6", "medium"),
        ("some card", None, "low"),
        ("Tesla T40", None, "low"),
        ("NVIDIA RTX A6000", None, "medium"),
        (None, "9.0", "medium"),
    ],
)
def test_the_compute_capability_of_the_trace_decides(ask, make_measured, name, capability, confidence):
    measured = make_measured(fp32_share=0.4, device_name=name)
    ranks = [rank.model_copy(update={"compute_capability": capability}) for rank in measured.ranks]
    measured = measured.model_copy(update={"ranks": ranks})
    assert [advice.confidence for advice in ask("DP401", measured)] == ([confidence] if confidence else [])
    idle = ask("DP404", measured.model_copy(update={"matmul": measured.matmul.model_copy(update=IDLE)}))
    assert bool(idle) == (confidence is None)  # never both


IDLE = {"tensor_core_share": 0.0}
