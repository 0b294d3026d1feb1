"""FLOPs of recorded models: as torch's own counter has them, by hand, and of public traces by hand; and peaks.

The models are those of `counted_models.py`, recorded with torch.profiler and counted by FlopCounterMode.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from dptune.measure import measure
from dptune.measure.efficiency.figures import Steps
from dptune.measure.efficiency.peaks import MODELS, Model, peak
from dptune.measure.shared_gpus import SharedGpus, shared_gpus
from dptune.measure.views import view
from dptune.measured import EfficiencyFigures, Missing, StepTime
from dptune.runfile.facts import DeviceFacts, Facts
from dptune.runfile.record import RunRecord
from dptune.testing import figures
from dptune.trace import load

from .. import forks, reading  # noqa: TID252 - tests are no installed package
from .handmade import annotation, kernel, launch, launched, load_events, measure_events, operator, step, write

RECORDED = Path(__file__).parents[1] / "rules" / "recorded" / "runs"
WITHOUT_COMPILER = Path(__file__).parents[1] / "without_compiler"
SAMPLES = Path(__file__).resolve().parents[2] / "sample_traces" / "gpu"
STEPS_READ = 2  # of three: the last has no end
WIDTH, TOKENS, LENGTH, BATCH, WORDS = 32, 32, 16, 2, 1024
BLOCK = WIDTH * 3 * WIDTH + WIDTH * WIDTH + 2 * WIDTH * 4 * WIDTH  # weights
ATTENTION = 4 * BATCH * LENGTH * LENGTH * WIDTH  # scores and values, all heads
FORWARD = 2 * (2 * TOKENS * BLOCK + ATTENTION)  # of both blocks
MLP = 24 * 48 + 48 * 48 + 48 * 10
RESNET50, RESNET18, STEM = 4_089_184_256, 1_814_073_344, 118_013_952  # multiply-adds of an image of 224 x 224


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, EfficiencyFigures]:
    folder = tmp_path_factory.mktemp("models")
    script = Path(__file__).parent / "counted_models.py"
    environment = {**os.environ, "KINETO_LOG_LEVEL": "5", "PYTHONPATH": str(WITHOUT_COMPILER)}
    done = forks.run(str(script), str(folder), cwd=folder, env=environment)
    assert done.returncode == 0, done.stderr
    found = {path.stem: efficiency(path) for path in folder.glob("*.json") if path.stem != "counts"}
    counts = json.loads((folder / "counts.json").read_text())
    assert found.keys() == counts.keys()
    assert {figures.steps for figures in found.values()} == {STEPS_READ}
    found["counts"] = counts
    return found


def efficiency(path: Path) -> EfficiencyFigures:
    return reading.measured(path).efficiency


def a_step(found: EfficiencyFigures) -> float:
    return found.flops / found.steps


@pytest.mark.records
@pytest.mark.parametrize(
    "model",
    [
        *("mlp", "convolutions", "products", "transformer", "fused", "reentrant", "checkpointed"),
        *("checkpointed_fused", "optimizer", "closure"),
    ],
)
def test_flops_are_those_of_torchs_counter(recorded, model):
    found = recorded[model]
    assert a_step(found) == recorded["counts"][model] == found.flops_per_step
    assert found.uncounted == []
    assert [kind.flops for kind in found.kinds] == sorted((kind.flops for kind in found.kinds), reverse=True)


@pytest.mark.records
def test_flops_by_hand(recorded):
    """The first layer needs no gradient of its input."""
    assert a_step(recorded["mlp"]) == 2 * 32 * (3 * MLP - 24 * 48)
    first = 8 * 10 * (3 * 8 * 25)  # 16 x 20 by strides of 2
    second = 8 * 10 * (8 * 8 * 9)  # padded by as much as three taps at distances of 2 reach
    up = 8 * 10 * (8 * 4 * 16)  # of the input
    line, out = 20 * (4 * 6 * 7), 6 * 10
    by_kind = {kind.kind: kind.flops / STEPS_READ for kind in recorded["convolutions"].kinds}
    assert by_kind["matrix product"] == 2 * 2 * 3 * out
    assert by_kind["convolution"] == 2 * 2 * (2 * first + 3 * (second + up + line))
    transformer = 3 * (FORWARD + 2 * TOKENS * WIDTH * WORDS)
    assert recorded["transformer"].model_flops_per_step == transformer
    assert a_step(recorded["transformer"]) == transformer


@pytest.mark.records
def test_recomputation_is_in_hfu_only(recorded):
    """All these train the same model: its FLOPs are the same, whatever computes its attention and is computed again."""
    plain = recorded["transformer"].model_flops_per_step
    scores = 2 * ATTENTION // 2  # of both blocks
    for name, again in {
        "transformer": 0,
        "fused": scores,
        "reentrant": FORWARD,
        "checkpointed": FORWARD,
        "checkpointed_fused": FORWARD + scores,
    }.items():
        found = recorded[name]
        assert found.model_flops_per_step == plain
        assert found.recomputed_flops == again * STEPS_READ
    assert {kind.kind for kind in recorded["fused"].kinds} == {"matrix product", "attention"}


@pytest.mark.records
def test_what_differs_from_torchs_counter(recorded):
    """Weight gradients of groups; and the operator at which recomputation stops: a CPU's trace shows it as called."""
    forward = 2 * 2 * 7 * 7 * (16 * 2 * 9)
    assert a_step(recorded["grouped"]) == 2 * forward
    assert recorded["counts"]["grouped"] == forward + 4 * forward
    assert a_step(recorded["stopped"]) - recorded["counts"]["stopped"] == 2 * 2 * TOKENS * 4 * WIDTH * WIDTH


@pytest.mark.records
def test_products_of_an_optimizer_are_not_the_models(recorded):
    found, plain = recorded["optimizer"], recorded["mlp"]
    weights = [(48, 24), (48, 48), (10, 48)]
    assert found.optimizer_flops / STEPS_READ == sum(4 * rows * rows * columns for rows, columns in weights)
    assert found.model_flops_per_step == plain.model_flops_per_step


@pytest.mark.records
def test_passes_in_a_closure_are_the_models(recorded):
    """Lightning gives each step a closure with its forward and backward pass."""
    found, plain = recorded["closure"], recorded["mlp"]
    assert found.optimizer_flops == 0
    assert found.model_flops_per_step == plain.model_flops_per_step


@pytest.mark.records
def test_a_trace_has_no_peak_of_a_cpu(recorded):
    found = recorded["mlp"]
    assert found.flops_per_s == pytest.approx(found.flops_per_step / found.step_ns * 1e9)
    for name in ("mfu", "hfu", "peak_flops_per_s"):
        assert found.missing[name].startswith("a torch.profiler trace does not show the peak of a CPU")


@pytest.mark.parametrize(
    ("file", "model_flops", "peak_tflops"),
    [
        ("kineto_resnet50_loader/234cf25_worker0.1623212756351.pt.trace.json.gz", 64 * (3 * RESNET50 - STEM), 15.7),
        ("kineto_resnet50_loader/2d19c63_worker0.pt.trace.json.gz", 64 * (3 * RESNET50 - STEM), None),
        ("single_gpu_mi300/941dea2_train_resnet18.json.gz", 1024 * (3 * RESNET18 - STEM), 1307.4),
        ("single_gpu/7cb8af7_trace.json.gz", 100 * 2 * 512 * 512, None),  # no steps: 100 products with a vector
        (
            "handmade/ac8c383_moe_01_many_experts_few_tokens.json.gz",  # no steps: three calls of a layer of experts
            3 * 2 * (16 * 512 * 64 + 2 * 32 * 512 * 1024),
            2250,
        ),
        (
            "single_gpu/d4c3f21_trace_04.json.gz",  # 4 layers of 512, 8192 words, 4 x 256 tokens: 6ND and attention
            6 * 1024 * (4 * (4 * 512 * 512 + 2 * 512 * 2048) + 512 * 8192) + 4 * 12 * 4 * 256 * 256 * 512,
            12.7,
        ),
    ],
)
def test_public_traces_by_hand(real_traces, file, model_flops, peak_tflops):
    found = efficiency(real_traces / file)
    assert found.model_flops_per_step == pytest.approx(model_flops, rel=1e-12)
    assert found.known("peak_flops_per_s") == (peak_tflops and pytest.approx(peak_tflops * 1e12))
    assert found.counted_share == pytest.approx(1, abs=1e-3)
    assert not found.lower_bound
    if peak_tflops:
        assert found.mfu == pytest.approx(model_flops / found.step_ns / peak_tflops / 1e3)
        assert found.mfu <= found.hfu < 1


def test_nanogpt_on_eight_gpus_by_hand(real_traces):
    """6ND of 16,384 tokens a rank, a head in fp8, gates, and Muon's products beside the model's.

    Attention is over packed documents, whose lengths no trace has: it is not counted, and the report says so.
    """
    found = efficiency(real_traces / "nanogpt_8xh100/42f4e74_Baseline_-_12-11_-_e049e-rank0-chrome-trace.json.gz")
    tokens, width = 16_384, 768
    layers = 10 * (4 * width * width + 12 * 6) + 11 * 2 * width * 4 * width
    gate = 12 * (tokens - 1)
    model = 6 * (tokens * (layers + width * 50_304) + gate)
    assert found.model_flops_per_step == model
    assert {each.dtype: each.flops / 4 for each in found.dtypes} == {
        "bf16": found.flops / 4 - 6 * tokens * width * 50_304,
        "fp8": 6 * tokens * width * 50_304,
    }
    muon = 5 * 2 * (12 + 2 * 6 * 6 * 12 + 8 * width**3 + 2 * width * width * 4 * width)
    assert found.optimizer_flops == 4 * muon
    least_s = sum(each.flops / each.peak_flops_per_s for each in found.dtypes)
    assert found.peak_flops_per_s == pytest.approx(found.flops / least_s)
    assert found.lower_bound
    assert found.uncounted == ["flash_attn_3::_flash_attn_backward", "flash_attn_3::_flash_attn_forward"]
    assert 0.2 < found.mfu < found.hfu < 0.25
    assert found.total_flops_per_s == pytest.approx(8 * found.flops_per_s)


def product(start, rows, inner, columns, kind="float", name="aten::mm", thread=1, **more):
    dims, types = [[rows, inner], [inner, columns]], [kind, kind]
    return operator(name, start, start + 4, thread=thread, **{"Input Dims": dims, "Input type": types, **more})


GEMM = "ampere_sgemm_128x64_tn"
TF32 = "ampere_s1688gemm_128x64_ldg8_f2f_tn"


def test_a_gpu_by_hand(tmp_path):
    """Types by what the kernels ran on, the innermost of operators, and one that launched nothing."""
    events = [
        step(1, 0, 100),
        step(2, 100, 200),
        operator("aten::linear", 9, 20, **{"Input Dims": [[80, 80], [80, 80]], "Input type": ["float", "float"]}),
        product(10, 8, 8, 8),
        *launched(GEMM, 11, 30, 40, 1),
        product(14, 8, 8, 8),
        *launched(TF32, 15, 50, 55, 2),
        product(21, 1000, 1000, 1000),  # on the CPU
        product(110, 8, 8, 16),
        *launched(GEMM, 111, 130, 150, 3),
    ]
    found = measure_events(tmp_path, events).efficiency
    assert found.flops == 2 * 2 * 8**3 + 2 * 8 * 8 * 16
    (kind,) = found.kinds
    assert kind.time_ns == 35_000
    assert kind.flops_per_s == pytest.approx(found.flops / 35e-6)
    assert found.counted_share == 1
    assert found.missing["mfu"].startswith("the trace does not name the device; its kernels show Ampere or later")


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("aten::mm", {"Input Dims": [[8, 9], [8, 8]]}),
        ("aten::mm", {"Input Dims": [[8, -8], [8, 8]]}),
        ("aten::mm", {"Input Dims": [[10**9, 10**9], [10**9, 8]]}),
        ("aten::mm", {"Input Dims": ["x", [8, 8]], "Input type": 7}),
        ("aten::bmm", {"Input Dims": [[2, 8, 8]]}),
        ("aten::convolution", {"Input Dims": [[1, 8, 8, 8], [8, 8, 3, 3]], "Concrete Inputs": ["", "", "", "[0]"]}),
        (
            "aten::convolution",
            {
                "Input Dims": [[1, 8, 8, 8], [8, 8, 3, 3]],
                "Concrete Inputs": ["", "", "", "[0]", "[0]", "[1]", "False"],  # a stride of 0
            },
        ),
        ("aten::convolution_backward", {"Input Dims": [[1, 8, 8, 8], [1, 8, 8, 8], [8, 8, 3, 3]]}),
        ("aten::convolution_backward", {"Input Dims": [[1, 8, 8, 8], [1, 8, 8, 8]]}),
        ("aten::_flash_attention_forward", {"Input Dims": [[99, 8, 8], [99, 8, 8], [99, 8, 8], [4]]}),
        ("some::flash_attention", {"Input Dims": [[1, 8, 8, 8]]}),
    ],
)
def test_what_cannot_be_counted_is_named(tmp_path, name, args):
    events = [step(1, 0, 100), step(2, 100, 200), operator(name, 10, 14, **args), *launched(GEMM, 11, 30, 40, 1)]
    found = measure_events(tmp_path, events).efficiency
    assert found.uncounted == [name]
    assert found.missing["mfu"] == f"the sizes of these operators are not known: {name}"


TOKENS_PACKED, HEADS, DIM = 96, 4, 16
PACKED = [[TOKENS_PACKED, HEADS, DIM]] * 3
BOUNDS = [4]  # of three sequences


def test_a_product_without_a_type_that_ran_on_tensor_cores_has_no_peak(tmp_path):
    """On an A100 it may be of TF32, fp16 or bf16."""
    sizes = {"Input Dims": [[8, 8], [8, 8]]}
    events = [step(1, 0, 100), step(2, 100, 200), operator("aten::mm", 10, 14, **sizes), *launched(TF32, 11, 30, 40, 1)]
    found = measure_events(tmp_path, events, deviceProperties=[{"id": 0, "name": "NVIDIA A100-SXM4-80GB"}]).efficiency
    (dtype,) = found.dtypes
    assert dtype.missing["peak_flops_per_s"] == "the trace does not name the element type"
    assert found.known("mfu") is None


def test_steps_of_more_operators_than_are_read_are_left_out(tmp_path, monkeypatch):
    """Two products in each of four steps, of which the last has no end: of three steps, two fit."""
    events = [step(number, 100 * number, 100 * number + 100) for number in range(4)]
    for at in (10, 20, 110, 120, 210, 220, 310, 320):
        events += [product(at, 8, 8, 8), *launched(GEMM, at + 1, at + 2, at + 5, at)]
    run = load_events(tmp_path, events)
    assert measure(run).efficiency.steps == 3
    monkeypatch.setattr("dptune.measure.efficiency.counting._MOST", 5)
    found = measure(run).efficiency
    assert (found.steps, found.flops) == (2, 2 * 2 * 2 * 8**3)


def bare(*values):
    """`Concrete Inputs`: tensors are empty."""
    return ["" if value is None else str(value) for value in values]


@pytest.mark.parametrize(
    ("name", "dims", "values", "flops"),
    [
        # three sequences of 32: 2 products of 32 x 32 pairs and 16 wide, 4 heads
        (
            "aten::_flash_attention_forward",
            [*PACKED, BOUNDS, BOUNDS],
            bare(*[None] * 5, 32, 32),
            3 * 4 * 4 * 32**2 * 16,
        ),
        (
            "flash_attn::_flash_attn_varlen_forward",
            [*PACKED, BOUNDS, BOUNDS],
            bare(*[None] * 5, 32, 32),
            3 * 4 * 4 * 32**2 * 16,
        ),
        (
            "flash_attn::_flash_attn_varlen_backward",  # 5 products
            [PACKED[0], *PACKED, PACKED[0], [4, 96], *PACKED, BOUNDS, BOUNDS],
            bare(*[None] * 11, 32, 32),
            3 * 4 * 10 * 32**2 * 16,
        ),
        (
            "aten::_efficient_attention_forward",  # a batch of one
            [*[[1, *PACKED[0]]] * 3, [], BOUNDS, BOUNDS],
            bare(*[None] * 6, 32, 32),
            3 * 4 * 4 * 32**2 * 16,
        ),
        ("aten::_cudnn_attention_forward", [[2, 4, 32, 16]] * 3, [], 2 * 4 * 4 * 32**2 * 16),
        # 2 layers of LSTM, 8 and 16 wide: 4 gates; biases do not count
        (
            "aten::_cudnn_rnn",
            [[5, 3, 8], [[64, 8], [64, 16], [64], [64], [64, 16], [64, 16], [64], [64]], []],
            [],
            2 * 15 * 64 * (8 + 3 * 16),
        ),
        (
            "aten::_cudnn_rnn_backward",
            [[5, 3, 8], [[64, 8], [64, 16], [64], [64]], []],
            [],
            2 * 2 * 15 * 64 * (8 + 16),
        ),
        ("aten::mkldnn_rnn_layer", [[5, 3, 8], [64, 8], [64, 16], [64], [64]], [], 2 * 15 * 64 * (8 + 16)),
        ("aten::mkldnn_rnn_layer_backward", [[5, 3, 8], [64, 8], [64, 16]], [], 4 * 15 * 64 * (8 + 16)),
        ("aten::addmm_", [[8, 9], [8, 7], [7, 9]], [], 2 * 8 * 7 * 9),
        ("aten::addbmm", [[8, 9], [3, 8, 7], [3, 7, 9]], [], 3 * 2 * 8 * 7 * 9),
        ("aten::_scaled_mm_v2", [[8, 7], [7, 9], []], [], 2 * 8 * 7 * 9),
        ("_C::cutlass_scaled_mm", [[8, 9], [8, 7], [7, 9], [1], [1]], [], 2 * 8 * 7 * 9),
        ("fbgemm::f8f8bf16_rowwise", [[8, 7], [9, 7], [8], [9]], [], 2 * 8 * 7 * 9),
    ],
)
def test_operators_by_hand(tmp_path, name, dims, values, flops):
    args = {"Input Dims": dims, "Concrete Inputs": values}
    events = [step(1, 0, 100), step(2, 100, 200), operator(name, 10, 14, **args), *launched(GEMM, 11, 30, 40, 1)]
    found = measure_events(tmp_path, events).efficiency
    assert (found.flops, found.uncounted, found.packed) == (flops, [], [])


def test_packed_sequences_of_unknown_lengths_are_counted_at_least(tmp_path):
    """The longest of three has 48 tokens of 96: at least as much as for three of 32. A window is not counted at all."""
    name, dims = "flash_attn::_flash_attn_varlen_forward", [*PACKED, BOUNDS, BOUNDS]
    values = bare(*[None] * 5, 48, 48, 0.0, None, True, -1, -1)
    events = [step(1, 0, 100), step(2, 100, 200), *launched(GEMM, 11, 30, 40, 1)]
    called = operator(name, 10, 14, **{"Input Dims": dims, "Concrete Inputs": values})
    found = measure_events(tmp_path, [*events, called]).efficiency
    assert found.flops == 4 * 4 * (96 * 96 // 3) * 16
    assert found.packed == [name]
    assert found.lower_bound
    values[10] = "128"
    called = operator(name, 10, 14, **{"Input Dims": dims, "Concrete Inputs": values})
    (tmp_path / "windowed").mkdir()
    assert measure_events(tmp_path / "windowed", [*events, called]).efficiency.uncounted == [name]


def test_cells_of_recurrent_layers_multiply_nothing(tmp_path):
    """The products beside them are operators of their own."""
    cell = operator("aten::_thnn_fused_lstm_cell", 16, 18, **{"Input Dims": [[3, 64]] * 2})
    events = [step(1, 0, 100), step(2, 100, 200), product(10, 8, 8, 8), *launched(GEMM, 11, 30, 40, 1), cell]
    found = measure_events(tmp_path, events).efficiency
    assert (found.flops, found.uncounted) == (2 * 8**3, [])


def test_without_sizes_the_report_says_how_to_get_them(tmp_path):
    found = measure_events(tmp_path, [step(1, 0, 100), operator("aten::mm", 10, 14)]).efficiency
    assert "record_shapes=True" in found.missing["flops"]
    found = measure_events(tmp_path, [step(1, 0, 100), operator("aten::relu", 10, 14)]).efficiency
    assert found.missing["flops"] == "no matrix product, convolution or attention ran"


@pytest.mark.parametrize(
    ("host", "kernel", "why"),
    [
        ([], GEMM, "the trace lacks the host's operators, whose input sizes give the FLOPs"),
        ([operator("aten::relu", 10, 14)], GEMM, "no operator whose FLOPs are known launched the matrix kernels"),
        ([product(10, 8, 8, 8)], GEMM, "no operator whose FLOPs are known launched the matrix kernels"),
        ([operator("aten::relu", 10, 14)], "relu_kernel", "no matrix product, convolution or attention ran"),
    ],
)
@pytest.mark.parametrize("marked", [True, False])
def test_kernels_that_no_counted_operator_launched(tmp_path, host, kernel, why, marked):
    """Without steps, too, the reason fits what the same section shows of kernels: 30 of 100 us in one.

    Steps last until the next begins, a whole recording as long as its kernels.
    """
    marks = [step(1, 0, 100), step(2, 100, 200)] if marked else []
    found = measure_events(tmp_path, [*marks, *host, *launched(kernel, 21, 30, 60, 1)]).efficiency
    assert found.missing["mfu"].startswith(why)
    assert found.missing["mfu"] == found.missing["flops"]
    assert found.scope == ("steps" if marked else "recording")
    assert found.memory_bound_share == 0


@pytest.mark.parametrize(("name", "peak_tflops"), [("NVIDIA A100-SXM4-40GB", None), ("NVIDIA GeForce RTX 3060", 12.7)])
def test_products_of_fp32_that_may_have_run_in_tf32(tmp_path, name, peak_tflops):
    """The kernel's name shows neither; of an RTX 3060 both have one peak."""
    events = [step(1, 0, 100), step(2, 100, 200), product(10, 80, 80, 80), *launched("gemm", 11, 30, 40, 1)]
    found = measure_events(tmp_path, events, deviceProperties=[{"id": 0, "name": name}]).efficiency
    assert [each.dtype for each in found.dtypes] == ["fp32 or tf32"]
    assert found.known("peak_flops_per_s") == (peak_tflops and pytest.approx(peak_tflops * 1e12))
    if not peak_tflops:
        assert "do not show whether fp32 products ran in TF32" in found.missing["mfu"]


MI300X, MI250X = "AMD Instinct MI300X VF", "AMD Instinct MI250X"


@pytest.mark.parametrize(
    ("names", "ran_on", "name"),
    [([MI300X], 2, MI300X), ([MI300X, MI300X], 2, MI300X), ([MI300X, MI250X], 2, None), ([MI300X, MI250X], 1, MI250X)],
)
def test_a_list_of_one_device_names_that_of_another_number(tmp_path, names, ran_on, name):
    """ROCm lists device 0 where kernels ran on device 2; what names the device has its peak: MI300X 1307.4 TFLOP/s."""
    events = [step(1, 0, 100), step(2, 100, 200), product(10, 8, 8, 8, "c10::BFloat16"), launch(1, 11, 12)]
    events.append(kernel("gemm", 30, 40, 1, device=ran_on))
    header = {"deviceProperties": [{"id": at, "name": each} for at, each in enumerate(names)]}
    found = measure_events(tmp_path, events, **header)
    assert found.ranks[0].known("device_name") == name
    peaks = {MI300X: pytest.approx(1307.4e12), MI250X: pytest.approx(191.5e12), None: None}
    assert found.efficiency.known("peak_flops_per_s") == peaks[name]


def test_ranks_on_one_gpu_share_its_peak():
    """Two ranks on one H200: fp32 products at 67 TFLOP/s, attention in TF32 at 494.5, half of it for each rank."""
    measured = reading.measured(SAMPLES / "ranks-nccl-ddp")
    found = measured.efficiency
    assert [rank.gpu_ranks for rank in measured.ranks] == [[0, 1]] * 2
    assert found.sharing_ranks == 2
    flops = {each.dtype: each.flops for each in found.dtypes}
    of_gpu = sum(flops.values()) / (flops["fp32"] / 67e12 + flops["tf32"] / 494.5e12)
    assert found.peak_flops_per_s == pytest.approx(of_gpu / 2)
    of_both = 2 * found.flops_per_step / (found.step_ns / 1e9)
    assert found.hfu == pytest.approx(of_both / of_gpu)
    assert found.total_flops_per_s == pytest.approx(of_both)
    assert found.all_devices == 1


def test_gpus_are_counted_once():
    """Of six ranks 0 and 1 share a GPU, 3, 4 and 5 another, and 2 has its own."""
    time = figures(StepTime, basis="untraced", time_ns=10**6)
    shared = SharedGpus({0: [0, 1], 1: [0, 1], **{rank: [3, 4, 5] for rank in (3, 4, 5)}})
    steps = Steps(time, None, None, 6, 6, None, "", None, shared)
    assert steps.gpus == 3
    assert [steps.sharing_ranks(rank) for rank in range(6)] == [2, 2, 1, 3, 3, 3]
    assert replace(steps, world_size=None).gpus is None
    assert replace(steps, shared_gpus=SharedGpus(doubt="unknown")).gpus is None


def test_a_rank_whose_facts_lost_its_gpu_may_share_it():
    """The trace of rank 0 names the same device index on the same host as that of rank 1."""
    run = load([SAMPLES / "ranks-nccl-ddp"])
    lost = replace(run, facts={**run.facts, 0: replace(run.facts[0], device=None)})
    found = measure(lost).efficiency
    for figure in ("mfu", "hfu", "peak_flops_per_s", "all_devices"):
        assert found.missing[figure] == (
            "rank 0 may share a GPU with rank 1: its GPU was not recorded, so its share of the peak is unknown"
        )


GPU, UNNAMED = DeviceFacts("cuda", uuid="a"), DeviceFacts("cuda")


@pytest.mark.parametrize(
    ("devices", "hosts", "visible", "doubted"),
    [
        ((GPU, UNNAMED), "xx", (None, None), True),
        ((None, GPU), "xx", (None, None), True),
        ((GPU, UNNAMED), "xx", ("1", None), True),
        ((GPU, UNNAMED), "xx", ("1", "1"), True),
        ((GPU, UNNAMED), "xx", ("0", "1"), False),
        ((GPU, UNNAMED), "xy", (None, None), False),
        ((GPU, GPU), "xx", (None, None), False),
        ((UNNAMED, UNNAMED), "xx", (None, None), False),  # the recording names no GPU
    ],
)
def test_ranks_of_which_one_has_no_uuid(tmp_path, devices, hosts, visible, doubted):
    events = [step(1, 0, 100), *launched(GEMM, 11, 20, 30, 1)]
    views = [view(rank.rank, rank.light) for rank in load_events(tmp_path, events, events).ranks]
    facts = {}
    for rank, (device, devices_seen) in enumerate(zip(devices, visible, strict=True)):
        environment = {} if devices_seen is None else {"CUDA_VISIBLE_DEVICES": devices_seen}
        facts[rank] = Facts(rank, world_size=2, device=device, environment=environment)
    found = shared_gpus(facts, views, dict(enumerate(hosts)))
    assert bool(found.doubt) == doubted
    assert found.ranks == ({0: [0, 1], 1: [0, 1]} if devices == (GPU, GPU) else {})


@pytest.mark.parametrize(
    ("uuids", "hosts", "cards", "shared", "doubted"),
    [
        (("GPU-C7F8-A", "c7f8-a"), "xx", {}, True, False),
        (("c7f8-a", "c7f8-a"), "xy", {}, False, False),  # GPUs of two machines
        ((" ", " "), "xx", {}, False, False),
        ((" ", None), "xx", {"x": 1}, False, True),
        ((None, None), "xx", {"x": 2}, False, False),
        ((None, None), "xy", {"x": 1, "y": 1}, False, False),
    ],
)
def test_uuids_as_sources_write_them_and_cards_where_there_are_none(tmp_path, uuids, hosts, cards, shared, doubted):
    events = [step(1, 0, 100), *launched(GEMM, 11, 20, 30, 1)]
    views = [view(rank.rank, rank.light) for rank in load_events(tmp_path, events, events).ranks]
    facts = {rank: Facts(rank, world_size=2, device=DeviceFacts("cuda", uuid=uuid)) for rank, uuid in enumerate(uuids)}
    found = shared_gpus(facts, views, dict(enumerate(hosts)), cards)
    assert found.ranks == ({0: [0, 1], 1: [0, 1]} if shared else {})
    assert ("fewer GPUs of their host than ranks" in found.doubt) == doubted


@pytest.mark.thorough
def test_ranks_without_uuids_on_fewer_cards_may_share_one():
    """Its run.json has one GPU, and its two ranks, without UUIDs, ran on device 0 of one host."""
    run = load([SAMPLES / "ranks-nccl-ddp"])
    unnamed = {
        rank: replace(facts, device=replace(facts.device, uuid=None)) if facts.device else facts
        for rank, facts in run.facts.items()
    }
    measured = measure(replace(run, facts=unnamed))
    why = "rank 0 may share a GPU with rank 1: the recording has fewer GPUs of their host than ranks"
    assert measured.efficiency.shared_doubt == measured.efficiency.missing["mfu"] == why
    assert measured.efficiency.devices_between == [1, 2]


def test_gpus_of_the_same_index_are_not_taken_for_one_where_facts_are_lost_altogether(tmp_path):
    events = [step(1, 0, 100), *launched(GEMM, 11, 20, 30, 1)]
    views = [view(rank.rank, rank.light) for rank in load_events(tmp_path, events, events).ranks]
    assert shared_gpus({}, views, {}) == SharedGpus()
    found = shared_gpus({1: Facts(1, world_size=2, device=GPU)}, views, {})
    assert found.doubt.startswith("rank 0 may share")
    assert found.least == 1


def test_the_fewest_gpus_of_ranks_that_may_share(tmp_path):
    """On host x a GPU with a UUID and a rank that may be on it; on y two ranks whose GPUs have indices 0 and 1."""
    first = [step(1, 0, 100), *launched(GEMM, 11, 20, 30, 1)]
    second = [step(1, 0, 100), launch(1, 11, 12), kernel(GEMM, 20, 30, 1, device=1)]
    views = [view(rank.rank, rank.light) for rank in load_events(tmp_path, first, first, first, second).ranks]
    facts = {rank: Facts(rank, world_size=4, device=GPU if rank == 0 else UNNAMED) for rank in range(4)}
    found = shared_gpus(facts, views, dict(enumerate("xxyy")))
    assert (bool(found.doubt), found.least) == (True, 3)


@pytest.mark.parametrize(
    ("models", "differ"),
    [
        (("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"), True),
        (("NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB"), False),
        (("NVIDIA A100-SXM4-40GB", "Some GPU"), True),
        (("NVIDIA A100-SXM4-40GB", ""), False),
    ],
)
def test_no_peak_of_one_gpu_model_counts_for_ranks_on_others(tmp_path, models, differ):
    """2 GFLOP per step; an A100 computes 312 TFLOP/s in bf16."""
    events = [
        *(step(1, 0, 100), step(2, 100, 200), product(10, 1000, 1000, 1000, kind="c10::BFloat16")),
        *launched(TF32, 11, 20, 90, 1),
    ]
    for rank, name in enumerate(models):
        info = {"backend": "nccl", "rank": rank, "world_size": 2}
        write(tmp_path / f"{rank}.json", events, distributedInfo=info, deviceProperties=[{"id": 0, "name": name}])
    found = measure(load([tmp_path]))
    assert [rank.known("device_name") or "" for rank in found.ranks] == [*models]
    if differ:
        why = f"ranks compute on different GPU models, whose peaks differ: {' and '.join(sorted(models))}"
        assert {found.efficiency.missing[name] for name in ("mfu", "hfu", "peak_flops_per_s")} == {why}
        assert found.matmul.peaks == {}
    else:
        per_second = 1e9 / found.efficiency.step_ns
        assert found.efficiency.mfu == pytest.approx(2e9 / found.efficiency.steps * per_second / 312e12)
        assert found.matmul.peaks["bf16"] == 312e12
    assert found.efficiency.all_devices == 2


def test_sizes_of_no_real_tensors_are_refused(tmp_path):
    huge = [product(at, 2 * 10**5, 10**6, 10**6) for at in range(10, 90, 4)]
    found = measure_events(tmp_path, [step(1, 0, 100), *huge]).efficiency
    assert found.missing["flops"] == "operator input sizes are not those of real tensors"


def test_more_than_the_peak_is_no_utilization(tmp_path):
    """Less and more than an H100 computes in the step in bf16."""
    for columns, within in ((700, True), (2048, False)):
        events = [
            step(1, 0, 100),
            step(2, 100, 200),
            product(10, 8192, 5900, columns, kind="c10::BFloat16"),
            *launched(TF32, 11, 20, 90, 1),
        ]
        devices = [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}]
        found = measure_events(tmp_path, events, deviceProperties=devices).efficiency
        assert found.peak_flops_per_s == pytest.approx(989.5e12)
        if within:
            assert 0.4 < found.mfu == found.hfu < 1
        else:
            assert found.missing["mfu"] == found.missing["hfu"]
            assert found.missing["hfu"].startswith("the counted FLOPs exceed the device's peak")


def test_kernels_of_a_kind_above_the_peak_withhold_utilization(tmp_path):
    """Products of 67.7 GFLOP in 70 and in 40 us of a step of 100 us; an H100 computes 989.5 TFLOP/s in bf16."""
    for took_us, within in ((70, True), (40, False)):
        events = [
            step(1, 0, 100),
            step(2, 100, 200),
            product(10, 8192, 5900, 700, kind="c10::BFloat16"),
            *launched(TF32, 11, 20, 20 + took_us, 1),
        ]
        devices = [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}]
        found = measure_events(tmp_path, events, deviceProperties=devices).efficiency
        (kind,) = found.kinds
        assert kind.flops_per_s == pytest.approx(2 * 8192 * 5900 * 700 / (took_us * 1e-6))
        assert (kind.flops_per_s <= 989.5e12) is within
        assert found.known("flops_per_s") < 989.5e12
        assert (found.known("mfu") is not None) is (found.known("hfu") is not None) is within
        if not within:
            assert "matrix product kernels run at 1,691.6 TFLOP/s, above the peak of 989.5" in found.missing["mfu"]


def test_gradients_of_gradients_are_no_recomputation(tmp_path):
    """Operators of a backward pass with numbers of their own compute more than its forward pass did."""
    numbered = {"Sequence number": 7}
    events = [
        step(1, 0, 100),
        product(1, 8, 8, 8, **numbered),
        annotation("autograd::engine::evaluate_function: MmBackward0", 10, 30),
        product(11, 8, 8, 8, **numbered),
        product(16, 8, 8, 8, **numbered),
    ]
    found = measure_events(tmp_path, events).efficiency
    assert found.flops == 3 * 2 * 8**3
    assert "recomputation" in found.missing["model_flops_per_step"]
    with pytest.raises(Missing, match="recomputation"):
        assert found.mfu


@pytest.mark.parametrize(("same_size", "known"), [(False, True), (True, False)])
def test_gradients_with_a_graph_are_no_recomputation(tmp_path, same_size, known):
    """`create_graph=True`: gradients have numbers; one with the sizes of the forward pass might be recomputation."""
    numbered = {"Sequence number": 7}
    events = [
        step(1, 0, 100),
        product(1, 64, 8, 4, **numbered),
        annotation("autograd::engine::evaluate_function: MmBackward0", 10, 30),
        product(11, 8, 64, 4, **numbered),
        product(16, 64, 8, 4, **numbered) if same_size else product(16, 64, 4, 8, **numbered),
    ]
    found = measure_events(tmp_path, events).efficiency
    assert found.flops == 3 * 2 * 64 * 8 * 4
    assert found.known("recomputed_flops") == (0 if known else None)
    assert found.known("model_flops_per_step") == (found.flops if known else None)


def test_a_recomputed_convolution_has_its_number_outside(tmp_path):
    """The innermost operator counts, which runs below autograd: 2 x 8 outputs x 3 channels x 9 x 100 places."""

    def convolved(start, number):
        settings = ["", "", "", "[1, 1]", "[0, 0]", "[1, 1]", "False", "[0, 0]", "1"]
        sizes = {"Input Dims": [[1, 3, 12, 12], [8, 3, 3, 3], [8], *[[]] * 6], "Concrete Inputs": settings}
        return [
            operator("aten::convolution", start, start + 5, **sizes, **{"Sequence number": number}),
            operator("aten::_convolution", start + 1, start + 4, **sizes),
        ]

    node = annotation("autograd::engine::evaluate_function: CheckpointFunctionBackward", 10, 30)
    found = measure_events(tmp_path, [step(1, 0, 100), *convolved(1, 3), node, *convolved(12, 4)]).efficiency
    flops = 2 * 8 * 3 * 9 * 100
    assert (found.flops, found.recomputed_flops, found.model_flops_per_step) == (2 * flops, flops, flops)


def test_tokens_are_seen_where_attention_has_as_many_keys(tmp_path):
    def looked_up(start, words, batch, length):
        return operator("aten::embedding", start, start + 1, **{"Input Dims": [[words, 32], [batch, length]]})

    def softmax(start, keys):
        return operator("aten::_softmax", start, start + 1, **{"Input Dims": [[2, 4, 16, keys], [], []]})

    listed = [
        step(1, 0, 100),
        looked_up(1, 5000, 2, 16),
        looked_up(3, 16, 2, 16),
        softmax(5, 16),
        looked_up(7, 5000, 2, 16),
    ]
    run = measure_events(tmp_path, listed, listed)
    assert run.efficiency.tokens_per_step == 2 * 64
    assert run.efficiency.tokens_per_s == pytest.approx(128 / run.efficiency.step_ns * 1e9)
    without = measure_events(tmp_path, [listed[0], listed[1], softmax(5, 12)]).efficiency
    assert "--tokens-per-step" in without.missing["tokens_per_step"]


@pytest.mark.parametrize(
    "changed",
    [
        {"shapes": [[5000, 32], [32]]},  # indices of no sequences
        {"keys": [16, 16]},  # attention of two dimensions
        {"keys": None},
        {"second": 3},  # batches of different sizes
        {"second": 0},
        {"batch": 0, "second": 0},
        {"batch": 10**11, "second": 10**11},
    ],
)
def test_tokens_that_differ_or_cannot_be_right_are_not_counted(tmp_path, changed):
    """Unchanged: two steps with two sequences of 16 tokens each."""

    def tokens(keys=(2, 4, 16, 16), batch=2, second=2, shapes=None):
        events = []
        for at, sequences in ((0, batch), (100, second)):
            sizes = shapes or [[5000, 32], [sequences, 16]]
            softmax = {"Input Dims": [list(keys), [], []]} if keys else {}
            events += [
                step(at // 100, at, at + 100),
                operator("aten::embedding", at + 1, at + 2, **{"Input Dims": sizes}),
                operator("aten::_softmax", at + 5, at + 6, **softmax),
            ]
        return measure_events(tmp_path, events).efficiency.known("tokens_per_step")

    assert tokens() == 32
    assert tokens(**changed) is None


def test_tokens_given_to_a_recording_are_kept(tmp_path):
    """Those given to a report win; a number that cannot be right counts for nothing."""
    folder = shutil.copytree(RECORDED / "same-results", tmp_path / "run")
    written = json.loads((folder / "run.json").read_text())
    for given, asked, expected in ((4096, None, 4096), (4096, 512, 512), (-1, None, None), (10**13, None, None)):
        (folder / "run.json").write_text(json.dumps({**written, "tokens_per_step": given}))
        found = measure(load([folder], cached=False), tokens=asked).efficiency
        assert found.known("tokens_per_step") == expected
    assert found.missing["tokens_per_s"].endswith("(pass `--tokens-per-step N`)")


def test_samples_given_count_where_none_were_recorded():
    """Those of a report win over those of a recording, and what was recorded of loaders over both."""
    run = load([RECORDED / "same-results"])
    assert measure(replace(run, record=RunRecord(samples_per_step=256)), samples=64).samples_per_step == 512
    for given, asked, expected in ((256, None, 256), (256, 64, 64), (None, 64, 64), (-1, None, None)):
        found = measure(replace(run, facts={}, record=RunRecord(samples_per_step=given)), samples=asked)
        assert found.known("samples_per_step") == expected
        assert found.efficiency.known("samples_per_s") == (
            expected and pytest.approx(expected / found.efficiency.step_ns * 1e9)
        )
        assert not found.samples_inferred


def test_unknown_samples_name_the_option(tmp_path):
    found = measure_events(tmp_path, [step(1, 0, 100), step(2, 100, 200), *launched(GEMM, 11, 20, 60, 1)])
    assert found.efficiency.missing["samples_per_s"].endswith("(pass `--samples-per-step N`)")


def test_the_expression_of_a_row_is_compiled_where_a_name_is_looked_up():
    row = Model("h[12]00", {"fp32": 67}, (3350, 3350), "a datasheet")
    assert "name" not in vars(row)
    assert row.name.search("NVIDIA H100 PCIe")


def test_peaks_have_sources_and_are_dense():
    assert all(model.source and model.tflops for model in MODELS)
    for model in MODELS:
        rates = model.tflops
        assert all(math.isfinite(rate) and rate > 0 for rate in rates.values())
        if "fp8" in rates:  # twice the rate of 16 bits, in every vendor's table
            assert rates["fp8"] == pytest.approx(2 * rates["bf16"], rel=0.015), model.expression


@pytest.mark.parametrize(
    ("name", "dtype", "tflops"),
    [
        ("NVIDIA H100 80GB HBM3", "bf16", 989.5),
        ("NVIDIA H100 PCIe", "bf16", 756.5),
        ("NVIDIA H100 NVL", "fp16", 835.5),
        ("NVIDIA H200", "fp8", 1979),
        ("NVIDIA H200 NVL", "bf16", 835.5),
        ("NVIDIA GH200 480GB", "bf16", 989.5),
        ("NVIDIA B200", "bf16", 2250),
        ("NVIDIA GB200", "bf16", 2500),
        ("NVIDIA A100-SXM4-80GB", "tf32", 156),
        ("NVIDIA A100-PG509-200", "bf16", 312),
        ("NVIDIA A100 80GB PCIe", "fp32", 19.5),
        ("Tesla V100-SXM2-16GB", "fp16", 125),
        ("Tesla V100-PCIE-16GB", "fp16", 112),
        ("AMD Instinct MI300X VF", "bf16", 1307.4),
        ("AMD Instinct MI250X", "bf16", 191.5),
        ("NVIDIA L4", "bf16", 121),
        ("NVIDIA L40S", "bf16", 362),
        ("NVIDIA A10", "bf16", 125),
        ("Tesla T4", "fp16", 65),
        ("NVIDIA GeForce RTX 3090", "bf16", 71),
        ("NVIDIA GeForce RTX 4090", "bf16", 165.2),
        ("Tesla T4", "bf16", None),
        ("NVIDIA A10G", "bf16", None),
        ("NVIDIA H100", "bf16", None),  # which of its forms is not known
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "bf16", None),
        ("NVIDIA GeForce RTX 3080 Laptop GPU", "bf16", None),
        ("NVIDIA GeForce RTX 3090 Ti", "bf16", 80),
        ("NVIDIA GeForce RTX 2080 Ti", "fp16", 53.8),
        ("NVIDIA GeForce RTX 3060 Ti", "bf16", None),  # cards with more or fewer units than the row's
        ("NVIDIA GeForce RTX 3080 Ti", "bf16", None),
        ("NVIDIA GeForce RTX 4080 SUPER", "bf16", None),
        ("NVIDIA GeForce RTX 4090 D", "bf16", None),
        ("NVIDIA GeForce RTX 5090 D v2", "bf16", None),
        ("NVIDIA A40-48Q", "bf16", None),  # a virtual GPU
        ("", "bf16", None),
    ],
)
def test_peaks(name, dtype, tflops):
    found = peak(name, dtype)
    assert (None if found is None else found.flops_per_s) == (tflops and pytest.approx(tflops * 1e12))


@pytest.mark.thorough
def test_what_computes_attention_does_not_change_the_model():
    """Two recordings of one model on an H200: attention by operators, and fused, which computes its scores again."""
    eager = reading.measured(SAMPLES / "planted-naive-attention").efficiency
    fused = reading.measured(SAMPLES / "planted-starved-loader").efficiency
    assert eager.model_flops_per_step == fused.model_flops_per_step == eager.flops_per_step
    scores = next(kind.flops for kind in fused.kinds if kind.kind == "attention") // 7  # of 2 products and 5
    assert fused.flops_per_step - fused.model_flops_per_step == scores == fused.recomputed_flops
    assert eager.tokens_per_step == fused.tokens_per_step == 8192
    for found in (eager, fused):
        assert found.window == "detailed"
        assert found.peak_flops_per_s == pytest.approx(989.5e12)
        assert 0.1 < found.mfu <= found.hfu < 0.25


def test_without_steps_the_whole_recording_counts(tmp_path):
    """The first product is launched before the device's first kernel, which begins the 800 us that are recorded."""
    events = [
        product(10, 8192, 5900, 1024, kind="c10::BFloat16"),
        *launched(TF32, 11, 100, 300, 1),
        product(410, 8192, 5900, 1024, kind="c10::BFloat16"),
        *launched(TF32, 411, 500, 900, 2),
    ]
    found = measure_events(tmp_path, events, deviceProperties=[{"id": 0, "name": "NVIDIA H100 80GB HBM3"}]).efficiency
    flops = 2 * 2 * 8192 * 5900 * 1024
    assert (found.scope, found.steps, found.flops, found.step_ns) == ("recording", 1, flops, 800_000)
    assert found.mfu == found.hfu == pytest.approx(flops / 800e-6 / 989.5e12)
    assert found.counted_share == 1
    assert found.memory_bound_share == 0
    assert "no ProfilerStep marks" in found.missing["samples_per_s"]


def test_the_world_size_holds_all_ranks_that_were_read(tmp_path):
    """Two traces, each of which claims a world of one rank."""
    run = load_events(tmp_path, [step(1, 0, 100)], [step(1, 0, 100)])
    one = replace(run.ranks[0].light.distributed, world_size=1)
    ranks = [replace(rank, light=replace(rank.light, distributed=one)) for rank in run.ranks]
    assert replace(run, ranks=ranks).world_size == len(ranks) == 2
