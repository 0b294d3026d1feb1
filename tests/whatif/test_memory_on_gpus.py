"""Changed runs on cards: a recording without the change predicts the peak that the one with it measured.

DDP and fully_shard: four encoder layers of 12,609,536 parameters together, AdamW, two ranks on one H200. Batch,
autocast and optimizer: eight blocks between an embedding and a head, 109,162,496 parameters, one rank. The recordings
are older than the record of tensors, so it is written here: parameters and gradients of 4 bytes, and two values of
Adam's for each.
"""

import functools
from dataclasses import replace
from pathlib import Path

import pytest

from dptune.commands.shared.reading import measured_of
from dptune.runfile.tensors import TensorFacts
from dptune.whatif.memory.model import recorded
from dptune.whatif.memory.predicting import predict_memory

SAMPLES = Path(__file__).parents[2] / "sample_traces" / "gpu"
WHOLE = 4 * 12_609_536
BLOCKS = [WHOLE // 4] * 4


def recording(name, shards):
    run, measured = measured_of([str(SAMPLES / name)], 1, cached=False, links=None)
    tensors = TensorFacts(
        parameter_bytes=WHOLE // shards,
        gradient_bytes=WHOLE // shards,
        state_bytes=2 * WHOLE // shards,
        whole_bytes=WHOLE,
        trained_bytes=WHOLE,
        parameter_sizes=[4 * 3 * 1024 * 1024],
        block="TransformerEncoderLayer",
        block_bytes=BLOCKS,
    )
    names = [f"layers.{number}" for number in range(4)]

    def of(fsdp):
        return replace(fsdp, names=names, gathered_bytes=BLOCKS) if fsdp.mesh else fsdp

    return measured, [replace(each, tensors=tensors, fsdp=[*map(of, each.fsdp)]) for each in run.facts.values()]


def peaks(measured):
    return [device.peak_allocated_bytes for device in measured.memory]


@pytest.fixture(scope="module")
def replicated():
    return recording("ranks-nccl-ddp", 1)


@pytest.fixture(scope="module")
def sharded():
    return recording("ranks-nccl-fsdp", 2)


def test_components_add_up_to_the_peak_that_the_allocator_counted(replicated, sharded):
    for measured, facts in (replicated, sharded):
        assert recorded(measured, facts).peak == pytest.approx(peaks(measured)[0], abs=2**20)


def test_what_both_wrappers_hold_besides_is_the_same(replicated, sharded):
    others = [recorded(*each).others for each in (replicated, sharded)]
    assert others[0] == pytest.approx(others[1], abs=4 * 2**20)


@pytest.mark.parametrize("wrapper", ["fsdp", "ddp"])
def test_each_predicts_the_other(replicated, sharded, wrapper):
    before, after = (replicated, sharded) if wrapper == "fsdp" else (sharded, replicated)
    predicted = predict_memory(*before, {"wrapper": wrapper})
    counted = peaks(after[0])[0]
    assert predicted.low_bytes <= counted <= predicted.high_bytes
    assert predicted.peak_bytes == pytest.approx(counted, rel=0.005)


WIDTH, WORDS = 1024, 4096  # tests/gpu/scripts/train.py
BLOCK = 4 * (12 * WIDTH**2 + 13 * WIDTH)
TRAINED = 8 * BLOCK + 4 * (2 * WORDS * WIDTH + WORDS)
AUTOCAST, SMALL, FP32, FOREACH = (
    *("planted-starved-loader", "planted-item-in-every-layer"),  # bf16 autocast, batches of 32 and 4
    *("planted-fp32-without-TF32", "predict-base"),  # fp32, batches of 32, and of 16 with foreach
)


@functools.cache
def of_one_rank(name):
    run, measured = measured_of([str(SAMPLES / name)], 1, cached=False, links=None)
    tensors = TensorFacts(
        parameter_bytes=TRAINED,
        state_bytes=2 * TRAINED,
        whole_bytes=TRAINED,
        trained_bytes=TRAINED,
        parameter_sizes=[4 * WORDS * WIDTH],
        block="Block",
        block_bytes=[BLOCK] * 8,
    )
    assert sum(optimizer.parameters for optimizer in run.facts[0].optimizers) == TRAINED // 4
    return measured, [replace(each, tensors=tensors) for each in run.facts.values()]


@pytest.mark.long
@pytest.mark.parametrize(
    ("before", "changes", "after"),
    [
        (AUTOCAST, {"loader.batch_size": 4}, SMALL),
        (SMALL, {"loader.batch_size": 32}, AUTOCAST),
        (FP32, {"precision.autocast": "bf16"}, AUTOCAST),
        (FP32, {"loader.batch_size": 4, "precision.autocast": "bf16"}, SMALL),
        pytest.param(FP32, {"loader.batch_size": 16, "optimizer.foreach": True}, FOREACH, marks=pytest.mark.thorough),
        pytest.param(FOREACH, {"loader.batch_size": 32, "optimizer.fused": True}, FP32, marks=pytest.mark.thorough),
        pytest.param(
            FOREACH,
            {"loader.batch_size": 32, "optimizer.fused": True, "precision.autocast": "bf16"},
            AUTOCAST,
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_batch_autocast_and_optimizer(before, changes, after):
    """Copies of weights that autocast saves do not grow with the batch: of 4 samples they are two in five bytes."""
    counted = peaks(of_one_rank(after)[0])[0]
    predicted = predict_memory(*of_one_rank(before), changes)
    assert predicted.now_bytes == pytest.approx(peaks(of_one_rank(before)[0])[0], abs=2**20)
    assert predicted.low_bytes <= counted <= predicted.high_bytes
    assert predicted.peak_bytes == pytest.approx(counted, rel=0.05)
