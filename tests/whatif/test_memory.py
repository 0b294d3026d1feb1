"""Memory after a change, by hand: a rank of two, with 100 bytes of parameters and Adam."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dptune.commands.shared.reading import measured_of
from dptune.commands.shared.setting import parsed
from dptune.knobs import Value
from dptune.measured import BlockMemory, CpuPrimitives, MemoryMoment, Missing, TensorMemory
from dptune.predicted import WhatIf
from dptune.present.sections.whatif_memory import memory, sentence
from dptune.runfile.communication import DdpFacts, FsdpFacts
from dptune.runfile.facts import CheckpointingFacts, DeviceFacts, Facts, OptimizerFacts
from dptune.runfile.loader import LoaderFacts
from dptune.runfile.tensors import TensorFacts
from dptune.testing import facts_of, measured_run
from dptune.whatif.memory.changes import changed
from dptune.whatif.memory.model import MemoryModel, Moment, Sharding, recorded
from dptune.whatif.memory.predicting import predict_memory
from dptune.whatif.scenarios import named

NOTHING = dict.fromkeys(
    (
        "activation_bytes",
        "temporary_bytes",
        "weight_bytes",
        "gradient_bytes",
        "optimizer_bytes",
        "sharding_bytes",
        "carried_bytes",
    ),
    0,
)
TENSORS = TensorFacts(
    parameter_bytes=100,
    gradient_bytes=100,
    state_bytes=200,
    other_bytes=40,
    whole_bytes=100,
    trained_bytes=100,
    trained_tensors=4,
    parameter_sizes=[30],
    block="Block",
    block_bytes=[40, 40],
)
DDP = DdpFacts("Net", gradient_bytes=100, gradient_as_bucket_view=False)


def moment(phase: str, **sizes: int) -> MemoryMoment:
    return MemoryMoment(phase=phase, **{**NOTHING, **{f"{name}_bytes": size for name, size in sizes.items()}})


START = moment("backward", activation=400, temporary=50, carried=-110)  # 10 of them are the last batch
LATER = moment("backward", activation=200, temporary=50, gradient=50, carried=-110)
END = moment("optimizer", activation=10, gradient=100, optimizer=60, carried=-110)


@pytest.fixture
def recording() -> Any:
    def of(
        tensors: TensorFacts | None = TENSORS, available: int | None = 10_000, **more: Any
    ) -> tuple[Any, list[Facts]]:
        steps = TensorMemory.only(
            "not known",
            rank=0,
            device="cpu",
            window="detailed",
            step=7,
            moments=[START, LATER, END],
            blocks=[BlockMemory(saved_bytes=150, output_bytes=20)] * 2,
            loss_bytes=30,
        )
        known = {
            "tensors": tensors,
            "ddp": [DDP],
            "loaders": [LoaderFacts(batch_size=8, batches_drawn=5)],
            "optimizers": [OptimizerFacts("AdamW")],
            "device": DeviceFacts("cpu", available_bytes=available),
            "world_size": 2,
            "backend": "gloo",
            **more,
        }
        return measured_run(device="cpu", world=2, tensor_memory=steps), [facts_of(rank=n, **known) for n in (0, 1)]

    return of


@pytest.fixture
def model(recording: Any) -> MemoryModel:
    return recorded(*recording())


def test_the_recorded_peak(model):
    """100 parameters, 200 of the optimizer, 100 in buckets, 30 others: the batch of before is an activation."""
    assert (model.held, model.others, model.buckets) == (430, 30, 100)
    assert [each.total for each in model.moments] == [450, 300, 170]
    assert (model.peak, model.fullest.phase) == (880, "backward")
    assert [each.gradients for each in model.moments] == [0, 50, 100]
    assert [each.passed_share for each in model.moments] == [0, 0.5, 0]


def test_activations_grow_with_the_batch(model):
    assert changed(model, {"loader.batch_size": 16}).peak == 430 + 900
    assert changed(model, {"loader.batch_size": 2}).peak == pytest.approx(430 + max(450 / 4, 50 + 250 / 4, 162.5))
    with pytest.raises(Missing, match="batch size was not recorded"):
        changed(replace(model, batch=None), {"loader.batch_size": 16})


def test_another_optimizer_keeps_other_state(model):
    assert changed(model, {"optimizer.name": "sgd"}).peak == 880 - 200
    assert changed(model, {"optimizer.name": "sgd_momentum"}).peak == 880 - 100
    assert max(each.optimizer for each in changed(model, {"optimizer.name": "adam"}).moments) == 60  # 2 x the largest


def test_sharding_replaces_whole_parameters_by_gathered_units(model):
    """Units of 40 and 40 and a root of 20, which stays gathered: half of parameters, state and gradients is left."""
    after = changed(model, {"wrapper": "fsdp"})
    assert (after.parameters, after.state, after.buckets) == (50, 100, 0)
    start, later, end, last = after.moments
    assert (start.sharding, later.sharding) == (20, 2 * 20 + 2 * 40 + 30)  # two gathers, and gradients so far: 50 - 20
    assert (later.gradients, end.sharding) == (25 - 20 / 2, 0)  # the root's are among what is held whole
    assert last.sharding == 3 * 20  # gradients of the root, and both buffers of a reduce-scatter of gloo
    assert after.peak == 180 + 470
    kept = changed(model, {"wrapper": "fsdp", "fsdp.reshard_after_forward": False})
    assert kept.moments[0].sharding == 20 + 80


def test_what_is_not_known_of_a_change_is_said(model):
    for name, value, why in (
        ("cudnn.benchmark", True, "the effect of cudnn.benchmark on memory is not known"),
        ("fsdp.reshard_after_forward", False, "not sharded by fully_shard"),
    ):
        with pytest.raises(Missing, match=why):
            changed(model, {name: value})
    with pytest.raises(Missing, match="no list of equal blocks"):
        changed(replace(model, split=None, why_no_split="no list of equal blocks"), {"wrapper": "fsdp"})


def test_checkpoints_keep_outputs_and_one_block(model):
    """Blocks save 300 of the 400, of which 40 are outputs; one saves 130 again, when the 30 of the loss are freed."""
    after = changed(model, {"memory.checkpointing": True})
    assert after.moments[0].activations == 400 - 260 + 130 - 30
    assert after.moments[1].activations == pytest.approx(200 - 190 * 260 / 300 + 130)  # 10 are the last batch
    off = changed(replace(model, discarded=500), {"memory.checkpointing": False})
    assert [each.activations for each in off.moments[:2]] == [900, 450]


def test_narrow_parameters_leave_the_loss_as_wide(model):
    after = changed(model, {"model.dtype": "bf16"})
    assert after.held == 230
    assert after.moments[0].activations == 190 + 20  # 10 of the 30 are kept by the script: outputs of the model
    assert (after.doubt, after.loss) == (pytest.approx(0.5 * (30 + 40)), 25)


def test_autocast_keeps_16_bit_copies_of_weights_until_their_backward_pass(model):
    """380 of the first moment are not in fp32 for the loss: 209 are left, with 50 of copies; then half of these."""
    after = changed(model, {"precision.autocast": "bf16"})
    assert [each.activations for each in after.moments] == pytest.approx([209 + 20 + 50, 110 + 25, 5.5])
    assert (after.held, after.doubt) == (model.held, pytest.approx(15 + 40 + 30))
    assert changed(after, {"precision.autocast": "fp16"}) == after
    with pytest.raises(Missing, match="covers turning autocast on, not off"):
        changed(after, {"precision.autocast": "off"})


def test_autocast_copies_no_weight_before_its_layer_runs(model):
    """As a step starts the gradients of the last one are alive, and no copy; a quarter through there are 12.5 bytes."""
    start, quarter = Moment("forward", gradients=100), Moment("forward", activations=100, gradients=100)
    after = changed(replace(model, moments=(*model.moments, start, quarter)), {"precision.autocast": "bf16"})
    assert [each.activations for each in after.moments[-2:]] == pytest.approx([0, 0.55 * 100 + 12.5])


def test_updates_at_once_take_roots_of_all_second_moments(model):
    """Of 100 bytes with Adam; momentum adds in place, and with weight decay perhaps all gradients."""
    assert [each.optimizer for each in changed(model, {"optimizer.foreach": True}).moments] == [0, 0, 100]
    assert [each.optimizer for each in changed(model, {"optimizer.fused": True}).moments] == [0, 0, 0]
    for settings in ({"optimizer.foreach": False}, {"optimizer.fused": False}):  # of a CPU: one after the other
        assert changed(model, settings).moments[2].optimizer == 60
    momentum = changed(model, {"optimizer.foreach": True, "optimizer.name": "sgd_momentum"})
    assert (momentum.moments[2].optimizer, momentum.doubt) == (0, 50)
    sharded = changed(model, {"wrapper": "fsdp", "optimizer.foreach": True})
    assert sharded.moments[2].optimizer == 50
    with pytest.raises(Missing, match="depends on the device"):
        changed(model, {"optimizer.foreach": None})


def test_gradients_as_views_of_buckets(model):
    after = changed(model, {"ddp.gradient_as_bucket_view": True})
    assert ([each.gradients for each in after.moments], after.buckets) == ([0, 0, 0], 100)
    assert changed(replace(model, buckets=0), {"ddp.gradient_as_bucket_view": False}).buckets == 100


def test_checkpoints_are_of_blocks_as_recorded_whatever_is_set_first(model):
    both: dict[str, Value] = {"memory.checkpointing": True, "batch.times": 2.0}
    assert changed(model, both) == changed(model, dict(reversed(both.items())))
    assert changed(model, both).moments[0].activations == 2 * (400 - 260 + 130 - 30)


def test_outputs_that_the_script_keeps_are_of_no_block(model):
    """Of the 200, 60 are alive in the optimizer's step, too: blocks save 140."""
    *before, last = model.moments
    kept = replace(model, moments=(*before, replace(last, phase="optimizer", activations=60)))
    after = changed(kept, {"memory.checkpointing": True})
    assert after.moments[1].activations == pytest.approx(200 - 140 * 260 / 300 + 130)


@pytest.fixture
def units(recording) -> MemoryModel:
    """A root of 20 and units of 40, of two ranks, whose recorded moments hold 90 and 60 of them."""
    fsdp = FsdpFacts(2, names=["", "a", "b"], gathered_bytes=[20, 40, 40], mesh=[2], reshard_after_forward=True)
    model = recorded(*recording(ddp=[], fsdp=[fsdp]))
    start, later, end = model.moments
    return replace(
        model, moments=(replace(start, sharding=90.0), replace(later, sharding=60.0, passed_share=0.75), end)
    )


def test_gathered_dtype_leaves_shards_and_state_as_wide(units):
    after = changed(units, {"fsdp.param_dtype": "bf16"})
    assert (after.held, after.sharding.units, after.sharding.root) == (units.held, (20.0, 20.0), 10.0)
    assert [each.sharding for each in after.moments] == pytest.approx([45, 30, 0])
    assert after.moments[0].activations == 190 + 20  # the loss stays as wide
    assert [each.gradients for each in after.moments] == [each.gradients for each in units.moments]
    assert changed(after, {"fsdp.param_dtype": "fp32"}).sharding == units.sharding


def test_replicas_of_units_in_16_bits_compute_in_fp32(units):
    """DistributedDataParallel knows no param_dtype: activations are as wide as those of units in fp32."""
    narrow = changed(units, {"fsdp.param_dtype": "bf16"})
    wide, whole = (changed(model, {"wrapper": "ddp"}) for model in (narrow, units))
    assert [each.activations for each in wide.moments] == pytest.approx([each.activations for each in whole.moments])
    assert (wide.held, wide.doubt > whole.doubt) == (whole.held, True)


def test_buffers_of_reductions_in_16_bits(units):
    """Of gloo a unit, its gradients and the last buffer, which is half as large: 2.5 units, not 3; of the root 2."""
    after = changed(units, {"fsdp.reduce_dtype": "bf16"})
    before, then = units.sharding.held(units.moments[1]), after.sharding.held(units.moments[1])
    assert (before, then) == (2 * 20 + 3 * 40, 2 * 20 + 2.5 * 40)
    assert after.moments[1].sharding == pytest.approx(60 * then / before)
    assert (units.sharding.at_end(), after.sharding.at_end()) == (60, 40)
    wide = changed(units, {"fsdp.param_dtype": "bf16", "fsdp.reduce_dtype": "fp32"}).sharding
    assert wide.held(units.moments[1]) == 2 * 10 + 5 * 20  # gradients, and 2 buffers twice as wide


def test_units_resharded_to_groups_of_ranks(units):
    """In groups of four of eight ranks a quarter of the units stays."""
    units = replace(units, sharding=replace(units.sharding, ranks=8))
    after = changed(units, {"fsdp.reshard_after_forward": 4})
    assert after.sharding.group == 4
    assert after.sharding.held(Moment("forward")) == 20 + 80 + 20
    assert after.moments[1].sharding == 60 + 20 * 0.25
    with pytest.raises(Missing, match="rejects 3: it must divide the number of ranks"):
        changed(units, {"fsdp.reshard_after_forward": 3})


def test_gradients_that_wait_for_the_last_micro_batch_are_whole(units):
    after = changed(units, {"fsdp.no_sync": True})
    assert [each.sharding for each in after.moments] == pytest.approx([90 + 100, 60 + 25, 0])
    with pytest.raises(Missing, match=r"covers turning fsdp\.no_sync on, not off"):
        changed(units, {"fsdp.no_sync": False})


def test_offloaded_shards_are_in_the_hosts_memory(units):
    with pytest.raises(Missing, match="computes on CPUs"):
        changed(units, {"fsdp.offload_policy": True})
    after = changed(replace(units, on_cpu=False), {"fsdp.offload_policy": True, "optimizer.name": "adam"})
    assert (after.parameters, after.state, after.held) == (0, 0, units.buffers + units.others)
    assert {(each.gradients, each.optimizer) for each in after.moments} == {(0, 0)}
    assert [each.sharding for each in after.moments] == [90, 60, 0]
    for settings, why in (
        ({"fsdp.offload_policy": False}, "covers turning offloading on, not off"),
        ({"wrapper": "ddp"}, "not recorded"),
    ):
        with pytest.raises(Missing, match=why):
            changed(after, settings)


def test_units_of_a_sharded_run(recording):
    """What is recorded of moments stays: other units add the difference of the formulas."""
    units = FsdpFacts(2, names=["", "a", "b"], gathered_bytes=[20, 40, 40], mesh=[2], reshard_after_forward=True)
    model = recorded(*recording(ddp=[], fsdp=[units]))
    assert model.sharding == Sharding(2, 20.0, (40.0, 40.0), True, True, True)
    merged = changed(model, {"fsdp.units": 1})
    assert merged.sharding is not None
    assert merged.sharding.units == (80.0,)
    assert merged.moments[1].sharding == 3 * 80 - 3 * 40  # gradients and two buffers of the unit that runs last
    assert merged.doubt == 2 * (80 - 40)  # the next gather, and the buffer of a unit as large
    split = changed(model, {"fsdp.units": 8})
    assert split.sharding is not None
    assert split.sharding.units == (10.0,) * 8
    whole = changed(model, {"wrapper": "ddp"})
    assert (whole.parameters, whole.state, whole.buckets, whole.moments[1].gradients) == (100, 400, 100, 100)
    assert changed(model, {"world_size": 4}).state == 100
    ahead = changed(model, {"fsdp.backward_prefetch": 3})
    assert ahead.moments[0].sharding - model.moments[0].sharding == 80


def test_the_root_is_one_of_the_units(recording):
    """As in steps, and as blocks per unit make them: a root with parameters and one unit of both blocks are two."""
    blocks = FsdpFacts(2, units=2, names=["a", "b"], gathered_bytes=[40, 40], mesh=[2], modules=["Block"])
    root = FsdpFacts(2, units=1, names=[""], gathered_bytes=[20], mesh=[2], modules=["Net"], root=True)
    measured, facts = recording(ddp=[], fsdp=[blocks, root])
    named = replace(facts[0].tensors, block="Block", block_bytes=[40, 40])
    facts = [replace(each, tensors=named) for each in facts]
    of_blocks, of_units, kept = (
        predict_memory(measured, facts, {name: value}).high_bytes
        for name, value in (("fsdp.blocks_per_unit", 2), ("fsdp.units", 2), ("fsdp.units", 3))
    )
    model = recorded(measured, facts)
    assert of_blocks == of_units == model.peak + 2 * 40  # what the units that are held while it runs may be off by
    assert kept == pytest.approx(model.peak, rel=0.011)


def test_shards_within_hosts(recording):
    """Of four ranks two are on each host: half of everything is on a rank, not a quarter."""
    measured, (first, second) = recording(world_size=4)
    facts = [replace(first, rank=rank, host=host) for rank, host in enumerate("aabb")]
    model = recorded(measured.model_copy(update={"world_size": 4}), facts)
    assert changed(model, {"wrapper": "fsdp"}).state == 50
    assert changed(model, {"wrapper": "fsdp", "fsdp.within_hosts": True}).state == 100
    assert changed(changed(model, {"wrapper": "fsdp"}), {"fsdp.within_hosts": True}).state == 100
    with pytest.raises(Missing, match="several hosts"):
        changed(recorded(measured, [first, second]), {"wrapper": "fsdp", "fsdp.within_hosts": True})


def test_the_root_unit_that_reshards_is_not_held_as_the_backward_pass_starts():
    start = Moment("backward")
    assert Sharding(2, 20.0, (40.0,)).held(start) == 20
    assert Sharding(2, 20.0, (40.0,), root_reshards=True).held(start) == 0
    assert Sharding(2, 20.0, (40.0,)).held(Moment("forward")) == 20 + 80
    assert Sharding(2, 20.0, (40.0,)).held(Moment("backward", passed_share=0.1)) == 40  # the root and its gradients
    running = Moment("backward", passed_share=0.5)  # 30 of 60: the root's, and 10 of the unit's
    assert Sharding(2, 20.0, (40.0,)).held(running) == 2 * 20 + 2 * 40
    assert Sharding(2, 20.0, (40.0,)).held(running, so_far=True) == 2 * 20 + 40 + 10


@pytest.mark.parametrize(("passed", "worst", "now"), [(0.1, 180, 80), (0.5, 180, 180), (0.8, 110, 110)])
def test_what_each_unit_of_a_backward_pass_holds(passed, worst, now):
    """Units of 30, 50 and 20 over gloo, the last one first.

    20 holds the gather of 50 and, as it reduces, 3 times itself: 110; before, itself and its gradients so far. 50
    holds the gather of 30 and 3 times itself: 180. 30 gathers no next one: twice itself, and the buffer of 50.
    """
    sharding, running = Sharding(2, 0.0, (30.0, 50.0, 20.0), copies=True), Moment("backward", passed_share=passed)
    assert sharding.held(running) == worst
    assert sharding.held(running, so_far=True) == now


def test_a_copy_that_another_thread_frees_widens_the_interval(recording):
    """Of the 90 that units hold at the peak 30 are copies of gloo: the trace does not show when they are freed."""
    measured, facts = recording(ddp=[], fsdp=[FsdpFacts(2, names=["", "a"], gathered_bytes=[20, 80], mesh=[2])])
    first, *others = measured.tensor_memory.moments

    def off(changes: dict[str, Value], **sizes: int) -> tuple[float, float]:
        moments = [first.model_copy(update={"sharding_bytes": 90, **sizes}), *others]
        steps = measured.tensor_memory.model_copy(update={"moments": moments})
        found = predict_memory(measured.model_copy(update={"tensor_memory": steps}), facts, changes)
        return found.peak_bytes - found.low_bytes, found.high_bytes - found.peak_bytes

    assert off({}) == (0, 0)
    assert off({}, unseen_bytes=30) == (30, 30)
    assert off({"fsdp.param_dtype": "bf16"}, unseen_bytes=30)[1] - off({"fsdp.param_dtype": "bf16"})[1] == 15
    assert off({"wrapper": "ddp"}, unseen_bytes=30) == off({"wrapper": "ddp"})


KIB = 1024
OF_MODEL = CpuPrimitives(products=10, convolutions=4)


@pytest.fixture
def computing(recording: Any) -> Any:
    """A recording of a CPU with instructions for bf16, and the different products and convolutions that it computes."""

    def of(counted: CpuPrimitives, *instructions: str, **more: Any) -> tuple[Any, list[Facts]]:
        measured, facts = recording(
            device=DeviceFacts("cpu", available_bytes=10_000, instructions=[*instructions]), **more
        )
        steps = measured.tensor_memory.model_copy(update={"primitives": counted})
        return measured.model_copy(update={"tensor_memory": steps}), facts

    return of


@pytest.mark.parametrize("changes", [{"model.dtype": "bf16"}, {"precision.autocast": "bf16"}])
def test_each_product_in_16_bits_has_a_primitive_of_its_own(recording, computing, changes):
    """530 KiB for each of 10 products; 120 for each of 4 convolutions, 70 before."""
    found, plain = (
        predict_memory(*of, changes) for of in (computing(OF_MODEL, "amx_bf16", "avx512_bf16"), recording())
    )
    assert found.now_bytes - plain.now_bytes == 4 * 70 * KIB
    assert found.peak_bytes - plain.peak_bytes == (10 * 530 + 4 * 120) * KIB
    (part,) = [part for part in found.components if "oneDNN" in part.name]
    assert (part.now_bytes, part.then_bytes) == (4 * 70 * KIB, (10 * 530 + 4 * 120) * KIB)


def test_units_gathered_in_16_bits_multiply_in_16_bits(computing):
    fsdp = FsdpFacts(2, names=["", "a"], gathered_bytes=[20, 80], mesh=[2])
    measured, facts = computing(OF_MODEL, "amx_bf16", ddp=[], fsdp=[fsdp])
    model = recorded(measured, facts)
    narrow = changed(model, {"fsdp.param_dtype": "bf16"})
    assert narrow.primitives.bytes == (10 * 530 + 4 * 120) * KIB
    assert changed(narrow, {"wrapper": "ddp"}).primitives.bytes == model.primitives.bytes == 4 * 70 * KIB


def test_a_run_that_computes_in_16_bits_has_its_primitives_now(computing):
    half = CpuPrimitives(products=10, half_products=10, convolutions=4, half_convolutions=4)
    measured, facts = computing(half, "amx_bf16")
    found = predict_memory(measured, facts, {"loader.batch_size": 16})
    of_primitives = (10 * 530 + 4 * 120) * KIB
    assert found.now_bytes == 880 + of_primitives
    assert found.peak_bytes == 1330 + of_primitives
    assert found.high_bytes - found.peak_bytes > 0.14 * of_primitives


def test_without_instructions_for_the_type_primitives_are_in_the_interval(computing):
    """oneDNN keeps smaller descriptors then: fp16 on a CPU that has instructions for bf16 only."""
    measured, facts = computing(OF_MODEL, "amx_bf16")
    fast, slow = (predict_memory(measured, facts, {"model.dtype": dtype}) for dtype in ("bf16", "fp16"))
    assert fast.peak_bytes - slow.peak_bytes == 10 * 530 * KIB
    assert slow.high_bytes - slow.peak_bytes > 10 * 530 * KIB


@pytest.mark.parametrize(("available", "fits"), [(10_000, "yes"), (1800, "unknown"), (300, "no"), (None, "unknown")])
def test_whether_it_fits(recording, available, fits):
    """1,330 bytes with twice the batch; a rank may take half of what is free, and the 430 that it holds."""
    measured, facts = recording(available=available)
    prediction = predict_memory(measured, facts, {"loader.batch_size": 16})
    assert (prediction.peak_bytes, prediction.now_bytes, prediction.fits) == (1330, 880, fits)
    assert prediction.low_bytes < 1330 < prediction.high_bytes
    assert sum(part.then_bytes for part in prediction.components) == 1330
    if available is None:
        assert prediction.missing["capacity_bytes"] == "free host memory was not recorded"


def test_reasons(recording):
    measured, facts = recording(tensors=None)
    assert "record it again" in predict_memory(measured, facts, {"loader.batch_size": 16}).missing["peak_bytes"]
    measured, facts = recording()
    assert predict_memory(measured, facts, {"link.alpha_us": 1.0}).missing["peak_bytes"] == (
        "these settings do not change memory"
    )
    measured, facts = recording(checkpointing=CheckpointingFacts())
    assert predict_memory(measured, facts, {"memory.checkpointing": True}).known("peak_bytes") is not None


RUN = Path(__file__).parent / "runs" / "wide-layers-ddp"
COUNTED = Path(__file__).parents[1] / "benchmarks" / "results" / "memory.json"


@pytest.mark.long
def test_counted_peaks_of_a_real_run():
    """Each changed script was run, and its tensors counted in C: benchmarks/memory.py."""
    run, measured = measured_of([str(RUN)], 1, cached=False, links=None)
    rows = [row for row in json.loads(COUNTED.read_text())["comparisons"] if row["base"] == "wide layers, DDP"]
    assert len(rows) >= 6
    for row in rows:
        settings = parsed(row["settings"].split() or ["fsdp.units=1"], named)
        predicted = predict_memory(measured, list(run.facts.values()), settings if row["settings"] else {})
        assert predicted.low_bytes <= predicted.peak_bytes <= predicted.high_bytes
        error = predicted.peak_bytes / row["counted_bytes"] - 1
        if settings.get("model.dtype") == "fp16":  # the recording is of a CPU without instructions for it
            assert predicted.low_bytes < row["counted_bytes"] < predicted.high_bytes
        else:
            assert abs(error) < 0.07, (row["settings"], error)


def test_the_page(recording):
    measured, facts = recording()
    settings: dict[str, Value] = {"loader.batch_size": 16}
    page = WhatIf.only("no model", dptune="0", memory=[predict_memory(measured, facts, settings)])
    lines = ["".join(span.text for span in line) for line in memory(page, 80)]
    assert any("loader.batch_size=16" in line and "1.30 KiB" in line and "fits" in line for line in lines)
    assert any(line.split()[:4] == ["activations", "800", "bytes", "400"] for line in lines)
    both = [predict_memory(measured, facts, {name: value}) for name, value in (("model.dtype", "bf16"), ("nodes", 2))]
    lines = ["".join(span.text for span in line) for line in memory(page.model_copy(update={"memory": both}), 80)]
    assert not any("activations" in line for line in lines)
    assert sentence(both[1])[0] == "not predicted: these settings do not change memory"
