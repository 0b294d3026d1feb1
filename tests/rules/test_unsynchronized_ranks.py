"""DP108: ranks of one process group train models that are never synchronized."""

import pytest

from dptune.measured import Missing
from dptune.runfile.communication import CallFacts, DdpFacts, FsdpFacts
from dptune.runfile.facts import OptimizerFacts
from dptune.runfile.window import Window


def ranks(make_facts, sums=((1.5, -2.0), (1.5, -2.1)), rates=(0.1, 0.1), **more):
    made = []
    for rank in (0, 1):
        window = Window("untraced", 3, [9_000_000] * 4, parameter_sums=list(sums[rank]), complete=True)
        optimizer = OptimizerFacts("SGD", "train.py:11", [rates[rank]], parameters=more.get("parameters", 5000))
        own = {k: v for k, v in {"backend": "gloo", "calls_steps": 4, **more}.items() if k != "parameters"}
        made.append(make_facts(rank=rank, optimizers=[optimizer], windows=[window], **own))
    return made


def test_nothing_is_exchanged(ask, make_measured, make_facts):
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
