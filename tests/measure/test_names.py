import gzip
import json

import pytest

from dptune.measure.communication.dtypes import bytes_of, dtype_of
from dptune.measure.communication.kinds import kernel_dtype
from dptune.measure.device.precisions import has_tensor_cores, is_fp32, is_tensor_core, is_unclassified
from dptune.measured.collectives import kind_of
from dptune.trace.kernels import Work, work_of


@pytest.mark.parametrize(
    ("name", "kind", "dtype"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_reduce", "float32"),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", "all_reduce", "float32"),
        ("ncclKernel_AllReduce_TREE_LL_Sum_half(ncclWorkElem)", "all_reduce", "float16"),
        (
            "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            "reduce_scatter",
            "bfloat16",
        ),
        ("ncclDevKernel_Reduce_Sum_f64_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "reduce", "float64"),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_gather", None),
        ("ncclKernel_Broadcast_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)", "broadcast", None),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)", "p2p", None),
        ("ncclDevKernel_Generic(ncclDevComm*, unsigned long, ncclWork*)", "unknown", None),
        ("nccl:_reduce_scatter_base", "reduce_scatter", None),
        ("nccl:_all_gather_base", "all_gather", None),
        ("c10d::alltoall_base_", "all_to_all", None),
        ("_allgather_base", "all_gather", None),
        ("gloo:barrier", "barrier", None),
    ],
)
def test_collectives_by_name(name, kind, dtype):
    assert kind_of(name) == kind
    assert dtype_of(kernel_dtype(name)) == dtype


@pytest.mark.parametrize(
    ("word", "dtype", "size"),
    [
        ("Float", "float32", 4),
        ("BFloat16", "bfloat16", 2),
        ("c10::Half", "float16", 2),
        ("long int", "int64", 8),
        ("Byte", "uint8", 1),
    ],
)
def test_dtypes(word, dtype, size):
    assert (dtype_of(word), bytes_of(dtype)) == (dtype, size)


@pytest.mark.parametrize("word", ["TensorList", "", None, 3])
def test_no_dtype(word):
    assert dtype_of(word) is None


@pytest.mark.parametrize(
    ("name", "fp32", "tensor"),
    [
        ("ampere_sgemm_128x64_tn", True, False),
        ("volta_scudnn_128x64_relu_interior_nn_v1", True, False),
        ("void cutlass::Kernel<cutlass_80_simt_sgemm_128x64_8x5_nn_align1>", True, False),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x8_stage3_warpsize1x2x1_ffma_aligna4_simt", True, False),
        ("sm80_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize64x64x16_cublas", False, True),
        ("volta_h884gemm_64x128_ldg8_nn", False, True),
        ("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn", False, True),
        ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x128_32x3_nn_align4>", False, True),
        ("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT", False, True),
        ("void flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>>", False, True),
        ("Cijk_Ailk_Bljk_SB_MT64x64x16_SE_1LDSB0", True, False),
        ("Cijk_Alik_Bljk_BBS_BH_MT128x128x32_MI32x32x8x1_SN", False, True),
        ("vectorized_elementwise_kernel<4, float>", False, False),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x64x8_stage3_warpsize2x2x1_ffma_aligna4", True, False),
        ("sm80_xmma_fprop_implicit_gemm_indexed_f32f32_f32f32_f32_nchw_warpsize2x2x1_g1_ffma_aligna4", True, False),
        ("sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize128x128x32_tensor16x8x16_kernel", False, True),
        ("ampere_fp16_sgemm_fp16_128x64_tn", False, False),
        ("triton_poi_fused_hmmax_0", False, False),
        ("_ZN7direct_group_thing", False, False),
        ("my_fmha_sgemm_helper", False, False),
        ("fmha_cutlassF_f16_aligned_64x128_rf_sm80(PyTorchMemEffAttention::AttentionKernel)", False, True),
        ("void implicit_convolve_sgemm<float, float, 1024, 5, 5, 3, 3>", True, False),
        (
            "void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>(int, int, int, float const*)",
            True,
            False,
        ),
        ("void wgrad_alg0_engine<float, 128, 5, 5, 3, 3, 3, false, 512>(int, int, int, float const*)", True, False),
        ("void cudnn::cnn::wgrad_alg1_engine<float, float, 128, 6, 7, 3, 3, 5, false, true>(int)", True, False),
        ("void cudnn::detail::dgrad2d_alg1_1<float, 0, 5, 6, 4, 3, 4, false, true>(int, int, int)", True, False),
        ("void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>(Params<float, float>)", True, False),
        ("volta_gcgemm_32x32_nt", True, False),
        ("ampere_cgemm_64x32_tn", True, False),
        ("void gemmk1_kernel<int, float, 256, 5, false, false>(cublasGemmk1Params<float>)", True, False),
        ("void fft2d_c2r_32x32<float, false, false, 0u, false, false>(float*, float2 const*)", True, False),
        ("void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<flash::A>>>()", False, True),
        ("void cutlass::device_kernel<flash::FlashAttnBwdSm90<flash::CollectiveMainloopBwdSm90<2>>>()", False, True),
        ("igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt128x64x32_wt32x32x8_ws1x1", False, True),
        (
            "_ZN2ck16tensor_operation6device12_GLOBAL__N_139kernel_grouped_conv_fwd_xdl_cshuffle_v3INS_4Grid",
            False,
            True,
        ),
        ("_ZN7cutlass13device_kernelIN2at4cuda6detail25enable_3x_kernel_for_sm10INS_4gemm6kernelE", False, True),
        ("attn_fwd", False, True),
        ("_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1", False, True),
        ("linear_relu_square_kernel", False, True),
        ("void gemv2T_kernel_val<int, int, __half, __half, __half, float, 128, 16>(int)", False, False),
        ("void precomputed_convolve_sgemm<__nv_bfloat16, 1024, 5, 5, 4, 3, 3, 1>(int)", False, False),
        ("void splitKreduce_kernel<32, 16, int, float, float, float>(cublasSplitKParams<float>)", False, False),
        ("volta_dgemm_64x64_nn", False, False),
        ("triton_poi_fused__flash_attn_backward_mul_3", False, False),
        ("gemm_kernel_forward", False, False),
    ],
)
def test_precision_by_name(name, fp32, tensor):
    assert (is_fp32(name), is_tensor_core(name)) == (fp32, tensor)


@pytest.mark.parametrize(
    ("name", "unknown"),
    [
        ("gemm_kernel_forward", True),
        ("void my_conv_kernel(int)", True),
        ("void gemv2T_kernel_val<int, int, __half, __half, __half, float, 128, 16>(int)", False),
        ("void splitKreduce_kernel<32, 16, int, float, float, float>(cublasSplitKParams<float>)", False),
        ("triton_poi_fused__flash_attn_backward_mul_3", False),
        ("vectorized_elementwise_kernel<4, float>", False),
        ("ampere_sgemm_128x64_tn", False),
    ],
)
def test_matrix_work_of_which_the_name_shows_no_precision(name, unknown):
    assert is_unclassified(name) is unknown


@pytest.mark.parametrize(("largest", "least"), [(100_000, 25), pytest.param(400_000, 40, marks=pytest.mark.thorough)])
def test_little_of_the_real_traces_is_unclassified(real_traces, largest, least):
    """No more than 5 % of the kernel time of any of them, from the events as json reads them."""
    seen = 0
    for entry in json.loads((real_traces / "MANIFEST.json").read_text()):
        if not entry["torch_trace"] or entry["bytes"] > largest or entry["file"].startswith("damaged"):
            continue  # the large ones hold the same kernels
        raw = (real_traces / entry["file"]).read_bytes()
        document = json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw, strict=False)
        events = document["traceEvents"] if isinstance(document, dict) else document
        time = {}
        for event in events:
            if event.get("cat") in ("kernel", "Kernel"):
                time[event["name"]] = time.get(event["name"], 0) + float(event.get("dur", 0))
        total = sum(time.values())
        unclassified = sum(took for name, took in time.items() if is_unclassified(name))
        assert unclassified <= 0.05 * total, entry["file"]
        seen += total > 0
    assert seen > least


@pytest.mark.parametrize(
    ("name", "major", "expected"),
    [
        ("NVIDIA A100-SXM4-40GB", 8, True),
        ("Tesla V100-SXM2-16GB", None, True),
        ("NVIDIA GeForce GTX 1650", 7, False),
        ("Quadro GP100", 6, False),
        ("NVIDIA GeForce RTX 2080 Ti", 7, True),
        ("AMD Instinct MI300X", 9, True),
        ("AMD Radeon RX 6800", 10, False),
        ("", None, None),
        *((f"NVIDIA {name}", None, True) for name in ["L40S", "L40", "L4", "H20", "A10G", "A10", "A30", "A40"]),
    ],
)
def test_tensor_cores_by_device(name, major, expected):
    assert has_tensor_cores(name, major) is expected


@pytest.mark.parametrize(
    ("category", "name", "work"),
    [
        ("kernel", "ncclDevKernel_AllGather_RING_LL", Work.COMMUNICATION),
        ("Kernel", "rcclKernel", Work.COMMUNICATION),
        ("kernel", "gemm", Work.COMPUTE),
        ("Memcpy", "Memcpy HtoD", Work.COPY),
        ("gpu_memset", "Memset (Device)", Work.MEMSET),
        ("cpu_op", "triton_poi_fused_0", None),
        ("gpu_user_annotation", "nccl:all_reduce", None),
        ("cuda_sync", "Stream Synchronize", None),
    ],
)
def test_classes_of_events(category, name, work):
    assert work_of(category, name) == work
