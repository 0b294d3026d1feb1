"""What real cards have shown, from the results and recordings that are kept: figures, accounts, advice."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from tests.gpu import pairs_table
from tests.gpu.keeping import RESULTS, SAMPLES
from tests.gpu.stages.known import WITHIN, WITHIN_PAGEABLE

from dptune.advice import Report
from dptune.measured import Measured
from dptune.trace import load
from dptune.whatif.run_model import RunModel

from .. import reading  # noqa: TID252 - tests are no installed package

NONE = "no run on a card has been kept yet: `make gpu-check` on one, then `python -m tests.gpu --keep FOLDER`"


@functools.cache
def _read(folder: Path) -> tuple[Measured, Report]:
    report = reading.reported(folder)
    return reading.measured(folder), report


# Faults that the card shows as another does, of which a recording is read each time.
ALIKE = {
    "planted-fp64",  # as predict-base: compute-bound
    "planted-fp32-without-TF32",
    "planted-naive-attention",
    "link-default",  # as predict-base: one rank of a model that computes
    "planted-empty_cache-in-every-step",  # as planted-item-in-every-layer: the host waits for the device
}


def _rarely(name: str) -> Any:
    return pytest.mark.thorough if name in ALIKE else ()


def _kept(paths: list[Path]) -> list[Any]:
    return [pytest.param(path, id=path.name, marks=_rarely(path.name)) for path in paths] or [
        pytest.param(None, marks=pytest.mark.skip(reason=NONE))
    ]


@pytest.mark.parametrize("path", _kept(sorted(RESULTS.glob("*.json"))))
def test_known_durations_were_found(path: Path) -> None:
    known = json.loads(path.read_text())["stages"].get("known", {}).get("figures")
    if known is None:
        pytest.skip("this check ran other stages only")
    window_ms = known["parts"]["account_ms"]["window"]  # idle time holds what the host takes for calls, too
    errors = {
        name: (found["found_ms"] - found["set_ms"]) / (window_ms if name == "idle" else found["set_ms"])
        for name, found in known["parts"]["compared"].items()
        if name != "copy"  # in earlier results: pinned and pageable together
    }
    assert all(abs(error) <= WITHIN for error in errors.values()), errors
    copies = {(row["direction"], row["pinned"]): row["error"] for row in known["parts"]["copies"] if "error" in row}
    assert len(copies) == 4
    for (_, pinned), error in copies.items():
        assert abs(error) <= (WITHIN if pinned else WITHIN_PAGEABLE), copies
    assert known["queue"]["host_idle_share"] + known["queue"]["launch_idle_share"] <= WITHIN


@pytest.mark.parametrize("folder", _kept([path.parent for path in sorted(SAMPLES.glob("*/run.json"))]))
def test_a_recording_of_a_card_reads_as_one(folder: Path) -> None:
    measured, report = _read(folder)
    assert measured.device_kind == "cuda"
    assert report.trust.level == "sound", [finding.text for finding in report.trust.findings]
    for rank in measured.ranks:
        for device in rank.devices:
            for step in device.steps:
                account = step.account
                busy = account.compute_ns + account.exposed_communication_ns + account.copy_ns + account.memset_ns
                assert busy + account.idle_ns == account.window_ns


@pytest.mark.parametrize("folder", _kept([path.parent for path in sorted(SAMPLES.glob("*/run.json"))]))
def test_the_step_without_the_profiler_holds_what_the_device_ran(folder: Path) -> None:
    """The profiler slows the host, and not the card: its work takes as long, or the whole step where clocks differ."""
    measured, _ = _read(folder)
    traced, own = measured.account, measured.step_account
    if measured.recorded_step_ns >= measured.traced_step_ns:
        assert own == traced
        return
    work = traced.compute_ns + traced.exposed_transfer_ns + traced.copy_ns + traced.memset_ns
    kept = own.compute_ns + own.exposed_transfer_ns + own.copy_ns + own.memset_ns
    assert kept == pytest.approx(min(work, own.window_ns), abs=5)
    assert own.window_ns / traced.window_ns == pytest.approx(measured.recorded_step_ns / measured.traced_step_ns)


# What was planted -> the words of the verdict, by what the card does in a step without the profiler.
VERDICTS = {
    "planted-fp64": "Compute-bound",  # 21.1 of 21.6 ms compute; traced it is 21.1 of 39.3
    "planted-fp32-without-TF32": "Compute-bound",
    "planted-item-in-every-layer": "Idle",  # 4.0 of 17.7 ms compute
    "predict-base": "Compute-bound",
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=_rarely(name)) for name in VERDICTS])
def test_the_verdict_is_of_steps_without_the_profiler(name: str) -> None:
    _, report = _read(SAMPLES / name)
    assert report.headline.verdict.startswith(VERDICTS[name])


def test_predictions_of_another_batch_and_bounds_of_precision_hold_on_the_card() -> None:
    """Recorded once, then run with each change: the steps that were measured lie in what is predicted."""
    stages = [json.loads(path.read_text())["stages"] for path in RESULTS.glob("nvidia-h200-2026-11-26-*.json")]
    (measured_ms,) = (one["predict"]["figures"]["measured"]["medians_ms"] for one in stages if "predict" in one)
    ground = RunModel.of(load([SAMPLES / "predict-base"]), reading.measured(SAMPLES / "predict-base"))
    base_ms = median(measured_ms["base"])
    for name, changes in {
        "batch x2": {"loader.batch_size": 32},
        "batch x4": {"loader.batch_size": 64},
        "TF32": {"precision.float32_matmul": "high"},
        "bf16 autocast": {"precision.autocast": "bf16"},
        "pinned and non-blocking": {"loader.pin_memory": True, "copies.non_blocking": True},
    }.items():
        found = ground.predict(changes)
        took_ns = median(measured_ms[name]) / base_ms * ground.step_ns
        assert found.low_ns <= took_ns, name
        assert found.known("high_ns") is None or took_ns <= found.high_ns, name


def test_less_sharding_saves_on_the_card_no_more_than_is_promised() -> None:
    """FSDP2 beside DDP: DDP's step is 26 % shorter, and gathering each layer once saves 14 %."""
    _, report = _read(SAMPLES / "ranks-nccl-fsdp")
    (advice,) = [one for one in report.advice if one.rule == "DP204"]
    assert report.advice[0] == advice
    steps = {name: median(each) for name, each in pairs_table.rounds().items()}
    for other in ("ddp", "fsdp keep"):
        saved = 1 - steps[other] / steps["fsdp"]
        assert saved > 0.1
        assert advice.saves is not None
        assert advice.saves.low_share <= saved <= advice.saves.high_share


def test_bounds_of_precision_hold_where_ranks_share_the_card() -> None:
    """TF32 and bf16 of DDP and FSDP2, recorded in fp32, in every round that was run."""
    rounds = pairs_table.rounds()
    for strategy, sample in (("ddp", "ranks-nccl-ddp"), ("fsdp", "ranks-nccl-fsdp")):
        ground = RunModel.of(load([SAMPLES / sample]), reading.measured(SAMPLES / sample))
        found = ground.predict({"precision.float32_matmul": "high"})
        for step_ms in rounds[f"{strategy} tf32"]:
            assert found.low_ns <= step_ms / median(rounds[strategy]) * ground.step_ns, strategy


def test_the_wait_for_a_loader_is_the_same_in_every_part_of_a_report_and_what_workers_save() -> None:
    """59 % of the untraced step: the profiler slows the host's calls, and not the reading of samples."""
    measured, report = _read(SAMPLES / "planted-starved-loader")
    share = measured.step_account.share("input_idle_ns")
    assert share == pytest.approx(measured.input.wait_share, abs=0.005)
    assert f"{100 * share:.0f} % of each step waits for the data loader" in report.headline.verdict
    (advice,) = [one for one in report.advice if one.rule == "DP501"]
    assert advice.title.startswith(f"A step waits {100 * share:.0f} % of its time for the data loader")
    assert "DP601" not in [one.rule for one in report.advice]  # launches wait because the profiler slows them
    pairs = next(
        found
        for path in sorted(RESULTS.glob("nvidia-h200-2026-11-27-*.json"))
        if (found := json.loads(path.read_text())["stages"].get("planted", {}).get("figures", {}).get("pairs"))
    )["medians_ms"]
    mended, planted = (median(pairs[f"starved loader: {side}"]) for side in ("mended", "planted"))
    assert mended / planted == pytest.approx(1 - share, abs=0.02)


def test_the_table_of_changes_is_that_of_the_results() -> None:
    assert "\n".join(pairs_table.rows()) in (RESULTS.parents[1] / "GPU.md").read_text()
