"""What a search tries beside recommendations and predictions, by what a recording shows room for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dptune.advice import Change, Location
from dptune.knobs import Value
from dptune.measured import Measured
from dptune.runfile import json_files
from dptune.runfile.compilation import CompileFacts
from dptune.runfile.facts import Facts
from dptune.tune.candidate import Candidate
from dptune.tune.candidates import Choice, candidates, patchable
from dptune.tune.unpredicted import unpredicted
from dptune.whatif.predicting import nothing

from .. import reading  # noqa: TID252 - tests are no installed package

ROOT = Path(__file__).parents[2]
RUNS = ROOT / "tests" / "rules" / "recorded" / "runs"
SHARDED = RUNS / "sharded-parameters"
ON_GPUS = ROOT / "sample_traces" / "gpu" / "ranks-nccl-ddp"


def facts_of(run: Path) -> list[Facts]:
    return [json_files.read(path, Facts) for path in sorted(run.glob("rank-*.facts.json"))]


def offered(facts: list[Facts], measured: Measured) -> dict[str, dict[str, Value]]:
    """The settings of each candidate by its name."""
    return {candidate.name: candidate.settings for candidate in unpredicted(measured, facts)}


@pytest.fixture(scope="module")
def sharded() -> tuple[list[Facts], Measured]:
    """fully_shard on two CPU ranks, without gathers ahead, in float32, with AdamW at its first learning rate."""
    return facts_of(SHARDED), reading.measured(SHARDED)


def test_units_of_fully_shard_stay_gathered_and_then_communicate_in_16_bits(
    sharded: tuple[list[Facts], Measured],
) -> None:
    found = offered(*sharded)
    assert found["fsdp.reshard_after_forward=false"] == {"fsdp.reshard_after_forward": False}
    assert found["fsdp.forward_prefetch=2"] == {"fsdp.forward_prefetch": 2, "fsdp.backward_prefetch": 2}
    assert {"fsdp.param_dtype=bf16", "fsdp.reduce_dtype=bf16"} <= found.keys()
    facts, measured = sharded
    kept = [
        replace(rank, fsdp=[replace(fsdp, reshard_after_forward=False, reduce_dtype="bfloat16") for fsdp in rank.fsdp])
        for rank in facts
    ]
    assert not {"fsdp.reshard_after_forward=false", "fsdp.reduce_dtype=bf16"} & offered(kept, measured).keys()


def test_twice_the_batch_comes_with_its_learning_rate(sharded: tuple[list[Facts], Measured]) -> None:
    facts, measured = sharded
    found = offered(facts, measured)["loader.batch_size=1536"]
    assert found == {
        "loader.batch_size": 1536,
        "optimizer.lr": 0.00141,
        "optimizer.betas": "0.8,0.998",
        "optimizer.eps": 7.07e-9,
    }
    (candidate,) = (each for each in unpredicted(measured, facts) if "loader.batch_size" in each.settings)
    assert candidate.numerics == "changes"
    optimizer = facts[0].optimizers[0]
    set_by_the_script = [replace(facts[0], optimizers=[replace(optimizer, learning_rates=[0.0005])])]
    small = [replace(facts[0], loaders=[replace(facts[0].loaders[0], dataset_samples=1600)])]
    for other in (set_by_the_script, small):
        assert "loader.batch_size=1536" not in offered(other, measured)


def test_memory_of_tensors_is_kept_on_a_cpu_and_segments_expand_on_a_gpu(
    sharded: tuple[list[Facts], Measured],
) -> None:
    facts, measured = sharded
    kept = {"env.MALLOC_MMAP_MAX_": "0", "env.MALLOC_TRIM_THRESHOLD_": "-1"}
    assert offered(facts, measured)["env.MALLOC_MMAP_MAX_=0"] == kept
    found = offered(facts_of(ON_GPUS), measured)
    assert "env.MALLOC_MMAP_MAX_=0" not in found
    assert "env.PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" in found
    assert "precision.autocast=bf16" in found  # around DistributedDataParallel


def test_an_optimizer_that_updates_tensors_one_by_one_is_fused(sharded: tuple[list[Facts], Measured]) -> None:
    facts, measured = sharded
    assert {"optimizer.fused=true", "optimizer.foreach=true"} <= offered(facts, measured).keys()
    fused = [replace(facts[0], optimizers=[replace(facts[0].optimizers[0], fused=True)])]
    assert not {"optimizer.fused=true", "optimizer.foreach=true"} & offered(fused, measured).keys()


def test_a_model_is_compiled_only_where_there_is_a_compiler(
    sharded: tuple[list[Facts], Measured], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts, measured = sharded
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "compile.model=true" not in offered(facts, measured)
    (tmp_path / "g++").touch(mode=0o755)
    assert offered(facts, measured)["compile.model=true"] == {"compile.model": True}
    monkeypatch.setenv("CXX", "none")
    assert "compile.model=true" not in offered(facts, measured)
    monkeypatch.delenv("CXX")
    compiled = [replace(facts[0], compiled=CompileFacts(["train.py:12"]))]
    assert "compile.model=true" not in offered(compiled, measured)


@pytest.mark.long
def test_buckets_of_another_size_than_ddps_own_are_tried_with_that_one() -> None:
    """10 KiB in the first run, 25 MiB in the second; both wait for communication."""
    small, own = (RUNS / name for name in ("tiny-gradients", "wide-gradients"))
    assert [facts_of(run)[0].ddp[0].bucket_cap_bytes for run in (small, own)] == [10485, 25 * 2**20]
    assert all(reading.measured(run).share("exposed_communication_ns") > 0.01 for run in (small, own))
    found = offered(facts_of(small), reading.measured(small))
    assert found["ddp.bucket_cap_mb=25"] == {"ddp.bucket_cap_mb": 25.0}
    assert not any(
        "ddp.bucket_cap_mb" in settings for settings in offered(facts_of(own), reading.measured(own)).values()
    )


def test_debug_options_are_switched_off_though_their_rule_states_no_saving() -> None:
    run = RUNS / "debug-switches"
    report, choice = reading.reported(run), Choice(only=frozenset({"DP605"}))
    (found,) = (advice for advice in report.advice if advice.rule == "DP605")
    off = Change(knob="env.TORCH_DISTRIBUTED_DEBUG", now="DETAIL", then="OFF")
    for numerics, tried in (("same", {"env.TORCH_DISTRIBUTED_DEBUG": "OFF"}), ("changes", None)):
        advice = found.model_copy(update={"changes": [off], "numerics": numerics})
        made, _ = candidates(
            report.model_copy(update={"advice": [advice]}), nothing("not searched"), facts_of(run), choice
        )
        assert [each.settings for each in made] == ([] if tried is None else [tried])
        assert all(each.expected == pytest.approx(0.02) for each in made)  # as of settings that nothing predicts


def test_settings_that_may_change_results_come_last(sharded: tuple[list[Facts], Measured]) -> None:
    facts, measured = sharded
    numerics = [candidate.numerics for candidate in unpredicted(measured, facts)]
    assert numerics == sorted(numerics, reverse=True)  # same, then changes
    assert {*numerics} == {"same", "changes"}


def test_what_only_a_patch_sets_is_tried_where_there_is_one(tmp_path: Path) -> None:
    def candidate(name: str, then: Value) -> Candidate:
        change = Change(knob=name, now=None, then=then, at=Location(file="train.py", line=3))
        return Candidate(
            name=name,
            changes=(change,),
            title=f"set {name}",
            numerics="same",
            low_share=0.1,
            high_share=0.2,
            basis="bound",
            subjects=frozenset(),
        )

    head = "from torch.distributed.fsdp import fully_shard\n\n"
    replicas, workers = candidate("wrapper", "ddp"), candidate("loader.num_workers", 2)
    (tmp_path / "train.py").write_text(f"{head}fully_shard(model)\nmodel(x)\n")
    assert patchable([replicas, workers], [], tmp_path) == ([replicas, workers], [])
    (tmp_path / "train.py").write_text(f"{head}fully_shard(model)\nmodel.unshard()\n")
    tried, (left,) = patchable([replicas, workers], [], tmp_path)
    assert tried == [workers]
    assert (left.name, left.title) == ("wrapper", "set wrapper")
    assert left.why.startswith("change the script by hand: line 4 uses `unshard`")
