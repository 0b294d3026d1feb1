import pytest

from dptune.advise.ranking import ranked
from dptune.measured import DoubleFunction, UserCodeFigures
from dptune.runfile.communication import DdpFacts
from dptune.runfile.double_precision import DoubledFacts
from dptune.runfile.facts import OptimizerFacts

WIDE = DdpFacts("Net", gradient_dtypes=["float64"])


def test_gradients_of_doubles(ask, make_measured, make_facts):
    """80 % is computed and 20 communicated; the impact goes by half of that."""
    facts = make_facts(ddp=[WIDE], settings={"default_dtype": "torch.float32"})
    (advice,) = ask("DP402", make_measured(device="cpu", exposed_share=0.2), [facts])
    assert advice.title == "The parameters of Net are float64: float32 takes half the memory and sends half the bytes"
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


ADAM = OptimizerFacts("Adam", "train.py:66", parameter_tensors=16, parameters=1000, dtypes=["float64"])


def test_a_single_process_shows_it_in_the_parameters_of_its_optimizer(ask, make_measured, make_facts):
    """90 % is computed; nothing is sent."""
    facts = make_facts(optimizers=[ADAM], doubled=DoubledFacts("train.py:65", "nn.Module.double"))
    (advice,) = ask("DP402", make_measured(device="cpu", world=1, world_size=1, wait_share=0.1), [facts])
    assert advice.title == (
        "The parameters that Adam updates are float64, set by `nn.Module.double` at train.py:65: "
        "float32 takes half the memory"
    )
    assert (advice.saves.low_share, advice.saves.high_share) == pytest.approx((0.8 * 0.1 * 0.9, 1.1 * 0.75 * 0.9))
    assert (advice.evidence[0].label, advice.evidence[0].value) == ("dtype of the parameters", "float64")
    assert (advice.evidence[-1].label, advice.evidence[-1].value) == (
        "made float64 by",
        "nn.Module.double, train.py:65",
    )


def test_it_comes_before_the_optimizers_loop(ask, make_measured, make_facts, hand_made):
    """The loop takes 20 % of the step, of which fusing spares a half; float32 spares a half of all."""
    phases = hand_made.phases(0.4, 0.4, 0.2)
    run = make_measured(device="cpu", world=1, world_size=1, phases=phases)
    found = [*ask("DP603", run, [make_facts(optimizers=[ADAM])]), *ask("DP402", run, [make_facts(optimizers=[ADAM])])]
    assert [one.rule for one in ranked(found)] == ["DP402", "DP603"]


@pytest.mark.parametrize(
    "optimizers",
    [
        [OptimizerFacts("Adam", parameters=10, dtypes=["float32"])],
        [OptimizerFacts("Adam", parameters=10, dtypes=["float32", "float64"])],
        [OptimizerFacts("Adam", parameters=10)],
        [
            OptimizerFacts("Adam", parameters=10, dtypes=["float32"]),
            OptimizerFacts("SGD", parameters=9, dtypes=["float64"]),
        ],
    ],
)
def test_quiet_where_most_parameters_of_optimizers_are_not(ask, make_measured, make_facts, optimizers):
    assert ask("DP402", make_measured(device="cpu"), [make_facts(optimizers=optimizers)]) == []


def doubling(share):
    function = DoubleFunction(
        name="front",
        at="net.py:15",
        operator="aten::matmul",
        calls=8,
        rank=0,
        cost_ns=20_000_000,
        backward_ns=0,
        share=share,
    )
    return UserCodeFigures(ranks=[0], steps=2, basis="untraced", sites=[], double_functions=[function])


def test_a_function_that_computes_on_doubles(ask, make_measured, make_facts):
    facts = make_facts(optimizers=[OptimizerFacts("Adam", parameters=10, dtypes=["float32"])])
    run = make_measured(device="cpu", world=1, user_code=doubling(0.3))
    (advice,) = ask("DP402", run, [facts])
    assert advice.title == (
        "`front` (net.py:15) computes on float64 tensors for 30 % of the step, although most parameters are not "
        "float64: convert its constants and inputs to float32"
    )
    assert (advice.impact, advice.numerics, advice.saves.high_share) == ("high", "changes", 0.3)
    assert advice.fingerprint == "DP402:front"
    assert ask("DP402", make_measured(device="cpu", world=1, user_code=doubling(0.09)), [facts]) == []
    assert [one.fingerprint for one in ask("DP402", run, [make_facts(optimizers=[ADAM])])] != ["DP402:front"]


def test_on_a_gpu_and_on_a_busy_machine_the_saving_is_a_bound(ask, make_measured, make_facts):
    facts = make_facts(optimizers=[ADAM])
    alone = {"world": 1, "world_size": 1, "wait_share": 0.1}
    (on_gpu,) = ask("DP402", make_measured(**alone), [facts])
    (busy,) = ask("DP402", make_measured(device="cpu", **alone), [facts], times_hold=False)
    for advice in (on_gpu, busy):
        assert (advice.saves.basis, advice.saves.low_share) == ("bound", 0)
        assert advice.saves.high_share == pytest.approx(0.9)
