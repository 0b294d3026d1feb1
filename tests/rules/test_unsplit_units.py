"""One unit of fully_shard that holds most of the model, on runs made by hand."""

import pytest

from dptune.measured import ShardUnits, UnitFigures
from dptune.runfile.communication import FsdpFacts
from dptune.runfile.tensors import TensorFacts


@pytest.fixture
def told(ask, make_measured, make_facts, hand_made):
    def say(unit_bytes, exposed=0.1, waiting=0.0, device="cuda", tensors=None, version=2):
        window_ns = make_measured().account.window_ns
        rows = [
            hand_made.figures(
                UnitFigures,
                unit=unit,
                direction="forward",
                kind="all_gather",
                message_bytes=size,
                calls_per_step=1.0,
                median_ns=9,
                shortest_ns=8,
                hidden_ns=0,
                exposed_ns=int(exposed * window_ns),
                waiting_ns=int(waiting * window_ns),
                neighbour_compute_ns=0,
            )
            for unit, size in unit_bytes.items()
        ]
        whole = {"whole_bytes": sum(unit_bytes.values()), "forward_depth": 0, "backward_depth": 0}
        units = hand_made.figures(ShardUnits, rows=rows, **whole)
        sharded = FsdpFacts(version, units=len(rows), where="train.py:9", names=list(unit_bytes), mesh=[2])
        return ask(
            "DP208", make_measured(shard_units=units, device=device), [make_facts(fsdp=[sharded], tensors=tensors)]
        )

    return say


def test_the_whole_model_in_the_root_unit(told):
    (advice,) = told({"": 800 * 2**20})
    assert advice.title == (
        "The root unit gathers 100 % of the parameters at once, and 10 % of a step is its exposed communication: shard "
        "its blocks separately"
    )
    assert advice.remedy == ""  # no list of equal blocks was found
    assert (advice.impact, advice.saves.high_share) == ("medium", pytest.approx(0.1, rel=1e-3))
    assert [fact.value for fact in advice.evidence if fact.label in ("units", "sharded at")] == [1, "train.py:9"]


def test_the_blocks_that_could_be_units(told):
    (advice,) = told({"": 800 * 2**20}, tensors=TensorFacts(block="Block", block_bytes=[60 * 2**20] * 12))
    assert advice.remedy == (
        "Call `fully_shard` on each `Block` (12 blocks of 60 MiB), then on the model, not on the modules inside."
    )


def test_units_of_fsdp1_are_wrapped_by_a_policy(told):
    """No patch: its line calls FullyShardedDataParallel, not fully_shard."""
    (advice,) = told({"": 800 * 2**20}, tensors=TensorFacts(block="Block", block_bytes=[60 * 2**20] * 12), version=1)
    assert advice.remedy == (
        "Pass `auto_wrap_policy=ModuleWrapPolicy({Block})` to FullyShardedDataParallel (12 units of 60 MiB)."
    )
    assert advice.changes == []
    (without_blocks,) = told({"": 800 * 2**20}, version=1)
    assert without_blocks.remedy == ""


def test_quiet(told):
    assert told({"layers.0": 100, "layers.1": 100}) == []  # half is not more than half
    assert len(told({"layers.0": 101, "layers.1": 100})) == 1
    assert told({"": 100}, exposed=0.01) == []
    assert told({"": 100}, exposed=0.1, waiting=0.09) == []  # it waits for a late rank
    assert told({"": 100}, device="cpu") == []
