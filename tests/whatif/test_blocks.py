"""Blocks of a model in each unit of fully_shard, as a number of units."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dptune.measured import Missing
from dptune.runfile.communication import FsdpFacts
from dptune.runfile.facts import Facts
from dptune.runfile.tensors import TensorFacts
from dptune.whatif.blocks import UNKNOWN, as_units
from dptune.whatif.memory.predicting import predict_memory

from .. import reading  # noqa: TID252 - tests are no installed package

SAMPLE = Path(__file__).parents[2] / "sample_traces" / "gpu" / "ranks-nccl-fsdp"
BLOCKS = FsdpFacts(2, units=3, modules=["Block"], mesh=[4])
ROOT = FsdpFacts(2, units=1, modules=["Model"], mesh=[4], root=True)
FACTS = replace(
    Facts(rank=0), fsdp=[BLOCKS, ROOT], tensors=TensorFacts(block="Block", block_bytes=[8] * 6, whole_bytes=48)
)


@pytest.mark.parametrize(("blocks", "units"), [(1, 7), (2, 4), (4, 3), (6, 2), (9, 2)])
def test_blocks_make_units_beside_the_root(blocks: int, units: int) -> None:
    assert as_units({"host.times": 0.5, "fsdp.blocks_per_unit": blocks}, [FACTS]) == {
        "host.times": 0.5,
        "fsdp.units": units,
    }
    assert as_units({"fsdp.units": 5}, []) == {"fsdp.units": 5}
    empty = replace(FACTS, fsdp=[BLOCKS, replace(ROOT, mesh=[])])
    assert as_units({"fsdp.blocks_per_unit": blocks}, [empty]) == {"fsdp.units": units - 1}


@pytest.mark.parametrize(
    ("facts", "more", "why"),
    [
        ([], {}, UNKNOWN),
        ([replace(FACTS, tensors=None)], {}, UNKNOWN),
        ([replace(FACTS, fsdp=[ROOT])], {}, UNKNOWN),
        ([replace(FACTS, fsdp=[replace(BLOCKS, version=1), ROOT])], {}, UNKNOWN),
        ([FACTS], {"fsdp.units": 2}, "set either"),
    ],
)
def test_what_does_not_tell_how_many_units(facts: list[Facts], more: dict[str, int], why: str) -> None:
    with pytest.raises(Missing, match=why):
        as_units({"fsdp.blocks_per_unit": 2, **more}, facts)


@pytest.mark.long
@pytest.mark.parametrize(
    ("blocks", "units"), [(1, 4), *(pytest.param(*each, marks=pytest.mark.thorough) for each in ((2, 2), (4, 1)))]
)
def test_steps_and_memory_with_blocks_are_those_with_units(blocks: int, units: int) -> None:
    """Four layers, of which each is a unit; this recording does not name the blocks of its model."""
    model = reading.modelled(SAMPLE)
    assert model.lack({"fsdp.blocks_per_unit": 2}) == UNKNOWN
    named = TensorFacts(block=model.facts[0].fsdp[0].modules[0], block_bytes=[8] * 4)
    model = replace(model, facts=[replace(facts, tensors=named) for facts in model.facts])
    asked, same = model.predict({"fsdp.blocks_per_unit": blocks}), model.predict({"fsdp.units": units})
    assert asked.changes == {"fsdp.blocks_per_unit": blocks}
    assert (asked.step_ns, asked.low_ns, asked.high_ns) == (same.step_ns, same.low_ns, same.high_ns)
    memory = [
        predict_memory(model.measured, model.facts, changes)
        for changes in ({"fsdp.blocks_per_unit": blocks}, {"fsdp.units": units})
    ]
    assert memory[0].known("peak_bytes") == memory[1].known("peak_bytes")
    assert not model.lack({"fsdp.blocks_per_unit": 2})
    assert model.predict({"fsdp.blocks_per_unit": 2, "fsdp.units": 2}).missing["step_ns"].startswith("set either")
