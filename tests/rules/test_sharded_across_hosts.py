import pytest

from dptune.measured import Missing
from dptune.runfile.communication import FsdpFacts

ROWS = ("all_gather", "forward", 0.2, "sharding"), ("all_gather", "backward", 0.18, "sharding")  # of two of four ranks


@pytest.fixture
def found(ask, make_measured, make_facts, hand_made):
    def of(hosts="aabb", mesh=(4,), rows=ROWS, ranks=4, predictor=None):
        sharded = FsdpFacts(2, units=5, where="train.py:9", modules=["Block"], mesh=[*mesh])
        facts = [make_facts(rank=rank, host=host, fsdp=[sharded]) for rank, host in enumerate(hosts)]
        return ask("DP211", make_measured(overlap=hand_made.overlap(*rows), world=ranks), facts, predictor=predictor)

    return of


def test_gathers_that_could_stay_within_hosts(found):
    (advice,) = found()
    assert advice.title == (
        "All-gathers across 2 hosts take 19 % of a step (train.py:9): shard within each host of 2 ranks, and replicate "
        "across hosts"
    )
    assert (advice.impact, advice.confidence, advice.saves.basis) == ("high", "low", "bound")
    assert advice.remedy == (
        'Create `mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("replicate", "shard"))` and pass `mesh=mesh` '
        "to each `fully_shard`."
    )
    (change,) = advice.changes
    assert (change.knob, str(change.at), change.snippet) == (
        "fsdp.within_hosts",
        "train.py:9",
        'mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("replicate", "shard"))',
    )
    assert advice.watch.startswith("Each rank then holds 2 times the parameters")


def test_a_replay_predicts_the_saving(found, predict):
    """It leaves 80 % of the step; where it leaves all, nothing is proposed."""
    (advice,) = found(predictor=predict("fsdp.within_hosts", {True: 0.8}))
    assert (advice.saves.basis, advice.saves.predicted_share) == ("replayed", pytest.approx(0.2))
    assert found(predictor=predict("fsdp.within_hosts", {True: 1.0})) == []


@pytest.mark.parametrize(
    "more",
    [
        {"hosts": "aaaa"},
        {"hosts": "abcd"},  # one rank on each: there is nothing to keep inside
        {"hosts": "aaab"},
        {"mesh": (2, 2)},
        {"mesh": (2,)},
        {"rows": [("all_gather", "forward", 0.04, "sharding")]},
        {"rows": [("all_gather", "forward", 0.4, "other")]},
    ],
)
def test_quiet(found, more):
    assert found(**more) == []


def test_all_hosts_must_be_known(found):
    with pytest.raises(Missing, match="not all ranks were recorded"):
        found(hosts="aab")
