"""Loss scaling that does not fit what is computed: facts are made up."""

import pytest

from dptune.runfile.communication import DdpFacts, FsdpFacts
from dptune.runfile.facts import OptimizerFacts
from dptune.runfile.loss_scaling import LossScalingFacts, ScaledClippingFacts
from dptune.runfile.window import Window

SCALER = {"grad_scaler": True, "grad_scale": 65536.0}


def test_a_scaler_beside_bf16(ask, make_measured, make_facts):
    (advice,) = ask("DP403", make_measured(), [make_facts(autocast="cuda:bfloat16", **SCALER)])
    assert advice.title.startswith("A GradScaler is enabled, and autocast uses bf16")
    assert (advice.kind, advice.impact, advice.saves) == ("risk", "low", None)
    assert [one.value for one in advice.evidence] == ["cuda:bfloat16", 65536.0]


def test_one_that_skips_steps_is_a_warning(ask, make_measured, make_facts):
    facts = make_facts(windows=[Window("untraced", 3, skipped_steps=2)], **SCALER)
    (advice,) = ask("DP403", make_measured(), [facts])
    assert advice.title == ("A GradScaler is enabled, and there is no autocast: remove it, or use fp16 autocast")
    assert advice.impact == "medium"


@pytest.mark.parametrize(
    "told",
    [
        {"autocast": "cuda:float16", **SCALER},
        {"autocast": "cuda:bfloat16", "grad_scaler": False},
        {"ddp": [DdpFacts("Net", gradient_dtypes=["float16"])], **SCALER},
        {"fsdp": [FsdpFacts(2, parameter_dtype="float16")], **SCALER},
    ],
)
def test_quiet(ask, make_measured, make_facts, told):
    assert ask("DP403", make_measured(), [make_facts(**told)]) == []


UNSCALED = {
    "autocast": "cuda:float16",
    "autocast_where": "train.py:60",
    "backward_where": "train.py:64",
    "grad_scaler": False,
    "optimizers": [OptimizerFacts("AdamW")],
    "losses": [3.0, 2.9, float("nan"), 2.5],
    "loss_scaling": LossScalingFacts(4, 4, 1.0),
}


def test_fp16_autocast_without_a_scaler(ask, make_measured, make_facts):
    (advice,) = ask("DP403", make_measured(), [make_facts(**UNSCALED)])
    assert advice.title == (
        "Training computes in fp16 autocast (train.py:60) without an enabled GradScaler: small gradients round to zero"
    )
    assert (advice.kind, advice.impact, advice.confidence, advice.saves) == ("risk", "high", "medium", None)
    assert [one.value for one in advice.evidence] == ["cuda:float16", "none", 4, 2.9, "train.py:60", "train.py:64"]
    assert "GradScaler" in advice.remedy


@pytest.mark.parametrize(
    "told",
    [
        {"grad_scaler": True},
        {"grad_scaler": None},  # not recorded
        {"autocast": "cuda:bfloat16"},
        {"autocast": None},
        {"losses": []},  # inference
        {"optimizers": []},
        {"losses": [3.0 * 1024, 2.9 * 1024]},  # the script scales its loss
        {"losses": [float("inf")]},
        {"loss_scaling": LossScalingFacts(4, 4, 32.0)},  # by less than the losses show
        {"loss_scaling": LossScalingFacts(4, 0, 1.0)},  # only a model that is not trained computes in fp16
        {"loss_scaling": None},  # not recorded
        {"engine": "deepspeed"},  # scales by itself
    ],
)
def test_fp16_autocast_is_quiet(ask, make_measured, make_facts, told):
    assert ask("DP403", make_measured(), [make_facts(**{**UNSCALED, **told})]) == []


def test_clipping_before_unscaling(ask, make_measured, make_facts):
    clipped = {"scaled_clipping": ScaledClippingFacts("train.py:62", 30), "grad_scaler_where": "train.py:40"}
    (advice,) = ask("DP403", make_measured(), [make_facts(autocast="cuda:float16", **SCALER, **clipped)])
    assert advice.title == (
        "Gradients are clipped at train.py:62 before the GradScaler unscales them: the limit is compared with "
        "gradients 65,536 times as large"
    )
    assert (advice.kind, advice.impact, advice.confidence) == ("risk", "high", "high")
    assert advice.remedy == "Call `scaler.unscale_(optimizer)` before train.py:62."
    unscaled = {**SCALER, "grad_scale": 1.0}
    assert ask("DP403", make_measured(), [make_facts(autocast="cuda:float16", **unscaled, **clipped)]) == []
