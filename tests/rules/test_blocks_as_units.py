"""How to shard whole blocks, in words: a model of six equal blocks."""

import pytest

from dptune.rule import RunView
from dptune.runfile.communication import FsdpFacts
from dptune.runfile.tensors import TensorFacts
from dptune.testing import facts_of, measured_run
from dptune_rules.blocks_as_units import shard_blocks, units_of_blocks

MIB = 2**20


@pytest.mark.parametrize(
    ("block_bytes", "sharded", "words"),
    [
        (3 * MIB, ["Linear"], "Call `fully_shard` on each `Block` (6 blocks of 3 MiB), then on the model"),
        (3 * MIB, ["Block", "Net"], ""),  # they are units already
        (MIB // 3, ["Linear"], "Pass 4 blocks to each call, `fully_shard([...])`: a `Block` has 0.333 MiB"),
        (MIB // 100, ["Block"], "Pass 6 blocks to each call"),  # all that there are
    ],
)
def test_what_to_write(block_bytes, sharded, words):
    facts = facts_of(tensors=TensorFacts(block="Block", block_bytes=[block_bytes] * 6))
    said = shard_blocks(RunView(measured_run(), [facts]), sharded, 1.0)
    assert said.startswith(words)
    assert bool(said) == bool(words)


def test_nothing_of_a_model_without_blocks():
    assert shard_blocks(RunView(measured_run(), [facts_of(tensors=TensorFacts())]), [], 1.0) == ""
    assert shard_blocks(RunView(measured_run(), []), [], 1.0) == ""


@pytest.mark.parametrize(
    ("block_bytes", "units", "change"),
    [
        (3 * MIB, FsdpFacts(2, units=12, modules=["Linear"]), (None, 1)),
        (3 * MIB, FsdpFacts(2, units=6, modules=["Block"]), None),
        (MIB // 4, FsdpFacts(2, units=6, modules=["Block"]), (1, 4)),
        (MIB // 4, FsdpFacts(2, units=3, modules=["Block", "Block"]), (2, 4)),
        (MIB // 2, FsdpFacts(2, units=3, modules=["Block", "Block"]), None),  # they have 1 MiB already
        (MIB // 4, FsdpFacts(2, units=18, modules=["Linear", "Block"]), (1, 4)),
    ],
)
def test_the_same_as_a_change_of_the_script(block_bytes, units, change):
    facts = facts_of(tensors=TensorFacts(block="Block", block_bytes=[block_bytes] * 6), fsdp=[units])
    view = RunView(measured_run(), [facts])
    found = units_of_blocks(view, units.modules, 1.0, "train.py:9")
    assert [(each.now, each.then, each.block, str(each.at)) for each in found] == (
        [(*change, "Block", "train.py:9")] if change else []
    )
    assert units_of_blocks(view, units.modules, 1.0, None) == []
