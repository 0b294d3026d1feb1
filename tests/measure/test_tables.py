"""Kernels, collectives and copies of public traces without steps, beside the manifest's plain reading of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dptune.present.html.page import page
from dptune.present.text import first_screen, text

from .. import reading  # noqa: TID252 - tests are no installed package
from .handmade import measure_events

SAMPLES = Path(__file__).resolve().parents[2] / "sample_traces"
SERVED = "inference_graphs/b6a467c_sglang_Qwen3-8B_decode.json.gz"


@pytest.mark.parametrize(
    "file", [SERVED, "gpu_only_mi210/d1472ed_gpu_only_trace.json.gz", "hta_small/8fb4fb8_inference_rank_1.json.gz"]
)
def test_tables_are_of_the_whole_recording_where_it_has_no_steps(real_traces: Path, file: str) -> None:
    (entry,) = [one for one in json.loads((real_traces / "MANIFEST.json").read_text()) if one["file"] == file]
    measured = reading.measured(real_traces / file)
    assert measured.tables_of == "recording"
    assert measured.known("account") is None
    assert measured.kernels.per_step == entry["gpu_kernels"]
    assert measured.kernels.total_ns / 1e3 == pytest.approx(entry["interval_union_figures"]["compute_us"], abs=0.1)
    assert measured.collectives == []
    copied = sum(copy.calls for copy in measured.copies)
    assert copied == entry["interval_union_figures"]["gpu_events"] - entry["gpu_kernels"]


def test_collectives_of_a_cpu_without_steps(real_traces: Path) -> None:
    measured = reading.measured(real_traces / "cpu_only" / "3b2ac16_ref.json")
    assert [(row.kind, row.calls_per_step) for row in measured.collectives] == [("all_reduce", 1), ("broadcast", 1)]


def test_tables_of_a_run_with_steps_are_of_these() -> None:
    measured = reading.measured(SAMPLES / "healthy")
    assert measured.tables_of == "steps"


def test_a_report_without_steps_says_why_and_has_the_tables(real_traces: Path) -> None:
    report = reading.reported(real_traces / SERVED)
    assert report.headline.why == (
        "No steps were found: no ProfilerStep marks, fewer than two optimizer steps, and no backward pass (this looks "
        "like inference)."
    )
    assert report.measured.missing["launching"] == report.measured.missing["account"]
    first = first_screen(report, 100)
    assert "paged_attention_ll4mi_QKV" in first
    assert "Collectives" not in first
    whole = text(report)
    for title in ("Kernels", "Collectives", "Copies"):
        assert f"\n{title} in the whole recording (traced" in whole
    assert "Calls             555, median 5.17 us" in whole
    assert "per step" not in whole.partition("Collectives in the whole")[2].partition("\n\nMemory")[0]
    assert {skip.needs for skip in report.skipped} == {"", "recording"}
    assert "Kernels in the whole recording (traced times)" in page(report)


def test_operations_without_duration_have_no_tables(tmp_path: Path) -> None:
    copy = {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD (Pageable -> Device)", "pid": 0, "tid": 7, "ts": 5}
    measured = measure_events(tmp_path, [copy | {"dur": 0, "args": {"device": 0, "stream": 7, "bytes": 64}}])
    assert measured.tables_of == "steps"
    assert measured.known("copies") is None
