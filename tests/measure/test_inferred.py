"""Facts inferred from traces, beside those that the same runs recorded, and on public traces worked out by hand."""

from __future__ import annotations

import functools
import gzip
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dptune.advise import packs
from dptune.advise.engine import build_report
from dptune.advise.limits import idle_causes
from dptune.advise.rule_calls import Questioner
from dptune.config import Settings
from dptune.measure import measure
from dptune.measured import InferredFacts, Measured
from dptune.rule import RunView
from dptune.runfile.discarded_gradients import discarding
from dptune.runfile.facts import Facts
from dptune.trace import Run, load
from dptune_rules.communication.broadcast_buffers import check as check_buffers
from dptune_rules.host.debug_switches import check as check_switches
from dptune_rules.memory.allocator_churn import check as check_allocator
from dptune_rules.memory.checkpointing_without_need import check as check_checkpoints
from dptune_rules.precision.double_precision import check as check_doubles

from .. import reading  # noqa: TID252 - tests are no installed package
from .handmade import annotation, launched, measure_events, operator, step

ACCUMULATES = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
ROOT = Path(__file__).resolve().parents[2]
RECORDED = ROOT / "tests" / "rules" / "recorded" / "runs"
SAMPLES = ROOT / "sample_traces"
# One of each kind of script, on CPUs and on an H200.
RUNS = [
    *(
        RECORDED / name
        for name in (
            "averaged-one-by-one", "broadcast-buffers", "checkpointing-without-need", "debug-switches", "dense-tables",
            "dense-tables-mended", "double-precision", "evaluation-mode-kept", "frozen-batch-norm",
            "gathered-for-logging", "gradients-discarded", "iterable-dataset", "kept-outputs", "late-rank",
            "metrics-reduced", "new-iterators", "parameters-without-optimizer-mended", "rank-placement", "recompiles",
            "repeated-forward", "scaler-without-need", "separate-backward-passes", "sharded-optimizer",
            "sharded-parameters", "small-batch", "small-shard-units", "unfrozen-after-wrapping-mended",
            "unfused-optimizer", "unfused-optimizer-mended", "unsynchronized-gradients", "unused-gradients",
            "unused-parameters-searched", "wide-gradients-mended", "workers-restart",
        )
    ),
    *(SAMPLES / name for name in ("healthy", "tiny_buckets", "accumulation_without_no_sync", "starved_loader")),
    *(
        SAMPLES / "gpu" / name
        for name in (
            "known-parts", "link-default", "planted-empty_cache-in-every-step", "planted-fp32-without-TF32",
            "planted-fp64", "planted-item-in-every-layer", "planted-naive-attention", "planted-starved-loader",
            "predict-base", "ranks-nccl-ddp", "ranks-nccl-fsdp",
        )
    ),
]  # fmt: skip
AS_IF_RECORDED = ("fused", "foreach")  # None where the script left torch to choose: what it chose is not recorded


@functools.cache
def stripped(path: Path) -> tuple[Run, Measured]:
    """A recorded run, and what its traces alone say."""
    run = load([path])
    return run, reading.measured_without_facts(path)


def values(inferred: InferredFacts, recorded: Facts) -> Iterator[tuple[str, str, Any, Any]]:
    """Each inferred value, by name and confidence, beside the recorded one."""
    sizes = {loader.batch_size for loader in recorded.loaders}
    if inferred.batch is not None and len(sizes) == 1:
        yield "batch", inferred.batch.confidence, inferred.batch.samples, sizes.pop()
    for name, confidence in inferred.confidence.items():
        record, _, part = name.partition(".")
        found, true = getattr(inferred.facts, record), getattr(recorded, record)
        if part:
            if not true:
                continue  # the record itself is wrong, which counts once
            found, true = getattr(found[0], part), getattr(true[0], part)
            if part == "rebuilt_bucket_sizes" and not true:
                true = getattr(recorded, record)[0].bucket_sizes
            if part in AS_IF_RECORDED:
                found, true = bool(found), bool(true)
        elif record == "device":
            found, true = (found.name, found.capability), (true.name, true.capability)
        elif record == "discarded_gradients":
            found, true = discarding([found]), discarding([true])
        elif record == "environment":
            found, true = set(inferred.facts.debug_switches), set(recorded.debug_switches)
        elif isinstance(found, list) or record == "compiled":
            found, true = bool(found), bool(true)
        yield name, confidence, found, true


# What differs most in what wraps, updates and feeds the model; the others are read by `make test-thorough`.
FEW = {
    "parameters-without-optimizer-mended", "recompiles", "scaler-without-need", "separate-backward-passes",
    "sharded-optimizer", "sharded-parameters", "unused-parameters-searched", "workers-restart", "planted-fp64",
}  # fmt: skip


def test_inferred_facts_are_those_that_were_recorded() -> None:
    _compare([path for path in RUNS if path.name in FEW], 70)


@pytest.mark.thorough
def test_inferred_facts_are_those_that_more_scripts_recorded() -> None:
    _compare(RUNS, 400)


def _compare(runs: list[Path], least: int) -> None:
    """At least 98 % of them, and every one that is given high confidence."""
    counts: Counter[bool] = Counter()
    wrong = []
    for path in runs:
        run, measured = stripped(path)
        lowest = min(run.facts)
        for name, confidence, found, true in values(measured.inferred, run.facts[lowest]):
            counts[found == true] += 1
            if found != true:
                wrong.append((path.name, name, confidence, found, true))
    assert counts.total() >= least
    assert counts[True] >= 0.98 * counts.total(), wrong
    assert not [one for one in wrong if one[2] == "high"]


@pytest.mark.parametrize(
    "path", [pytest.param(path, id=path.name, marks=() if path.name in FEW else pytest.mark.thorough) for path in RUNS]
)
def test_backward_passes_and_samples_are_counted_as_the_recording_did(path: Path) -> None:
    _, measured = stripped(path)
    whole = reading.measured(path)
    if (samples := measured.known("samples_per_step")) is not None and whole.known("samples_per_step"):
        assert samples == whole.samples_per_step
        assert (measured.samples_inferred, whole.samples_inferred) == (True, False)
    recorded, inferred = whole.accumulation, measured.accumulation
    assert inferred.known("backwards_per_step") == recorded.known("backwards_per_step")
    synchronised = recorded.known("synchronised_backwards_per_step")
    if synchronised and inferred.known("synchronised_backwards_per_step") is not None:
        assert inferred.synchronised_backwards_per_step == synchronised


def test_recorded_facts_win() -> None:
    measured = reading.measured(SAMPLES / "healthy")
    assert measured.known("inferred") is None
    assert measured.missing["inferred"] == "the facts were recorded"


def test_real_nccl_buckets_of_a_recording_on_a_card() -> None:
    """Two of NCCL's messages a step, of the sizes that the reducer itself reported."""
    run, measured = stripped(SAMPLES / "gpu" / "ranks-nccl-ddp")
    (wrapped,) = measured.inferred.facts.ddp
    assert wrapped.rebuilt_bucket_sizes == [29419520, 21018624] == run.facts[0].ddp[0].rebuilt_bucket_sizes
    assert wrapped.gradient_bytes == 4 * 12_609_536  # 4 layers of 3,152,384 parameters
    assert wrapped.parameter_tensors == 48


def test_a_public_trace_of_ddp_on_an_a100(real_traces: Path) -> None:
    """ResNet-50 without its last layer's bias in 161 tensors: 25,557,032 parameters, in five buckets."""
    measured = reading.measured(real_traces / "hta_training" / "b4b6dce_nccl_data.json.gz")
    (wrapped,) = measured.inferred.facts.ddp
    assert wrapped.rebuilt_bucket_sizes == [8196000, 31502336, 26255360, 26550272, 9724160]
    assert wrapped.gradient_bytes == 4 * 25_557_032
    assert wrapped.parameter_tensors == 161
    assert wrapped.gradient_as_bucket_view is False
    assert wrapped.buffer_bytes == 4 * 53_120 + 8 * 53  # running statistics of 53 batch norms, and how often they ran
    assert measured.accumulation.synchronised_backwards_per_step == 1
    (optimizer,) = measured.inferred.facts.optimizers
    assert (optimizer.name, optimizer.foreach, optimizer.fused) == ("SGD", True, False)
    assert (optimizer.dtypes, measured.inferred.facts.autocast) == (["float32"], None)
    assert measured.inferred.confidence["environment"] == "medium"
    assert measured.inferred.facts.debug_switches == {}


def test_what_a_trace_would_not_show_is_not_inferred_to_be_absent(real_traces: Path) -> None:
    """Kernels alone: no operator of the host was recorded, so nothing is known of DDP, optimizers or loaders."""
    measured = measure(load([next((real_traces / "gpu_only_mi210").iterdir())]))
    inferred = measured.known("inferred")
    assert inferred is None or not inferred.confidence.keys() & {"ddp", "fsdp", "optimizers", "loaders"}


def test_the_hosts_time_for_buffers_of_a_public_trace(real_traces: Path) -> None:
    """By hand: forward passes begin 38.0 to 39.3 ms before their first convolution, of steps of 220 ms."""
    measured = reading.measured(real_traces / "hta_training" / "b4b6dce_nccl_data.json.gz")
    assert 0.170 < measured.buffer_sync_share < 0.180
    assert reading.measured(SAMPLES / "healthy").known("buffer_sync_share") is None


@functools.cache
def _first_steps(path: Path, number: int) -> bytes:
    trace = msgspec.json.decode(gzip.decompress(path.read_bytes()))
    steps = [event["ts"] for event in trace["traceEvents"] if str(event.get("name")).startswith("ProfilerStep")]
    end = [*sorted(set(steps)), math.inf][number]
    trace["traceEvents"] = [event for event in trace["traceEvents"] if event.get("ts", 0) < end]
    return msgspec.json.encode(trace)


def _altered(
    public: Path, tmp_path: Path, alter: Callable[[list[dict[str, Any]]], list[dict[str, Any]]], steps: int = 2
) -> Measured:
    """The figures of the first steps, of three, of the trace of DDP on an A100 with other events."""
    trace = msgspec.json.decode(_first_steps(public / "hta_training" / "b4b6dce_nccl_data.json.gz", steps))
    trace["traceEvents"] = alter(trace["traceEvents"])
    target = tmp_path / "rank-0.json"
    target.write_bytes(msgspec.json.encode(trace))
    return measure(load([target]))


def _named(events: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [event for event in events if event.get("name") == name and event.get("cat") != "gpu_user_annotation"]


def test_what_the_model_broadcasts_itself_is_not_counted_with_the_buffers(real_traces: Path, tmp_path: Path) -> None:
    def alter(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
        own = [
            {**event, "name": "c10d::broadcast_", "cat": "cpu_op", "ts": event["ts"] + 0.95 * event["dur"], "dur": 50}
            for event in _named(events, "DistributedDataParallel.forward")
        ]
        return [*events, *own]

    assert 0.170 < _altered(real_traces, tmp_path, alter).buffer_sync_share < 0.180


def test_buffers_of_steps_that_begin_amid_them(real_traces: Path, tmp_path: Path) -> None:
    """Without marks a step begins after the longest pause, which lies inside DDP's copies of buffers here."""

    def alter(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [event for event in events if not str(event.get("name")).startswith(("ProfilerStep", "Optimizer."))]

    measured = _altered(real_traces, tmp_path, alter, steps=3)
    assert 0.165 < measured.buffer_sync_share < 0.185


def test_a_clock_of_the_device_that_is_late_shows_no_blocking_launches(real_traces: Path, tmp_path: Path) -> None:
    """Kernels that end before their launch call does by that clock, as those of blocking launches do."""

    def alter(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
        on_device = ("kernel", "gpu_memcpy", "gpu_memset")
        return [event | {"ts": event["ts"] - 990} if event.get("cat") in on_device else event for event in events]

    environment = _altered(real_traces, tmp_path, alter).inferred.facts.environment
    assert "CUDA_LAUNCH_BLOCKING" not in environment


def test_buffers_end_where_a_compiled_model_begins_and_nested_modules_count_once(
    real_traces: Path, tmp_path: Path
) -> None:
    def alter(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
        forwards = _named(events, "DistributedDataParallel.forward")
        for forward in forwards:
            for event in events:
                if event.get("cat") == "cpu_op" and 38_900 < event["ts"] - forward["ts"] < forward["dur"]:
                    event["name"] = "triton_poi_fused_0"
        inner = [{**forward, "ts": forward["ts"] + 10, "dur": forward["dur"] - 20} for forward in forwards]
        return [*events, *inner]

    measured = _altered(real_traces, tmp_path, alter)
    assert 0.165 < measured.buffer_sync_share < 0.180
    assert measured.inferred.facts.ddp[0].buffer_bytes == 212_904
    assert not {"probability_losses", "ignored_targets", "dense_tables"} & measured.inferred.confidence.keys()


def test_reduced_gradients_speak_against_a_run_without_ddp(real_traces: Path, tmp_path: Path) -> None:
    measured = _altered(
        real_traces,
        tmp_path,
        lambda events: [
            event
            for event in events
            if "reducer::" not in str(event.get("name")) and event.get("name") != "DistributedDataParallel.forward"
        ],
    )
    assert measured.accumulation.synchronised_backwards_per_step == 1
    assert "ddp" not in measured.inferred.confidence


def test_of_a_forward_pass_that_was_not_recorded_nothing_is_absent(real_traces: Path, tmp_path: Path) -> None:
    def alter(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
        (thread,) = {event["tid"] for event in _named(events, "DistributedDataParallel.forward")}
        return [event for event in events if event.get("cat") != "cpu_op" or event.get("tid") != thread]

    confidence = _altered(real_traces, tmp_path, alter).inferred.confidence
    assert confidence["ddp"] == "high"  # the reducer runs on autograd's thread
    assert (
        not {"grad_scaler", "probability_losses", "ignored_targets", "dense_tables", "checkpointing"}
        & confidence.keys()
    )


def test_buffers_are_reported_also_where_no_optimizer_marks_the_phases(real_traces: Path, tmp_path: Path) -> None:
    measured = _altered(
        real_traces,
        tmp_path,
        lambda events: [event for event in events if not str(event.get("name")).startswith("Optimizer.")],
    )
    run = RunView(measured, [])
    (advice,) = check_buffers(run)
    assert advice.saves is not None
    assert 0.17 < advice.saves.high_share < 0.18


def test_units_of_flat_parameters_are_counted_by_their_reductions(tmp_path: Path) -> None:
    """FullyShardedDataParallel names none: three units in each of two steps, and a gradient for each."""
    events: list[dict[str, Any]] = []
    for number, begin in enumerate((0, 100)):
        events += [step(number, begin, begin + 100), operator("aten::mm", begin + 1, begin + 9)]
        events += launched("gemm", begin + 2, begin + 10, begin + 20, number + 1)
        events.append(annotation("FullyShardedDataParallel._pre_forward", begin, begin + 1))
        for unit in range(3):
            at = begin + 30 + 10 * unit
            events.append(operator(ACCUMULATES, at, at + 5, thread=2))
            events.append(annotation("FullyShardedDataParallel._post_backward_hook", at + 1, at + 4, thread=2))
    inferred = measure_events(tmp_path, events).inferred
    (sharded,) = inferred.facts.fsdp
    assert (sharded.version, sharded.units) == (1, 3)
    assert inferred.confidence["fsdp.units"] == "medium"


def test_micro_batches_gather_each_unit_again_without_resharding() -> None:
    """By hand: 16 gathers of a unit in 4 steps of 4 micro-batches, all in forward passes; with one, 4 of 8 are not."""
    run, measured = stripped(RECORDED / "sharded-micro-batches")
    assert run.facts[0].fsdp[0].reshard_after_forward is False
    assert measured.inferred.facts.fsdp[0].reshard_after_forward is False
    run, measured = stripped(RECORDED / "small-shard-units-mended")
    assert run.facts[0].fsdp[0].reshard_after_forward is True
    assert measured.inferred.facts.fsdp[0].reshard_after_forward is True


@pytest.mark.parametrize(("number", "found"), [({"Sequence number": 7}, True), ({}, False)])
def test_operators_of_a_derivative_are_no_recomputation(tmp_path: Path, number: dict[str, int], found: bool) -> None:
    """With gradients enabled, as in a checkpoint, an operator has a sequence number; in a derivative it has none."""
    events = [step(0, 0, 100), operator("aten::linear", 1, 9, **{"Sequence number": 3})]
    events += [operator("autograd::engine::evaluate_function: LinalgSolveExBackward0", 20, 60)]
    events += [operator("aten::matmul", 30, 40, **number), *launched("gemm", 31, 35, 50, 1)]
    names = [trait.name for trait in measure_events(tmp_path, events).inferred.traits]
    assert ("checkpointing" in names) is found


def test_the_time_that_a_checkpoint_recomputes_by_hand(tmp_path: Path) -> None:
    """Of 110 us on the device 15, in a kernel of the node that reruns `linear`; not the kernel of its gradient."""
    node = "autograd::engine::evaluate_function: CheckpointFunctionBackward"
    events = [
        *(step(0, 0, 100), step(1, 100, 200)),
        operator("aten::linear", 1, 9, **{"Sequence number": 3}),
        *launched("gemm", 2, 10, 30, 1),
        operator(node, 20, 60, **{"Sequence number": 3}),
        operator("aten::linear", 30, 40, **{"Sequence number": 4}),
        operator("aten::addmm", 31, 39, **{"Sequence number": 4}),
        *launched("gemm", 32, 40, 55, 2),
        operator("aten::mm", 50, 58),  # a derivative
        *launched("gemm", 51, 60, 80, 3),
        *launched("gemm", 101, 110, 120, 4),
    ]
    measured = measure_events(tmp_path, events)
    # The windows [10,110) and [110,120).
    assert measured.inferred.recomputed_share == 15 / 110


@pytest.mark.parametrize(
    ("node", "name"),
    [
        ("CheckpointFunctionBackward", "checkpointing"),
        ("AddmmBackward0", "checkpointing"),  # without reentrance, where a node reads its saved tensors
        ("ReversibleBackward", "recomputation"),  # a custom autograd.Function
    ],
)
def test_what_reruns_the_forward_pass(tmp_path: Path, node: str, name: str) -> None:
    events = [
        step(0, 0, 100),
        operator("aten::linear", 1, 9, **{"Sequence number": 3}),
        operator(f"autograd::engine::evaluate_function: {node}", 20, 60, **{"Sequence number": 3}),
        operator(node, 21, 59, **{"Sequence number": 3}),
        operator("aten::linear", 30, 40, **{"Sequence number": 4}),
    ]
    inferred = measure_events(tmp_path, events).inferred
    assert [trait.name for trait in inferred.traits] == [name]
    assert bool(inferred.recomputed_share) is (name == "checkpointing")


def test_the_time_that_checkpoints_recompute_beside_what_was_recorded() -> None:
    """Functions timed in untraced steps, and operators in traced ones: two shares of the same work."""
    run, measured = stripped(RECORDED / "checkpointing-without-need")
    windows = [window for facts in run.facts.values() if (window := facts.window("untraced"))]
    recorded = [sum(window.recomputed_ns) / sum(window.durations_ns) for window in windows]
    assert measured.inferred.recomputed_share == pytest.approx(sum(recorded) / len(recorded), abs=0.06)
    assert stripped(RECORDED / "matrix-decompositions")[1].inferred.recomputed_share == 0
    (advice,) = check_checkpoints(RunView(measured, []))
    assert (advice.confidence, advice.saves.basis) == ("low", "bound")
    assert advice.saves.high_share == measured.inferred.recomputed_share


def test_what_kernels_name_of_parameters_and_autocast() -> None:
    doubles = stripped(SAMPLES / "gpu" / "planted-fp64")[1]
    assert doubles.inferred.facts.optimizers[0].dtypes == ["float64"]
    (advice,) = check_doubles(RunView(doubles, []))
    assert advice.title == "The parameters that AdamW updates are float64: float32 takes half the memory"
    assert stripped(SAMPLES / "gpu" / "planted-starved-loader")[1].inferred.facts.autocast == "cuda:bfloat16"


def test_a_starved_loader_of_an_h200_by_its_trace_alone() -> None:
    """Recorded: 59 % of an untraced step, 49 to 66 % saved. Traced, the rest takes longer: 43 %."""
    run, measured = stripped(SAMPLES / "gpu" / "planted-starved-loader")
    first = build_report(replace(run, facts={}, record=None, repeats=[]), measured, Settings()).advice[0]
    assert first.title.startswith("A step waits 43 % of its time for the data loader: give the DataLoader 2 workers")
    assert first.saves is not None
    assert (first.rule, first.confidence, first.saves.basis) == ("DP501", "medium", "replayed")
    assert 0.3 < first.saves.low_share < first.saves.high_share <= measured.input.wait_share


def test_a_public_trace_without_the_caching_allocator(real_traces: Path) -> None:
    """By hand: 1,460 calls of hipMalloc and 1,360 of hipFree for 1,225 tensors, in 5 steps."""
    measured = reading.measured(real_traces / "single_gpu_mi300")
    assert measured.inferred.facts.debug_switches == {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    (advice,) = check_switches(RunView(measured, []))
    assert advice.title.startswith("The driver allocates and frees memory for each tensor")
    assert (advice.kind, advice.impact) == ("time", "high")
    assert advice.saves.high_share == pytest.approx(measured.account.share("malloc_idle_ns"))
    assert measured.account.malloc_idle_ns > 0.98 * measured.account.idle_ns  # by hand: 2,998 of 3,032 ms in hipFree
    assert measured.path.malloc_ns > 0.98 * measured.path.path_ns  # the host is in these calls for 99.1 % of the steps
    assert [evidence.value for evidence in advice.evidence][:1] == [564.0]  # 2,820 calls in 5 steps
    assert idle_causes(measured) == ", almost all while the driver allocates or frees device memory"
    assert list(check_allocator(RunView(measured, []))) == []  # which would advise another setting of the cache
    assert (measured.world_size, measured.missing["links"]) == (1, "a single rank has no links")
    assert advice.remedy == "Unset PYTORCH_NO_CUDA_MEMORY_CACHING in the environment of the job."


def test_launches_that_last_until_their_kernel_has_ended(real_traces: Path, tmp_path: Path) -> None:
    def alter(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
        kernels = {
            event["args"]["correlation"]: event["ts"] + event["dur"] for event in events if event.get("cat") == "kernel"
        }
        for event in events:
            if event.get("cat") == "cuda_runtime" and (end := kernels.get(event["args"].get("correlation"))):
                event["dur"] = max(event["dur"], end - event["ts"] + 1)
        return events

    assert _altered(real_traces, tmp_path, alter).inferred.facts.debug_switches == {"CUDA_LAUNCH_BLOCKING": "1"}


def test_rules_that_need_a_recording_find_nothing_on_a_trace() -> None:
    needing = [loaded for loaded in packs.load_packs() if loaded.rule.needs == "recording"]
    assert len(needing) > 30
    for path in [path for path in RUNS if path.name in FEW]:
        _, measured = stripped(path)
        answers = [Questioner(measured, [], Settings()).ask(loaded) for loaded in needing]
        assert not [answer for answer in answers if answer.said or answer.failed], path
        assert any(answer.missing for answer in answers)


def test_what_else_a_trace_shows(real_traces: Path) -> None:
    def traits(measured: Measured) -> dict[str, str]:
        timed = ("gradients", "TF32")  # tests/measure/test_readiness.py has these
        return {trait.name: trait.value for trait in measured.inferred.traits if trait.name not in timed}

    served = traits(stripped(SAMPLES / "gpu" / "planted-starved-loader")[1])
    assert served == {"attention": "cuDNN attention (scaled_dot_product_attention)"}
    again = traits(stripped(RECORDED / "checkpointing-without-need")[1])
    assert again == {"checkpointing": "yes: forward operators rerun in the backward pass"}
    graphs = traits(reading.measured(real_traces / "single_gpu" / "1eeffb3_trace_05.json.gz"))
    assert graphs == {
        "attention": "memory-efficient attention (by its kernels)",
        "CUDA graphs": "2 launches per step",
        "compiled calls": "1 per step; guards take 1.6 % of the step on the host",
    }
    assert traits(stripped(RECORDED / "broadcast-buffers")[1]) == {}
    assert "checkpointing" not in traits(stripped(RECORDED / "matrix-decompositions")[1])


@pytest.mark.parametrize(
    "trace",
    [
        "hta_small/b2a719b_step_based_trace_2543932.json.gz",
        "torchrec_resnet18_2xv100",
        "single_gpu/c4adadd_dcb0aa1a78e7_4399.1752181589589738346.pt.trace.json.gz",
    ],
)
def test_few_rules_could_not_run_on_a_public_trace(real_traces: Path, trace: str) -> None:
    """At most a quarter of those that a trace can answer; each says what it lacks."""
    report = reading.reported(real_traces / trace)
    lacking = [skip for skip in report.skipped if skip.could_not_run]
    needing = [skip for skip in report.skipped if skip.needs]
    assert len(lacking) <= (len(report.quiet) + len(lacking)) / 4
    assert all(skip.reason for skip in lacking)
    assert f"; {len(needing)} need a recording" in report.headline.why or not lacking


@pytest.mark.parametrize(
    ("waits", "workers"),
    [
        ([90, 1, 20, 60, 1, 1, 60, 1, 5, 55, 1, 1, 60, 30], "3"),
        ([90, 1, 20, 60, 1, 1, 60, 1, 5, 55, 1, 60, 1, 30], ""),  # distances of 3, 3 and 2
        ([90, 1, 20, 60, 1, 1, 60, 1, 5, 55, 1], ""),  # three long ones
        ([60] * 14, ""),  # each batch is waited for
    ],
)
def test_workers_by_the_distance_of_the_longest_waits(tmp_path: Path, waits: list[int], workers: str) -> None:
    drawn = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    events = [
        each
        for number, wait in enumerate(waits)
        for each in (
            step(number, 100 * number, 100 * number + 100),
            annotation(drawn, 100 * number + 1, 100 * number + 1 + wait),
            *launched("gemm", 100 * number + 95, 100 * number + 96, 100 * number + 98, number + 1),
        )
    ]
    found = {trait.name: trait for trait in measure_events(tmp_path, events).inferred.traits}
    said = f"{workers}: the longest waits for a batch are {workers} batches apart"
    assert found.get("DataLoader workers") is None if not workers else found["DataLoader workers"].value == said


def test_workers_of_a_public_trace(real_traces: Path) -> None:
    """By eye: 700, 677, 672, 748 and 578 ms at every fourth of its last batches."""
    measured = reading.measured(real_traces / "single_gpu" / "29571b7_resnet_kineto.json.gz")
    (found,) = [trait for trait in measured.inferred.traits if trait.name == "DataLoader workers"]
    assert (found.value[:2], found.confidence) == ("4:", "low")


def _normalizing(gradients: list[int], forward: tuple[str, ...]) -> list[dict[str, Any]]:
    """Two steps with these operators in the forward pass, and a node of BatchNorm for each number of gradients."""
    events: list[dict[str, Any]] = []
    for number, begin in enumerate((0, 200)):
        events += [step(number, begin, begin + 200), *launched("gemm", begin + 2, begin + 10, begin + 20, number + 1)]
        events += [operator(name, begin + 1 + 5 * at, begin + 5 + 5 * at) for at, name in enumerate(forward)]
        at = begin + 60
        for count in gradients:
            node = "autograd::engine::evaluate_function: NativeBatchNormBackward0"
            events.append(operator(node, at, at + 4, thread=2))
            events += [operator(ACCUMULATES, at + 5 + each, at + 6 + each, thread=2) for each in range(count)]
            at += 20
        events.append(operator("autograd::engine::evaluate_function: MulBackward0", at, at + 2, thread=2))
        events.append(operator(ACCUMULATES, at + 3, at + 4, thread=2))
    return events


@pytest.mark.parametrize(
    ("gradients", "calls", "trained"),
    [([2, 2], 2, True), ([2, 1], 2, True), ([2, 0], 2, False), ([0, 2], 2, False), ([2], 2, False), ([2, 2], 1, False)],
)
def test_batch_norms_are_not_frozen_where_each_adds_a_gradient(
    tmp_path: Path, gradients: list[int], calls: int, trained: bool
) -> None:
    confidence = measure_events(tmp_path, _normalizing(gradients, ("aten::batch_norm",) * calls)).inferred.confidence
    assert ("frozen_norms" in confidence) == trained


@pytest.mark.parametrize(
    ("forward", "absent"),
    [
        (("aten::linear", "aten::_log_softmax", "aten::cross_entropy_loss"), True),
        (("aten::linear", "aten::_softmax", "aten::cross_entropy_loss"), False),
        (("aten::linear", "aten::sigmoid", "aten::binary_cross_entropy_with_logits"), False),
        (("aten::linear", "aten::sigmoid"), True),
    ],
)
def test_a_loss_is_given_no_probabilities_where_nothing_computes_them(
    tmp_path: Path, forward: tuple[str, ...], absent: bool
) -> None:
    confidence = measure_events(tmp_path, _normalizing([], forward)).inferred.confidence
    assert ("probability_losses" in confidence) == absent
