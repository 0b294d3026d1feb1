import pytest

from dptune.runfile.communication import FsdpFacts
from dptune.runfile.facts import OptimizerFacts

ROWS = ("all_gather", "forward", 0.09, "sharding"), ("reduce_scatter", "backward", 0.2, "sharding")
WIDE = FsdpFacts(2, units=5, where="train.py:9", modules=["Block"], mesh=[2])


@pytest.fixture
def found(ask, make_measured, make_facts, hand_made):
    def of(rows=ROWS, sharded=WIDE, dtypes=("float32",), predictor=None, **more):
        figures = {"overlap": hand_made.overlap(*rows)}
        facts = [make_facts(fsdp=[sharded], optimizers=[OptimizerFacts("AdamW", dtypes=[*dtypes])])]
        return ask("DP210", make_measured(**{**figures, **more}), facts, predictor=predictor)

    return of


def test_half_of_the_exposed_reduce_scatters_is_the_bound(found):
    (advice,) = found()
    assert advice.title == (
        "FSDP reduces gradients in fp32 (train.py:9), and the exposed reductions take 20 % of a step: bf16 "
        "halves the bytes"
    )
    (change,) = advice.changes
    assert (change.knob, change.then, str(change.at)) == ("fsdp.reduce_dtype", "bf16", "train.py:9")
    assert (advice.impact, advice.numerics, advice.saves.basis) == ("medium", "changes", "bound")
    assert advice.saves.high_share == pytest.approx(0.5 * 0.2, rel=0.3)


def test_a_prediction_replaces_the_bound(found, predict):
    (advice,) = found(predictor=predict("fsdp.reduce_dtype", {"bf16": 0.9}))
    assert advice.saves.basis == "replayed"


@pytest.mark.parametrize(
    "more",
    [
        {"rows": [("reduce_scatter", "backward", 0.04, "sharding")]},
        {"rows": [("reduce_scatter", "backward", 0.3, "other")]},
        {"sharded": FsdpFacts(2, mesh=[2], parameter_dtype="bfloat16")},
        {"sharded": FsdpFacts(2, mesh=[2], reduce_dtype="bfloat16")},
        {"sharded": FsdpFacts(1, mesh=[2])},
        {"dtypes": ["bfloat16"]},
        {"world": 1},
    ],
)
def test_quiet(found, more):
    assert found(**more) == []


def test_gradients_of_bf16_parameters_that_are_reduced_in_fp32(found):
    (advice,) = found(sharded=FsdpFacts(2, mesh=[2], parameter_dtype="bfloat16", reduce_dtype="float32"))
    assert advice.changes[0].now == "fp32"
