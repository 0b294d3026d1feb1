import pytest

from dptune.runfile.communication import DdpFacts, FsdpFacts
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
