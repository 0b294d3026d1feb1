"""How to shard whole blocks, in words: a model of six equal blocks."""

import pytest

from dptune.rule import RunView
from dptune.runfile.tensors import TensorFacts
from dptune.testing import facts_of, measured_run
from dptune_rules.blocks_as_units import shard_blocks

MIB = 2**20


@pytest.mark.parametrize(
    ("block_bytes", "sharded", "words"),
    [
        (3 * MIB, ["Linear"], "Call `fully_shard` on each `Block` (6 of 3 MiB), then on the model"),
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
