"""Kernels of two GPU ranks and operators of a CPU, every figure by hand; and of real traces, by a plain second reading.

Step 3    gemm [10,40)   elementwise [30,34)   nccl [35,60), on rank 1 [35,70)   a kernel never launched [70,71)
Step 4    gemm [110,120)   elementwise [120,125)                                 Windows [10,110) and [110,125)
"""

import gzip
import json
from decimal import Decimal
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptune.measure.device.kernel_kinds import KERNEL_KINDS, kernel_kind
from dptune.present.text import text

from .. import reading  # noqa: TID252 - tests are no installed package
from .handmade import BACKWARD, LOADER, NCCL, US, annotation, kernel, launch, launched, measure_events, operator, step

GEMM, ELEMENTWISE, OTHER = (
    "ampere_sgemm_128x64_tn",
    "void at::native::vectorized_elementwise_kernel<4, F>(int)",
    "mystery",
)


def events(rank):
    return [
        step(3, 0, 100),
        step(4, 100, 200),
        *(launch(n, at, at + 1) for n, at in {1: 2, 2: 4, 3: 6, 4: 102, 5: 104}.items()),
        kernel(GEMM, 10, 40, 1),
        kernel(ELEMENTWISE, 30, 34, 2, stream=8),
        kernel(NCCL, 35, 70 if rank else 60, 3, stream=9),
        kernel(OTHER, 70, 71, 99),
        kernel(GEMM, 110, 120, 4),
        kernel(ELEMENTWISE, 120, 125, 5),
    ]


def test_kernels_of_two_ranks(tmp_path):
    run = measure_events(tmp_path, events(0), events(1))
    found = run.kernels
    assert found.model_dump(exclude={"top", "launch_bound_share"}) == {
        "missing": {},
        "counted": "kernels",
        "per_step": 2.5,  # without the one that no step launched
        "median_ns": 10 * US,  # 4 4 5 5 10 10 25 30 30 35
        "total_ns": 142 * US,
        "short_share": 0.4,
        "loss_share": 0.0,
        "loss_calls": 0.0,
        "loss_compiled_share": 0.0,
        "kinds_ns": {
            "elementwise": 18 * US,
            "matrix product": 72 * US,
            "other": 2 * US,
            "communication": 50 * US,
        },
    }
    # on each rank [102,110): the call, and what the device takes to begin
    assert found.launch_bound_share == 16 / 230
    assert run.account.window_ns == 230 * US
    assert [(one.name, one.kind, one.calls_per_step, one.total_ns, one.known("median_ns")) for one in found.top] == [
        (GEMM, "matrix product", 1.0, 80 * US, 20 * US),
        (NCCL, "communication", 0.5, 60 * US, 30 * US),
        (ELEMENTWISE, "elementwise", 1.0, 18 * US, 4500),
        (OTHER, "other", 0.0, 2 * US, None),
    ]
    assert [one.step_share for one in found.top] == [total / 230 for total in (80, 60, 18, 2)]


def test_kernels_of_one_name_at_once_count_once(tmp_path):
    ran = [*launched(GEMM, 1, 10, 30, 1), *launched(GEMM, 2, 20, 45, 2, stream=8)]
    (top,) = measure_events(tmp_path, [step(3, 0, 100), *ran]).kernels.top
    assert (top.total_ns, top.calls_per_step, top.median_ns) == (35 * US, 2.0, 22500)


def test_a_kernel_that_only_runs_into_a_step_is_not_counted_and_its_time_is(tmp_path):
    listed = [step(3, 0, 100), *launched(GEMM, 1, 10, 30, 1), kernel(OTHER, 4, 16, 99)]
    found = measure_events(tmp_path, listed).kernels
    assert (found.per_step, found.total_ns) == (1.0, 20 * US)
    assert [(one.name, one.total_ns, one.calls_per_step) for one in found.top] == [
        (GEMM, 20 * US, 1.0),
        (OTHER, 6 * US, 0.0),
    ]
    assert found.top[1].missing["median_ns"] == "it runs in the steps, but none of them launched it"


def test_a_kernel_launched_before_the_first_step_is_not_counted_though_it_begins_in_it(tmp_path):
    """Queued at 2, it runs [40,60) inside the window [20,90) of the step, beside a call of the step [60,80)."""
    before = launched(NCCL, 2, 40, 60, 1, stream=9)
    ran = [*launched(GEMM, 12, 20, 90, 2), *launched(NCCL, 14, 60, 80, 3, stream=9)]
    found = measure_events(tmp_path, [*before, step(3, 10, 100), *ran]).kernels
    assert found.per_step == 2.0
    assert {one.name: (one.calls_per_step, one.total_ns) for one in found.top} == {
        GEMM: (1.0, 70 * US),
        NCCL: (1.0, 40 * US),
    }


def test_operators_of_a_cpu_by_their_own_time(tmp_path):
    listed = [
        step(7, 0, 1000),
        annotation(LOADER, 0, 100),
        operator("aten::stack", 20, 60),  # not compute: it loads
        operator("aten::mm", 100, 400),
        operator("aten::add", 150, 200),
        operator("c10d::allreduce_", 400, 420),
        operator("aten::view", 405, 410),  # nor in a call of a collective
        step(8, 1000, 2000),
        operator("aten::mm", 1100, 1300),
        operator(BACKWARD, 1300, 1500),
        operator("c10d::allreduce_", 1450, 1500),
        annotation("gloo:all_reduce", 1480, 1600, thread=2),
    ]
    run = measure_events(tmp_path, listed)
    found = run.kernels
    assert (found.counted, found.per_step, found.median_ns) == ("operators", 2.0, 175 * US)  # 50 150 200 250
    assert found.total_ns == run.account.compute_ns == 650 * US
    assert [(one.name, one.calls_per_step, one.total_ns, one.median_ns, one.step_share) for one in found.top] == [
        ("aten::mm", 1.0, 450 * US, 225 * US, 450 / 2000),
        (BACKWARD, 0.5, 150 * US, 150 * US, 150 / 2000),
        ("aten::add", 0.5, 50 * US, 50 * US, 50 / 2000),
    ]
    for name in ("short_share", "launch_bound_share", "kinds_ns", "loss_share", "loss_calls", "loss_compiled_share"):
        assert found.missing[name] == "a CPU runs no kernels"


def test_operators_that_do_not_nest_leave_no_time_below_zero(tmp_path):
    """In an operator of 10 two others overlap, of 7 and 6."""
    ran = [operator("aten::outer", 10, 20), operator("aten::one", 11, 18), operator("aten::other", 13, 19)]
    found = measure_events(tmp_path, [step(1, 0, 100), *ran]).kernels
    assert {one.name: one.total_ns for one in found.top} == {"aten::one": 7 * US, "aten::other": 6 * US}


def test_without_steps_kernels_are_those_of_the_whole_recording(tmp_path):
    """One, from 10 to 30 us, which is all that the device did."""
    measured = measure_events(tmp_path, launched(GEMM, 1, 10, 30, 1))
    assert measured.tables_of == "recording"
    (kernel,) = measured.kernels.top
    assert (kernel.calls_per_step, kernel.step_share, measured.kernels.total_ns) == (1, 1.0, 20_000)


@pytest.mark.long
@given(
    st.lists(
        st.tuples(st.sampled_from([GEMM, ELEMENTWISE, OTHER, NCCL]), st.integers(0, 150), st.integers(1, 60)),
        min_size=1,
        max_size=12,
    )
)
def test_kinds_sum_to_what_the_account_calls_compute_and_exposed_communication(tmp_path_factory, ran):
    folder = tmp_path_factory.mktemp("kinds")
    listed = [step(3, 0, 100), step(4, 100, 200)]
    for n, (name, at, length) in enumerate(ran):
        listed += launched(name, at, at + 2, at + 2 + length, n, stream=n)
    run = measure_events(folder, listed)
    (device,) = run.ranks[0].devices
    painted: dict[str, set[int]] = {}
    for name, at, length in ran:
        for window in device.steps:
            begin, end = window.start_ns // US, (window.start_ns + window.account.window_ns) // US
            painted.setdefault(name, set()).update(range(max(at + 2, begin), min(at + 2 + length, end)))
    compute = set().union(*(paint for name, paint in painted.items() if name != NCCL))
    exposed = painted.get(NCCL, set()) - compute
    found = run.kernels
    assert sum(found.kinds_ns.values()) == found.total_ns == (len(compute) + len(exposed)) * US
    assert found.total_ns == run.account.compute_ns + run.account.exposed_communication_ns
    assert found.kinds_ns.get("communication", 0) == len(exposed) * US
    assert {one.name: one.total_ns for one in found.top} == {n: len(p) * US for n, p in painted.items() if p}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<32>>(F)", "attention"),
        (
            "fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<float>::Params)",
            "attention",
        ),
        ("void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnBwdSm90<x>>>(y)", "attention"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128_nn_align4>(P)", "matrix product"),
        ("void cutlass__5x_cudnn::Kernel<cutlass_tensorop_bf16_s16816fprop_optimized_bf16>(P)", "convolution"),
        ("nvjet_tst_256x128_64x4_1x2_h_bz_coopA_NNT", "matrix product"),
        ("Cijk_Alik_Bljk_B_BS_BH_Bias_HA_S_SAV_UserArgs_MT64x32x128_MI16x16x1", "matrix product"),
        ("sm80_xmma_dgrad_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x32x32", "convolution"),
        ("igemm_wrw_gtcx3_nhwc_bf16_bx0_ex1_bt64x256x32", "convolution"),
        ("volta_scudnn_128x128_stridedB_splitK_xregs_large_nn_v1", "convolution"),
        ("void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl<softmax>>(int)", "elementwise"),
        ("void at::native::index_elementwise_kernel<128, 4, F>(int)", "indexing"),
        ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdam>(T)", "optimizer"),
        ("void at::native::batch_norm_backward_kernel<c10::BFloat16>(T)", "normalization"),
        ("void (anonymous namespace)::softmax_warp_forward<float, float, float, 9>(float*)", "softmax and loss"),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(R)", "reduction"),
        ("triton_poi_fused_add_0", "elementwise"),
        ("void cudnn::ops::nchwToNhwcKernel<float, float>(T)", "elementwise"),
        ("triton__0d1d2d3d", "fused by triton"),
        ("void at::native::(anonymous namespace)::convert_kernel(int)", "other"),
        (NCCL, "communication"),
        ("void fbgemm_gpu::permute_2D_data_kernel<false, int, int, decltype(nullptr)>(int, int)", "other"),
        ("void fbgemm_gpu::(anonymous namespace)::_get_FP8_qparam_cuda_kernel<float>(float const*)", "other"),
        ("void fbgemm_gpu::grouped_gemm_kernel<float>(float*)", "matrix product"),
        ("customized_fba_mul_const-dtype_Float", "elementwise"),
        ("aten::le.Tensor_out-dtype_Bool", "elementwise"),
        ("log2-dtype_Double", "elementwise"),
        ("vector_norm_float_order-dtype_Float", "reduction"),
        ("split_eb_bwd_rowwise_adagrad-dtype_Half", "indexing"),
        ("mul_mat_q", "other"),  # llama.cpp's matrix product
    ],
)
def test_kinds(name, kind):
    assert kernel_kind(name) == kind
    assert kind in KERNEL_KINDS


def test_convolutions_in_fp32_are_a_part_of_what_runs_in_fp32(tmp_path):
    """Each step of 100 us convolves for 30 and multiplies for 10 in fp32, and convolves for 20 on tensor cores."""
    events = [step(number, 100 * number, 100 * number + 100) for number in range(4)]
    for number in range(4):
        at, first = 100 * number, 3 * number
        events += [launch(first + place, at + place, at + place + 1) for place in range(3)]
        events += [
            kernel("volta_scudnn_128x128_relu_interior_nn_v1", at + 10, at + 40, first),
            kernel("ampere_sgemm_128x64_tn", at + 40, at + 50, first + 1),
            kernel("sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw", at + 50, at + 70, first + 2),
        ]
    matmul = measure_events(tmp_path, events).matmul
    assert matmul.fp32_share == pytest.approx(4 / 3 * matmul.fp32_convolution_share)
    assert matmul.fp32_convolution_share == pytest.approx(120 / 360)  # the last step ends with its last kernel


def test_what_kernels_of_mtia_do_not_show_is_not_zero(real_traces):
    """Its steps have kernels; their names show neither matrix units nor how its runtime names calls for memory."""
    report = reading.reported(real_traces / "mtia")
    assert report.measured.kernels.per_step > 1000
    (device,) = report.measured.ranks[0].devices
    assert (device.device, 0 < device.whole.copy_ns < device.whole.compute_ns) == ("mtia:9", True)
    for share in ("tensor_core_share", "fp32_share", "unclassified_share", "unaligned_share"):
        assert "MTIA" in report.measured.matmul.missing[share]
    assert report.measured.memory[0].known("malloc_calls_per_step") is None
    whole = text(report)
    assert "no kernel ran" not in whole
    assert "cudaMalloc" not in whole


def covered(spans):
    """The length of a union, by walking."""
    total, reach = 0, -1
    for start, end in sorted(spans):
        total += max(end - max(start, reach), 0)
        reach = max(reach, end)
    return total


@pytest.mark.parametrize(
    "file",
    [
        "single_gpu/1eeffb3*",
        "vendor_pairs/7a9*",
        *(
            pytest.param(file, marks=pytest.mark.thorough)
            for file in ("nanogpt_8xh100/42f4e74*", "single_gpu/c4adadd*", "vendor_pairs/3610297*")
        ),
    ],
)
def test_real_traces_by_a_plain_second_reading(real_traces, file):
    path = next(real_traces.glob(file))
    document = json.loads(gzip.decompress(path.read_bytes()), parse_float=Decimal)
    listed = [e for e in document["traceEvents"] if e.get("cat") == "kernel"]
    run = reading.measured(path)
    windows = [(s.start_ns, s.start_ns + s.account.window_ns) for s in run.ranks[0].devices[0].steps]
    spans: dict[str, list[tuple[int, int]]] = {}
    begun: dict[str, list[int]] = {}
    for event in listed:
        start, length = int(event["ts"] * 1000), int(event["dur"] * 1000)
        if event["name"].startswith("__amd_rocclr"):
            continue
        for low, high in windows:
            if max(start, low) < min(start + length, high):
                spans.setdefault(event["name"], []).append((max(start, low), min(start + length, high)))
            if low <= start < high:
                begun.setdefault(event["name"], []).append(length)
    durations = [length for each in begun.values() for length in each]
    found = run.kernels
    assert found.per_step == len(durations) / len(windows)
    assert found.median_ns == pytest.approx(median(durations), abs=1)
    assert found.short_share == pytest.approx(sum(d < 10_000 for d in durations) / len(durations))
    assert found.total_ns == covered([span for each in spans.values() for span in each])
    assert found.total_ns == run.account.compute_ns + run.account.exposed_communication_ns
    times = sorted((covered(each) for each in spans.values()), reverse=True)
    assert [one.total_ns for one in found.top] == times[:12]
    for one in found.top:
        assert one.total_ns == covered(spans[one.name])
        assert one.calls_per_step == len(begun[one.name]) / len(windows)
        assert one.median_ns == pytest.approx(median(begun[one.name]), abs=1)
