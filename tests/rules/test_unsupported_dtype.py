"""A dtype without hardware support: shares and speeds are made up, savings are worked out by hand."""

from dataclasses import replace

import pytest

from dptune.measured import Missing
from dptune.runfile.communication import DdpFacts
from dptune.runfile.facts import DeviceFacts, DtypeSpeedFacts, OptimizerFacts

CPU = {"device": "cpu", "device_name": "Xeon", "tensor_cores": False, "fp32_share": None}


def speeds(product, convolution, dtype="float16"):
    """Both times as many times that of fp32."""
    return [
        DtypeSpeedFacts(dtype, "matrix product", round(100_000 * product), 100_000),
        DtypeSpeedFacts(dtype, "convolution", round(200_000 * convolution), 200_000),
    ]


def on_cpu(make_facts, **told):
    return [make_facts(**{"device": DeviceFacts("cpu", name="Xeon"), "autocast": "cpu:float16", **told})]


def test_fp16_autocast_on_a_cpu_that_emulates_it(ask, make_measured, make_facts):
    measured = make_measured(**CPU, operators={"matrix product": 0.5, "attention": 0.25, "copy": 0.05})
    told = on_cpu(make_facts, dtype_speeds=speeds(10, 5), autocast_where="train.py:31")
    (advice,) = ask("DP405", measured, told)
    assert advice.title == (
        "fp16 is slow on this CPU: matrix products take 10x as long as in fp32, and 75 % of the step"
    )
    (change,) = advice.changes
    assert (change.knob, change.now, change.then, str(change.at)) == (
        "precision.autocast",
        "fp16",
        "off",
        "train.py:31",
    )
    # Of 75 %, a tenth stays in fp32, or a fifth where other sizes suffer half as much: 60 % are saved at
    # least, and with the casts 75 + 5 % at most.
    assert advice.saves.low_share == pytest.approx(0.6)
    assert advice.saves.high_share == pytest.approx(0.8)
    assert (advice.saves.basis, advice.saves.predicted_share) == ("timed", pytest.approx(0.675))
    assert (advice.impact, advice.confidence) == ("high", "high")


def test_only_operators_that_the_script_runs_count(ask, make_measured, make_facts):
    told = on_cpu(make_facts, dtype_speeds=speeds(1.1, 100))
    assert ask("DP405", make_measured(**CPU, operators={"matrix product": 0.9}), told) == []
    (advice,) = ask("DP405", make_measured(**CPU, operators={"matrix product": 0.2, "convolution": 0.7}), told)
    assert "convolutions take 100x as long as in fp32, and 70 % of the step" in advice.title


def test_parameters_in_16_bits_have_no_setting_to_change(ask, make_measured, make_facts):
    told = on_cpu(
        make_facts,
        autocast=None,
        optimizers=[OptimizerFacts("SGD", dtypes=["bfloat16"])],
        dtype_speeds=speeds(20, 3, "bfloat16"),
    )
    (advice,) = ask("DP405", make_measured(**CPU, operators={"matrix product": 0.5}), told)
    assert advice.changes == []
    assert "Keep the model in fp32" in advice.watch


@pytest.mark.parametrize(
    ("operators", "told"),
    [
        ({"matrix product": 0.9}, {"dtype_speeds": speeds(1.8, 1.8)}),
        ({"matrix product": 0.04}, {"dtype_speeds": speeds(50, 50)}),
        ({"matrix product": 0.9}, {"autocast": None}),
        ({"matrix product": 0.9}, {"autocast": "cpu:bfloat16", "dtype_speeds": speeds(0.7, 0.9, "bfloat16")}),
    ],
)
def test_quiet_on_a_cpu(ask, make_measured, make_facts, operators, told):
    assert ask("DP405", make_measured(**CPU, operators=operators), on_cpu(make_facts, **told)) == []


def test_what_was_not_timed_is_missing(ask, make_measured, make_facts):
    with pytest.raises(Missing, match="the speed of this CPU in float16 was not measured"):
        ask("DP405", make_measured(**CPU, operators={"matrix product": 0.9}), on_cpu(make_facts))


def on_gpu(make_facts, capability, **told):
    return [make_facts(device=DeviceFacts("cuda", compute_capability=capability), **told)]


@pytest.mark.parametrize(("capability", "then"), [("7.0", "fp16"), ("7.5", "fp16"), ("6.1", "off")])
def test_bf16_on_a_gpu_before_ampere(ask, make_measured, make_facts, capability, then):
    (advice,) = ask("DP405", make_measured(), on_gpu(make_facts, capability, autocast="cuda:bfloat16"))
    assert advice.title == (f"bf16 has no hardware support on this GPU (compute capability {capability}; it needs 8.0)")
    assert [(one.now, one.then) for one in advice.changes] == [("bf16", then)]
    assert advice.saves.basis == "bound"


def test_gpus_of_several_models(ask, make_measured, make_facts):
    """The first rank's GPU supports bf16, the second's does not."""
    (first,) = on_gpu(make_facts, "8.0", autocast="cuda:bfloat16")
    (second,) = on_gpu(make_facts, "7.0", autocast="cuda:bfloat16")
    run = make_measured()
    ranks = [
        rank.model_copy(update={"device_name": name})
        for rank, name in zip(run.ranks, ("NVIDIA A100-SXM4-80GB", "Tesla V100-SXM2-16GB"), strict=True)
    ]
    run = run.model_copy(update={"ranks": ranks})
    (advice,) = ask("DP405", run, [first, replace(second, rank=1)])
    assert advice.title == (
        "bf16 has no hardware support on Tesla V100-SXM2-16GB (compute capability 7.0; it needs 8.0)"
    )
    assert advice.why.startswith("This GPU emulates bf16")
    assert advice.why.endswith("Ranks on newer GPUs wait for it.")
    assert [change.then for change in advice.changes] == ["fp16"]
    assert ask("DP405", run, [first, replace(first, rank=1)]) == []


def test_fp8_before_ada(ask, make_measured, make_facts):
    ddp = [DdpFacts("Net", gradient_dtypes=["float8_e4m3fn"])]
    (advice,) = ask("DP405", make_measured(), on_gpu(make_facts, "8.0", ddp=ddp))
    assert "compute capability 8.0; it needs 8.9" in advice.title
    assert ask("DP405", make_measured(), on_gpu(make_facts, "8.9", ddp=ddp)) == []


@pytest.mark.parametrize(("capability", "autocast"), [("8.0", "cuda:bfloat16"), ("7.0", "cuda:float16"), ("7.0", None)])
def test_quiet_on_a_gpu_that_supports_it(ask, make_measured, make_facts, capability, autocast):
    assert ask("DP405", make_measured(), on_gpu(make_facts, capability, autocast=autocast)) == []
