"""What a report says of facts that were inferred from a trace."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dptune.advise.engine import build_report
from dptune.config import Settings
from dptune.measure import measure
from dptune.present.text import sections
from dptune.trace import load

SAMPLES = Path(__file__).resolve().parents[2] / "sample_traces"


def section(name: str, *, recorded: bool) -> str:
    run = load([SAMPLES / name])
    run = run if recorded else replace(run, facts={}, record=None, repeats=[])
    return sections(build_report(run, measure(run), Settings()), ["inferred"], 100)


def test_what_wraps_updates_and_feeds_the_model_of_a_trace() -> None:
    said = " ".join(section("gpu/ranks-nccl-ddp", recorded=False).split())
    assert said.startswith("Inferred from the trace of rank 0")
    assert "DDP 48 gradients in 2 buckets: 28.1 MiB, 20.0 MiB; gradient_as_bucket_view=False" in said
    assert "optimizer AdamW, foreach (medium confidence)" in said
    assert "parameters float32 (high confidence)" in said
    assert "autocast none (high confidence)" in said
    assert "debug options none seen in the trace (medium confidence)" in said
    assert "FSDP none (high confidence)" in said
    sharded = " ".join(section("gpu/ranks-nccl-fsdp", recorded=False).split())
    assert "FSDP fully_shard, 4 units; reshard_after_forward=True (medium confidence)" in sharded
    assert "DDP none (high confidence)" in sharded


def test_of_a_recording_nothing_is_inferred() -> None:
    assert section("healthy", recorded=True) == ""
