"""MFU on CPUs, by hand: FLOPs of two products, peaks that ranks measured, and what makes such a peak unusable."""

from __future__ import annotations

import shutil
from math import inf, nan
from pathlib import Path

import pytest

from dptune.measure import measure
from dptune.measure.device import operator_kinds
from dptune.measure.efficiency.measured_peaks import (
    NOT_MEASURED,
    NOT_RECORDED,
    NOT_WANTED,
    TOO_OLD,
    MeasuredPeaks,
    measured_peaks,
)
from dptune.measured import EfficiencyFigures
from dptune.runfile import json_files, paths
from dptune.runfile.cpu_peak import CpuPeakFacts, DtypePeakFacts
from dptune.runfile.facts import DeviceFacts, Facts
from dptune.runfile.load import LoadFacts
from dptune.runfile.record import RunRecord
from dptune.trace import load

from .handmade import operator, step, write

S = 10**9
STEP_US = 1000


def product(start: float, rows: int, inner: int, columns: int, kind: str = "float") -> dict[str, object]:
    dims, types = [[rows, inner], [inner, columns]], [kind, kind]
    return operator("aten::mm", start, start + 100, **{"Input Dims": dims, "Input type": types})


def load_of(machine_s: float, job_s: float, waited_s: float) -> LoadFacts:
    return LoadFacts(S, 2, machine_ns=round(machine_s * S), job_ns=round(job_s * S), waited_ns=round(waited_s * S))


def peak(*dtypes: tuple[str, float], ranks: int = 1, expected: int = 1, load: LoadFacts | None = None) -> CpuPeakFacts:
    found = [DtypePeakFacts(name, rate, 1024, 9) for name, rate in dtypes]
    return CpuPeakFacts(1, ranks, expected, found, load)


def measured(
    folder: Path, cpu_peak: CpuPeakFacts | None, *more: dict[str, object], asked: bool | None = True
) -> EfficiencyFigures:
    """Three steps of 1 ms, the last of which has no end, with a product of 2 x 100 x 50 x 20 FLOPs each."""
    events = [
        each
        for number in range(3)
        for each in (
            step(number + 1, number * STEP_US, (number + 1) * STEP_US),
            product(number * STEP_US + 10, 100, 50, 20),
        )
    ]
    folder.mkdir(exist_ok=True)
    light = folder / "rank-00000.trace.json.gz"
    write(light, [*events, *more], distributedInfo={"rank": 0, "world_size": 1, "backend": "gloo"})
    shutil.copy(light, folder / "rank-00000.detail.trace.json.gz")
    device = DeviceFacts("cpu", name="A processor", torch_threads=1)
    json_files.write(paths.facts(folder, 0), Facts(0, host="a", device=device, cpu_peak=cpu_peak))
    json_files.write(folder / "run.json", RunRecord(world_size=1, cpu_peak=asked))
    return measure(load([folder])).efficiency


def test_mfu_by_hand(tmp_path: Path) -> None:
    """200,000 FLOPs in 1 ms are 0.2 GFLOP/s: a tenth of 2 GFLOP/s."""
    found = measured(tmp_path / "run", peak(("float32", 2e9)))
    assert found.flops_per_step == found.model_flops_per_step == 2 * 100 * 50 * 20
    assert found.step_ns == STEP_US * 1000
    assert found.mfu == found.hfu == pytest.approx(0.1)
    assert (found.peak_flops_per_s, found.peak_basis) == (pytest.approx(2e9), "measured")
    (dtype,) = found.dtypes
    source = "measured after the recorded steps: products of 1,024 x 1,024 matrices, 1 thread"
    assert (dtype.dtype, dtype.source) == ("fp32", source)
    assert (found.bound, found.peak_disturbed) == ("", False)
    assert "not counted" in found.missing["peak_withheld_share"]


def test_memory_bound_operators_by_hand(tmp_path: Path) -> None:
    """Of 1,000 us 200 in an addition, with a copy of 50 inside, and 40 in a loss: views and products do not count.

    The copy inside the collective is communication.
    """
    more = [
        each
        for at in (0, STEP_US, 2 * STEP_US)
        for each in (
            operator("aten::add_", at + 300, at + 500),
            operator("aten::copy_", at + 310, at + 360),
            operator("aten::select", at + 500, at + 530),
            operator("aten::nll_loss_forward", at + 600, at + 640),
            operator("gloo:all_reduce", at + 700, at + 800),
            operator("aten::copy_", at + 710, at + 790),
        )
    ]
    found = measured(tmp_path / "run", peak(("float32", 2e9)), *more)
    assert found.memory_bound_share == pytest.approx(0.24)


@pytest.mark.parametrize(
    ("name", "bound"),
    [
        *(
            (f"aten::{name}", True)
            for name in ("add", "mul_", "copy_", "_to_copy", "sum", "native_layer_norm_backward")
        ),
        *(
            (f"aten::{name}", True)
            for name in ("_softmax_backward_data", "threshold_backward", "embedding_dense_backward")
        ),
        *((f"aten::{name}", True) for name in ("max_pool2d_with_indices", "_fused_adamw_", "_foreach_addcdiv_")),
        *(
            (f"aten::{name}", True)
            for name in ("_index_put_impl_", "slice_backward", "binary_cross_entropy_with_logits")
        ),
        *((f"aten::{name}", False) for name in ("mm", "addmm", "linear", "convolution", "view", "slice", "select")),
        *((f"aten::{name}", False) for name in ("sort", "topk", "empty", "linalg_svd", "_efficient_attention_forward")),
        *((f"aten::{name}", False) for name in ("mkldnn_rnn_layer", "addbmm", "matmul", "as_strided", "expand")),
        ("AddBackward0", False),
        ("my::add", False),
    ],
)
def test_which_operators_are_memory_bound(name: str, bound: bool) -> None:
    assert (operator_kinds._MEMORY_BOUND.match(name) is not None) is bound


def test_a_mix_of_dtypes_by_hand(tmp_path: Path) -> None:
    """The least time of a step: 200,000 / 2e9 s in fp32 and 800,000 / 16e9 s in bf16, 150 us of 1,000 us."""
    extra = [product(number * STEP_US + 300, 100, 100, 40, "c10::BFloat16") for number in range(3)]
    found = measured(tmp_path / "run", peak(("float32", 2e9), ("bfloat16", 16e9)), *extra)
    assert found.flops_per_step == 200_000 + 800_000
    assert found.mfu == pytest.approx(0.15)
    found = measured(tmp_path / "run", peak(("float32", 2e9)), *extra)
    assert found.missing["mfu"] == "no bf16 peak of the CPU was measured"


def test_more_than_the_measured_peak_is_no_utilization(tmp_path: Path) -> None:
    found = measured(tmp_path / "run", peak(("float32", 0.19e9)))
    assert found.missing["mfu"] == found.missing["hfu"]
    assert found.missing["mfu"].startswith("the counted FLOPs exceed the measured peak: the CPU was slower")
    assert found.peak_flops_per_s == pytest.approx(0.19e9)


@pytest.mark.parametrize("none", [None, peak(), *(peak(("float32", rate)) for rate in (0.0, inf, nan, 1e16))])
def test_recordings_without_a_measured_peak(tmp_path: Path, none: CpuPeakFacts | None) -> None:
    found = measured(tmp_path / "run", none)
    assert found.missing["mfu"] == (
        "no fp32 peak of the CPU was measured" if none is not None and none.dtypes else NOT_MEASURED.format(0)
    )
    assert found.known("peak_basis") is None


@pytest.mark.parametrize(("asked", "why"), [(False, NOT_WANTED), (None, TOO_OLD), (True, NOT_MEASURED.format(0))])
def test_why_a_recording_has_no_peak(tmp_path: Path, asked: bool | None, why: str) -> None:
    """Left out on purpose, recorded by an older version, or ended too early: each with how to get it."""
    found = measured(tmp_path / "run", None, asked=asked)
    assert found.missing["mfu"] == found.missing["peak_flops_per_s"] == why
    assert "record" in why.partition(": ")[2]
    assert len({NOT_WANTED, TOO_OLD, NOT_MEASURED}) == 3


def test_other_processes_make_it_an_upper_bound_and_then_no_figure(tmp_path: Path) -> None:
    """The rank ran 0.8 s, and waited 0.2 s while others ran: a fifth; then it ran 0.25 s and waited 0.75 s."""
    found = measured(tmp_path / "run", peak(("float32", 2e9), load=load_of(2.0, 0.8, 0.2)))
    assert found.peak_withheld_share == pytest.approx(0.2)
    assert (found.bound, found.mfu) == ("at most ", pytest.approx(0.1))
    found = measured(tmp_path / "run", peak(("float32", 2e9), load=load_of(2.0, 0.25, 0.75)))
    assert "withheld 75 % of the CPU time" in found.missing["mfu"]
    assert found.known("peak_flops_per_s") is None


def test_ranks_of_a_host_count_together() -> None:
    """Two ranks use one core each of two: nothing was withheld, though each sees twice its own time used."""
    facts = {
        rank: Facts(rank, host="a", cpu_peak=peak(("float32", 1e9), ranks=2, expected=2, load=load_of(2.0, 1.0, 0.1)))
        for rank in (0, 1)
    }
    found = measured_peaks(facts, 1, None)
    assert isinstance(found, MeasuredPeaks)
    assert (found.withheld_share, found.unusable) == (0.0, "")
    assert found.by_dtype["fp32"].source.endswith("1 thread, 2 ranks at once")
    facts[0].cpu_peak = None
    alone = measured_peaks(facts, 1, None)
    assert isinstance(alone, MeasuredPeaks)
    assert alone.withheld_share is None
    assert measured_peaks(facts, 0, None) == NOT_MEASURED.format(0)
    assert measured_peaks({}, 0, None) == NOT_RECORDED


@pytest.mark.parametrize(
    ("others", "at_once"),
    [
        ({}, "4 ranks at once"),  # only this rank's facts were read
        ({1: True, 2: True, 3: True}, "4 ranks at once"),
        ({1: True, 2: True, 3: False}, "3 of 4 ranks at once"),
        ({1: False, 2: False, 3: False}, "1 of 4 ranks at once"),
        ({1: False}, "3 of 4 ranks at once"),
    ],
)
def test_ranks_that_ended_before_they_measured_do_not_count(others: dict[int, bool], at_once: str) -> None:
    """All four ranks of the host came; those whose facts were read and hold no peak crashed before it."""
    whole = peak(("float32", 1e9), ranks=4, expected=4)
    facts = {0: Facts(0, host="a", cpu_peak=whole), 9: Facts(9, host="b", cpu_peak=whole)}
    facts |= {rank: Facts(rank, host="a", cpu_peak=whole if held else None) for rank, held in others.items()}
    found = measured_peaks(facts, 0, None)
    assert isinstance(found, MeasuredPeaks)
    assert found.by_dtype["fp32"].source.endswith(f"1 thread, {at_once}")


def test_ranks_that_measured_alone_are_named() -> None:
    found = measured_peaks({0: Facts(0, cpu_peak=peak(("bfloat16", 1e9), ranks=1, expected=4))}, 0, None)
    assert isinstance(found, MeasuredPeaks)
    assert found.by_dtype["bf16"].source.endswith("1 thread, 1 of 4 ranks at once")
