import pytest

from dptune.measured import Missing
from dptune.runfile.communication import CallFacts, DdpFacts
from dptune.runfile.unaveraged import UnaveragedFacts


def ranks(make_facts, *sums, sent_bytes=0, step=40, **more):
    """10 steps, in each of which an all-reduce of the script may send something."""
    calls = [CallFacts("all_reduce", "train.py:50", [0, 1], 10, sent_bytes=10 * sent_bytes)]
    return [
        make_facts(
            rank=rank,
            ddp=[DdpFacts("Net")],
            calls=calls,
            calls_steps=10,
            unaveraged=[
                UnaveragedFacts(
                    "Net", "train.py:7", 3, 100, 400, ["a", "b"], "begin (train.py:30)", own, step + rank * at
                )
            ],
            **more,
        )
        for rank, (own, at) in enumerate(sums)
    ]


def test_layers_that_were_unfrozen_later(ask, make_measured, make_facts):
    (advice,) = ask("DP112", make_measured(), ranks(make_facts, ([1.0, -2.0], 0), ([1.0, -2.5], 0)))
    assert advice.title == (
        "DDP (train.py:7) does not average the gradients of 3 tensors of `Net` unfrozen later in begin (train.py:30): "
        "wrap the model again"
    )
    assert (advice.kind, advice.impact, advice.confidence, advice.saves) == ("risk", "high", "high", None)
    assert advice.evidence[-1].value == "differ between ranks"


def test_where_ranks_were_not_compared_at_the_same_step(ask, make_measured, make_facts):
    (advice,) = ask("DP112", make_measured(), ranks(make_facts, ([1.0], 0), ([1.0], 1)))
    assert advice.confidence == "medium"
    assert "differ" not in str(advice.evidence)


def test_where_the_line_is_not_known(ask, make_measured, make_facts):
    facts = ranks(make_facts, ([], 0), ([], 0))
    facts[0].unaveraged[0].unfrozen_where = None
    (advice,) = ask("DP112", make_measured(), facts)
    assert "tensors of `Net` unfrozen or added later: wrap the model again" in advice.title


def test_quiet(ask, make_measured, make_facts):
    alike = ([1.0, -2.0], 0)
    assert ask("DP112", make_measured(), ranks(make_facts, alike, alike)) == []  # averaged in another way
    assert ask("DP112", make_measured(), ranks(make_facts, ([], 0), ([], 0), sent_bytes=400)) == []
    assert ask("DP112", make_measured(), ranks(make_facts, ([1.0], 0), ([2.0], 0), engine="deepspeed")) == []
    assert ask("DP112", make_measured(), [make_facts(), make_facts(rank=1)]) == []


def test_traces_alone_do_not_say(ask, make_measured):
    with pytest.raises(Missing):
        ask("DP112", make_measured(), [])
