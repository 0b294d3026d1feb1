"""What a report says of facts that were inferred from a trace."""

from __future__ import annotations

import re
from pathlib import Path

from dptune.advice import Report
from dptune.advise.engine import build_report
from dptune.config import Settings
from dptune.present.first_screen import first_screen
from dptune.present.sections.inferred import _optimizer
from dptune.present.text import sections
from dptune.runfile.facts import OptimizerFacts
from dptune.trace import load

from .. import reading  # noqa: TID252 - tests are no installed package

SAMPLES = Path(__file__).resolve().parents[2] / "sample_traces"


def section(name: str, *, recorded: bool) -> str:
    report = reading.reported(SAMPLES / name) if recorded else report_of_traces(name)
    return sections(report, ["inferred"], 100)


def report_of_traces(name: str) -> Report:
    """With one rule: of what is inferred none says anything, and some replay the steps."""
    path, one_rule = SAMPLES / name, Settings(select=("DP501",))
    return build_report(reading.without_facts(load([path])), reading.measured_without_facts(path), one_rule)


def test_what_wraps_updates_and_feeds_the_model_of_a_trace() -> None:
    said = " ".join(section("gpu/ranks-nccl-ddp", recorded=False).split())
    assert said.startswith("Inferred from the trace of rank 0")
    assert "DDP 48 gradients in 2 buckets: 28.1 MiB, 20.0 MiB; gradient_as_bucket_view=False" in said
    assert "optimizer AdamW, foreach (medium confidence)" in said
    assert "parameters float32 (high confidence)" in said
    assert "autocast none (high confidence)" in said
    assert "debug options none (medium confidence)" in said
    assert "FSDP none (high confidence)" in said
    sharded = " ".join(section("gpu/ranks-nccl-fsdp", recorded=False).split())
    assert "FSDP fully_shard, 4 units; reshard_after_forward=True (medium confidence)" in sharded
    assert "DDP none (high confidence)" in sharded


def test_foreach_is_an_option_of_optimizers_of_torch_alone() -> None:
    made = {name: _optimizer(OptimizerFacts(name=name, foreach=False)) for name in ("SGD", "NorMuon")}
    assert made == {"SGD": "SGD, one tensor at a time (foreach=False)", "NorMuon": "NorMuon, one tensor at a time"}


def test_the_batch_size_of_a_trace_is_marked_as_inferred() -> None:
    report = report_of_traces("gpu/predict-base")
    found = {name: " ".join(sections(report, [name], 100).split()) for name in ("inferred", "efficiency", "input")}
    assert "batch 16 samples of 256 tokens per rank and backward pass (medium confidence). From" in found["inferred"]
    assert "token indices: 16 x 256; loss: 4,096 rows; copy to the device: 32.1 KiB" in found["inferred"]
    assert "per second (inferred batch size)" in found["efficiency"]
    assert "16 per step over all ranks (inferred)" in found["input"]
    assert re.fullmatch(r"~[\d,]+ samples/s", first_screen(report).rates[1])


def test_of_a_recording_nothing_is_inferred() -> None:
    assert section("healthy", recorded=True) == ""
