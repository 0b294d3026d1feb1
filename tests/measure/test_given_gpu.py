"""`--gpu NAME`: the GPU model of traces that do not name it."""

from __future__ import annotations

from pathlib import Path

import pytest

from dptune.cli import main
from dptune.commands.shared.reading import measured_of
from dptune.measure import measure
from dptune.measure.efficiency.peaks import MODELS, NAMES, gpu_name, model_of, near_names
from dptune.measure.given_gpu import GIVEN, IGNORED, with_gpu
from dptune.runfile.facts import DeviceFacts, Facts
from dptune.trace.run import Run

from .handmade import Event, event, launched, load_events, operator, step

GIVEN_NAME = "V100-SXM2-16GB"
SGEMM, AMPERE, HOPPER = "volta_sgemm_128x64_nn", "ampere_sgemm_128x64_tn", "sm90_xmma_gemm_bf16bf16"


def events(kernel: str = SGEMM) -> list[Event]:
    """Two steps, with a product without a type in the first: 2 * 1000**3 FLOPs in a step of 1 ms."""
    product = operator("aten::mm", 10, 14, **{"Input Dims": [[1000, 1000], [1000, 1000]]})
    return [step(1, 0, 1000), step(2, 1000, 2000), product, *launched(kernel, 11, 30, 430, 1)]


def texts(run: Run, code: str) -> list[str]:
    return [finding.text for finding in run.findings if finding.code == code]


def test_a_given_model_has_its_peak_and_the_report_says_where_it_is_from(tmp_path: Path) -> None:
    run = with_gpu(load_events(tmp_path, events(), events()), GIVEN_NAME)
    found = measure(run)
    assert [rank.device_name for rank in found.ranks] == [GIVEN_NAME] * 2
    assert found.efficiency.peak_flops_per_s == pytest.approx(15.7e12)
    mean_flops = 2 * 1000**3 / found.efficiency.steps
    assert found.efficiency.mfu == pytest.approx(mean_flops / (found.efficiency.step_ns / 1e9) / 15.7e12)
    assert found.matmul.tensor_cores
    assert [rank.compute_capability for rank in found.ranks] == ["7.0"] * 2
    (text,) = texts(run, GIVEN)
    assert text == f"GPU of ranks 0-1: {GIVEN_NAME}, given with --gpu; the trace does not name it"
    assert not texts(run, IGNORED)


def test_listed_devices_without_names_are_named(tmp_path: Path) -> None:
    run = load_events(tmp_path, events(), deviceProperties=[{"id": 0, "name": "", "computeMajor": 7}])
    assert measure(with_gpu(run, GIVEN_NAME)).efficiency.peak_flops_per_s == pytest.approx(15.7e12)


@pytest.mark.parametrize(
    ("name", "kernel", "listed", "why"),
    [
        (GIVEN_NAME, SGEMM, {"name": "NVIDIA A100-SXM4-80GB"}, "the trace names NVIDIA A100-SXM4-80GB"),
        (
            GIVEN_NAME,
            SGEMM,
            {"name": "", "computeMajor": 8, "computeMinor": 6},
            "the trace lists compute capability 8.6",
        ),
        (GIVEN_NAME, AMPERE, {}, "the kernels show Ampere or later"),
        ("RTX 5090", HOPPER, {}, "the kernels show Hopper"),
        ("MI300X", SGEMM, {}, "the trace is of a cuda device"),
    ],
)
def test_what_the_trace_shows_wins(tmp_path: Path, name: str, kernel: str, listed: dict[str, object], why: str) -> None:
    header = {"deviceProperties": [{"id": 0, **listed}]} if listed else {}
    run = load_events(tmp_path, events(kernel), **header)
    found = with_gpu(run, name)
    assert texts(found, IGNORED) == [f"--gpu {name} is ignored for rank 0: {why}"]
    assert not texts(found, GIVEN)
    assert found.ranks[0].light.devices == run.ranks[0].light.devices


@pytest.mark.parametrize(
    ("name", "kernel", "why"),
    [
        ("T4", "my_gemm", ""),  # no name of an architecture
        ("MI300X", SGEMM, "the kernels show Volta or later"),
        ("T4", AMPERE, "the kernels show Ampere or later"),
    ],
)
def test_kernels_alone_contradict_a_model_by_their_names_only(tmp_path: Path, name: str, kernel: str, why: str) -> None:
    """Without the calls that launch them the trace shows no vendor."""
    run = with_gpu(load_events(tmp_path, [event("kernel", kernel, 30, 40, device=0, stream=7)]), name)
    assert texts(run, IGNORED) == ([f"--gpu {name} is ignored for rank 0: {why}"] if why else [])
    assert len(texts(run, GIVEN)) == (not why)


def test_kernels_of_amd_fit_the_models_of_their_architecture(tmp_path: Path) -> None:
    alone = [event("kernel", "Cijk_Ailk_SB_MT64_gfx942", 30, 40, device=0, stream=7)]
    run = load_events(tmp_path, alone)
    assert texts(with_gpu(run, "MI325X"), GIVEN)
    assert texts(with_gpu(run, "MI210"), IGNORED) == ["--gpu MI210 is ignored for rank 0: the kernels show gfx942"]


def test_a_recorded_name_wins_and_the_same_model_needs_no_word(tmp_path: Path) -> None:
    run = load_events(tmp_path, events())
    run.facts[0] = Facts(rank=0, device=DeviceFacts(kind="cuda", name="Tesla V100-SXM2-32GB"))
    assert with_gpu(run, GIVEN_NAME).findings == run.findings
    text = "--gpu T4 is ignored for rank 0: the recording names Tesla V100-SXM2-32GB"
    assert texts(with_gpu(run, "T4"), IGNORED) == [text]


def test_a_cpu_has_no_gpu_model_and_a_warning_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    load_events(tmp_path, [step(1, 0, 100), step(2, 100, 200), operator("aten::mm", 10, 14)])
    _, found = measured_of([tmp_path], cached=False, gpu="T4")
    assert found.ranks[0].known("device_name") is None
    printed = capsys.readouterr().err
    assert "dptune: warning: --gpu T4 is ignored for rank 0: the trace has no GPU kernels\n" in printed


def test_each_row_of_peaks_has_a_name() -> None:
    assert {id(model_of(name)) for name in NAMES} == {id(model) for model in MODELS}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Tesla V100-SXM2-16GB", "Tesla V100-SXM2-16GB"),
        ("v100 sxm2 16gb", "v100-sxm2-16gb"),
        ("H100-SXM5", "H100 SXM5"),
        ("RTX_4090", "RTX 4090"),
        ("V100", None),
        ("A100\n", None),
        ("A100 MIG 1g.5gb", None),
        ("", None),
        ("A100" + " " * 99, None),
    ],
)
def test_spellings(text: str, name: str | None) -> None:
    assert gpu_name(text) == name


@pytest.mark.parametrize(
    ("text", "near"),
    [
        ("V100", ["V100S", "V100-SXM2", "V100-PCIE"]),
        ("NVIDIA H100", ["H100 PCIe", "H100 NVL", "H100 80GB HBM3"]),
        ("RTX4090", ["RTX 4090"]),
        ("A100 MIG 1g.5gb", []),
        ("potato", []),
        ("", []),
    ],
)
def test_near_names(text: str, near: list[str]) -> None:
    assert near_names(text) == near


@pytest.mark.parametrize("command", ["report", "check", "whatif"])
def test_a_name_that_is_no_one_model_ends_in_a_sentence(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--gpu", "V100"]) == 2
    printed = capsys.readouterr()
    known = "did you mean V100S, V100-SXM2, V100-PCIE?"
    assert f"argument --gpu: 'V100' is not a GPU with known peaks: {known}" in printed.err
    assert printed.out == ""
