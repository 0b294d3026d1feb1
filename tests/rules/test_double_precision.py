import pytest

from dptune.runfile.communication import DdpFacts

WIDE = DdpFacts("Net", gradient_dtypes=["float64"])


def test_gradients_of_doubles(ask, make_measured, make_facts):
    """80 % is computed and 20 exchanged; the impact goes by half of that."""
    facts = make_facts(ddp=[WIDE], settings={"default_dtype": "torch.float32"})
    (advice,) = ask("DP402", make_measured(device="cpu", exposed_share=0.2), [facts])
    assert advice.title.startswith("The parameters of Net are float64")
    assert advice.saves.high_share == pytest.approx(1.0)
    assert advice.evidence[1].value == "torch.float32"
    assert (advice.evidence[2].label, advice.evidence[2].value) == (
        "compute and exposed communication",
        advice.saves.high_share,
    )
    assert (advice.impact, advice.numerics, advice.saves.basis) == ("high", "changes", "bound")


@pytest.mark.parametrize("dtypes", [["bfloat16", "float32"], ["float32", "float64"], []])
def test_quiet_where_not_all_are(ask, make_measured, make_facts, dtypes):
    facts = make_facts(ddp=[DdpFacts("Net", gradient_dtypes=dtypes)])
    assert ask("DP402", make_measured(), [facts]) == []
