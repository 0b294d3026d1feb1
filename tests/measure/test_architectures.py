"""The architecture of a GPU by its kernels: names as libraries write them, and public traces that name the device."""

import pytest

from dptune.measure.device.architectures import architecture, architecture_of, latest
from dptune.measure.efficiency.peaks import peaks_of_architecture
from dptune.measure.views import view
from dptune.trace import load

from .. import reading  # noqa: TID252 - tests are no installed package
from .handmade import launched, measure_events, operator, python, step

HOPPER = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1"


@pytest.mark.parametrize(
    ("names", "text", "matrix_units"),
    [
        (["volta_sgemm_128x64_nn"], "Volta or later", None),
        (["volta_sgemm_128x64_nn", "turing_fp16_s1688gemm_fp16_128x128_ldg8_f2f_tn"], "Turing or later", None),
        (["ampere_sgemm_128x64_tn", "volta_sgemm_128x64_nn"], "Ampere or later", True),
        (["sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw"], "Ampere or later", True),
        (["cutlass::device_kernel<flash::FlashAttnFwdSm90<a>>", "ampere_sgemm_128x64_tn"], "Hopper", True),
        ([HOPPER], "Hopper", True),
        (["nvjet_tst_128x64", "cutlass3x_sm100_tensorop_gemm"], "Blackwell", True),
        (["Cijk_Ailk_Bljk_HHS_BH_MT128x128x32_gfx942"], "gfx942", True),
        (["triton_poi_fused_add_0", "void at::native::multi_tensor_apply_kernel<AdamFunctor>"], None, None),
        (["gemm_sm900", "xsm80b8", "adam_hoppers"], None, None),
        (["kernel_gfx90a", "kernel_gfx942"], None, None),  # they contradict each other
        ([HOPPER, "kernel_gfx942"], None, None),
    ],
)
def test_by_names(names, text, matrix_units):
    found = architecture(names)
    assert (found and found.text) == text
    assert (found and found.matrix_units) == matrix_units


@pytest.mark.parametrize(
    ("file", "least"),
    [
        ("kineto_resnet50_loader/234cf25_worker0.1623212756351.pt.trace.json.gz", "Volta or later"),  # V100
        pytest.param(  # unnamed, the same training
            "kineto_resnet50_loader/4a9c9ae_worker0.pt.trace.json.gz", "Volta or later", marks=pytest.mark.thorough
        ),
        ("single_gpu/29571b7_resnet_kineto.json.gz", "Turing or later"),  # 2080 Ti
        ("hta_training/b4b6dce_nccl_data.json.gz", "Ampere or later"),  # A100
        ("single_gpu/c4adadd_dcb0aa1a78e7_4399.1752181589589738346.pt.trace.json.gz", "Hopper"),  # H100
        ("b200_cuda_graph/06852f9_ref_ep_moe_fwd.json.gz", "Blackwell"),  # B200
        ("single_gpu_mi300/941dea2_train_resnet18.json.gz", None),  # MI300X: its kernels name no ISA
    ],
)
def test_public_traces(real_traces, file, least):
    (rank,) = load([real_traces / file]).ranks
    found = architecture_of(view(rank.rank, rank.light))
    assert (found and found.text) == least


def test_a_device_without_a_name(tmp_path):
    """Hopper devices differ in their peaks, gfx908 is one device; both have matrix units."""
    sizes = {"Input Dims": [[8, 8], [8, 8]], "Input type": ["c10::BFloat16"] * 2}
    events = [step(1, 0, 100), step(2, 100, 200), operator("aten::mm", 10, 14, **sizes)]
    found = measure_events(tmp_path, [*events, *launched(HOPPER, 11, 30, 40, 1)])
    assert found.matmul.tensor_cores
    assert found.efficiency.missing["mfu"] == (
        "the trace does not name the device; its kernels show Hopper, whose devices have 148 to 989.5 TFLOP/s in bf16"
    )
    assert [(trait.name, trait.value, trait.confidence) for trait in found.inferred.traits] == [
        ("GPU", "Hopper: 1 kernel is compiled for it", "high")
    ]
    (tmp_path / "amd").mkdir()
    amd = measure_events(tmp_path / "amd", [*events, *launched("Cijk_MI16x16_gfx908", 11, 30, 40, 1)])
    assert amd.efficiency.peak_flops_per_s == 92.3e12


def test_kernels_for_volta_leave_open_whether_there_are_tensor_cores(tmp_path):
    events = [step(1, 0, 100), step(2, 100, 200), *launched("volta_sgemm_64x64_nt", 11, 30, 40, 1)]
    found = measure_events(tmp_path, events).matmul
    assert (found.architecture, found.known("tensor_cores")) == ("Volta or later", None)
    assert found.missing["tensor_cores"] == "the trace does not name the device: pass `--gpu NAME`"
    (tmp_path / "hopper").mkdir()
    hopper = measure_events(tmp_path / "hopper", [*events, *launched(HOPPER, 41, 50, 60, 2)]).matmul
    assert (hopper.architecture, hopper.tensor_cores) == ("", True)


def test_architectures_have_the_peaks_of_their_devices():
    assert [each.flops_per_s / 1e12 for each in peaks_of_architecture("gfx942", "bf16")] == [980.6, 1307.4]
    assert peaks_of_architecture("Ampere", "bf16") == []


def test_compiled_code_and_graph_breaks(real_traces, tmp_path):
    """nanogpt calls 7 compiled functions; a break shows by the name of what follows it, if stacks were recorded."""
    (file,) = (real_traces / "nanogpt_adam_hook_h100").glob("3608dcf*")
    traits = {trait.name: trait.value for trait in reading.measured(file).inferred.traits}
    assert traits["compiled calls"].startswith("7 per step (")
    assert "graph breaks" not in traits


def test_a_graph_break_by_what_follows_it(tmp_path):
    """Twice in a step, as torch 2.13 names it; one call of compiled code before, one after each."""
    resumed = "train.py(7): torch_dynamo_resume_in_forward_at_7"
    events = [step(1, 0, 100), step(2, 100, 200)]
    for start in (10, 50, 110, 150):
        events += [
            operator("TorchDynamo Cache Lookup", start, start + 5),
            operator("Torch-Compiled Region: 0/0", start + 5, start + 10),
            python(resumed, start + 12, start + 30),
            operator("Torch-Compiled Region: 1/0", start + 15, start + 20),
        ]
    traits = {trait.name: trait.value for trait in measure_events(tmp_path, events).inferred.traits}
    assert traits == {
        "compiled calls": "4 per step (2 functions); guards take 10 % of the step on the host",
        "graph breaks": "forward (train.py:7) 2 per step",
    }


def test_the_latest_architecture_of_any_rank_counts():
    volta, ampere, none = architecture(["volta_sgemm_128x64_tn"]), architecture(["ampere_sgemm_128x64_tn"]), None
    assert latest([none, volta, ampere]) == latest([ampere, none, volta]) == ampere
    assert latest([none]) is None
