"""DP108: ranks of one process group train models that are never synchronized."""

from math import inf, nan

import pytest

from dptune.measured import Missing
from dptune.runfile.communication import CallFacts, DdpFacts, FsdpFacts
from dptune.runfile.facts import OptimizerFacts
from dptune.runfile.step_values import StepValueFacts, StepValues
from dptune.runfile.window import Window


def ranks(make_facts, sums=((1.5, -2.0), (1.5, -2.1)), rates=(0.1, 0.1), **more):
    made = []
    for rank in (0, 1):
        window = Window("untraced", 3, [9_000_000] * 4, parameter_sums=list(sums[rank]), complete=True)
        optimizer = OptimizerFacts("SGD", "train.py:11", [rates[rank]], parameters=more.get("parameters", 5000))
        own = {k: v for k, v in {"backend": "gloo", "calls_steps": 4, **more}.items() if k != "parameters"}
        made.append(make_facts(rank=rank, optimizers=[optimizer], windows=[window], **own))
    return made


def test_nothing_is_communicated(ask, make_measured, make_facts):
    (advice,) = ask("DP108", make_measured(), ranks(make_facts, backward_where="train.py:20"))
    assert advice.title == ("2 ranks train 2 unrelated models: nothing averages gradients or parameters between them")
    assert (advice.kind, advice.impact, advice.confidence) == ("risk", "high", "high")
    assert "dptune check --accept FILE --update-accepted" in advice.remedy
    assert "train.py:20" in [one.value for one in advice.evidence]


def test_metrics_are_averaged_and_gradients_are_not(ask, make_measured, make_facts, make_all_reduce):
    calls = [CallFacts("all_reduce", "train.py:30", calls=4, sent_bytes=16)]
    for size in (4, None):  # without a detailed window the trace of a CPU has no sizes
        run = make_measured(collectives=[make_all_reduce(size, 1)])
        assert ask("DP108", run, ranks(make_facts, calls=calls))
    run = make_measured(collectives=[make_all_reduce(None, 2)])  # one of them is not the script's
    assert ask("DP108", run, ranks(make_facts, calls=calls)) == []


def test_less_sure_where_weights_were_not_compared(ask, make_measured, make_facts):
    (advice,) = ask("DP108", make_measured(), ranks(make_facts, ((), ())))
    assert advice.confidence == "medium"


@pytest.mark.parametrize(
    "more",
    [
        {"sums": ((1.5, -2.0), (1.5, -2.0))},  # something that is not seen keeps them equal
        {"ddp": [DdpFacts("Net")]},
        {"fsdp": [FsdpFacts(2)]},
        {"engine": "deepspeed"},
        {"averages_models": True},
        {"backend": None},
        {"world_size": 1},
        {"rates": (0.1, 0.2)},  # a search over learning rates
        {"calls": [CallFacts("all_reduce", "train.py:30", calls=1, sent_bytes=20_000)]},  # each fourth step
        {"calls": [CallFacts("all_gather_object", "train.py:30", calls=1)]},
    ],
)
def test_quiet(ask, make_measured, make_facts, more):
    assert ask("DP108", make_measured(), ranks(make_facts, **more)) == []


@pytest.mark.parametrize(
    "row", [{"message_bytes": 20_000}, {"message_bytes": None}, {"message_bytes": 64, "kind": "p2p"}]
)
def test_quiet_where_the_trace_holds_gradients_or_activations(ask, make_measured, make_facts, make_all_reduce, row):
    run = make_measured(collectives=[make_all_reduce(calls_per_step=1, **row)])
    assert ask("DP108", run, ranks(make_facts)) == []


def test_one_recorded_rank_is_not_judged(ask, make_measured, make_facts):
    with pytest.raises(Missing, match="one rank was recorded"):
        ask("DP108", make_measured(), ranks(make_facts)[:1])


def values(total, gradients="1f", step=3, **more):
    return StepValues(step, gradients, **{"distinct": [64, 8], "sums": [total, 0.5], "scales": [10.0, 0.5], **more})


def averaged(make_facts, *of_ranks, sums=((1.5,), (1.6,)), **more):
    """The facts of ranks with these last warm-up steps."""
    made = ranks(make_facts, sums, backward_where="train.py:20", **more)
    for facts, steps in zip(made, of_ranks, strict=True):
        facts.step_values = [StepValueFacts("SGD", "train.py:11", steps)]
    return made


def test_averaged_gradients_are_applied_to_different_weights(ask, make_measured, make_facts):
    (advice,) = ask("DP108", make_measured(), averaged(make_facts, [values(1.0)], [values(3.0)]))
    assert advice.title == (
        "2 ranks apply the same gradients to different weights: nothing made the weights of SGD (train.py:11) equal"
    )
    assert (advice.kind, advice.impact, advice.confidence) == ("risk", "high", "high")
    assert "dist.broadcast(tensor.data, src=0)" in advice.remedy
    shown = {each.label: (each.value, each.unit) for each in advice.evidence}
    assert shown["sampled gradients"] == ("equal on 2 ranks", "")
    assert shown["sampled tensors whose weights differ"] == (1, "of 2")
    assert shown["largest difference"] == (0.2, "of the absolute weights")
    assert shown["backward pass called at"] == ("train.py:20", "")


def test_the_weights_of_a_model_in_ddp(ask, make_measured, make_facts):
    """Only rank 0 has loaded a checkpoint, after DDP had broadcast the weights."""
    made = averaged(make_facts, [values(1.0)], [values(3.0)], ddp=[DdpFacts("Net")])
    (advice,) = ask("DP108", make_measured(), made)
    assert advice.remedy.startswith("Load or set the weights before DistributedDataParallel is constructed")


@pytest.mark.parametrize(
    "steps",
    [
        [values(1.0)],  # the same weights
        [values(1.0999)],  # rounding in 16 bits
        [values(3.0, "2e")],  # other gradients
        [values(3.0, step=4)],  # no common step
        [values(3.0), values(1.0, step=4)],
        [],
    ],
)
def test_quiet_where_weights_or_gradients_are_as_they_should_be(ask, make_measured, make_facts, steps):
    first = [values(1.0), *([values(1.0, step=4)] if len(steps) > 1 else [])]
    assert ask("DP108", make_measured(), averaged(make_facts, first, steps, ddp=[DdpFacts("Net")])) == []


def test_quiet_where_few_gradients_were_compared(ask, make_measured, make_facts):
    """Those of a bias that is added to the loss do not depend on the batch."""
    few = {"distinct": [1, 1]}
    made = averaged(make_facts, [values(1.0, **few)], [values(3.0, **few)], ddp=[DdpFacts("Net")])
    assert ask("DP108", make_measured(), made) == []


@pytest.mark.parametrize("more", [{"averages_models": True}, {"sums": ((1.5,), (1.5,))}])
def test_quiet_where_weights_are_made_equal_later(ask, make_measured, make_facts, more):
    assert ask("DP108", make_measured(), averaged(make_facts, [values(1.0)], [values(3.0)], **more)) == []


def test_one_rank_has_no_other_to_differ_from(ask, make_measured, make_facts):
    made = averaged(make_facts, [values(1.0)], [values(3.0)], ddp=[DdpFacts("Net")])
    assert ask("DP108", make_measured(), made[:1]) == []


@pytest.mark.parametrize(
    "more",
    [
        {"sums": [nan, 0.5]},
        {"sums": [1e300, 0.5]},
        {"sums": []},
        {"sums": [inf, -inf], "scales": [inf, inf]},
        {"scales": [-1.0, 0.0]},
        {"scales": [0.0, 0.0]},
        {"distinct": [64]},
        {"distinct": [10**30, -1]},
    ],
)
def test_figures_that_cannot_be(ask, make_measured, make_facts, more):
    made = averaged(make_facts, [values(1.0)], [values(3.0, **more)], ddp=[DdpFacts("Net")])
    assert ask("DP108", make_measured(), made) == []
    both = averaged(make_facts, [values(1.0, **more)], [values(3.0, **more)], ddp=[DdpFacts("Net")])
    assert ask("DP108", make_measured(), both) == []
