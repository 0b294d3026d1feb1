"""Kernels that communicate, by the names that their libraries give them, and kernels that only sound like it."""

import pytest

from dptune.measure.communication.kinds import kernel_collective
from dptune.trace.collective_kernels import LIBRARIES, base_name, library_of

COLLECTIVES = [
    ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_reduce"),
    ("ncclDevKernel_AllReduce_Sum_f32_COLLNET_DIRECT_SIMPLE(ncclDevComm*)", "all_reduce"),  # SHARP
    ("ncclDevKernel_Generic_4(ncclDevComm*, channelMasks, ncclWork*)", "unknown"),
    ("rcclKernel", "unknown"),
    ("oneccl_reduce_base<float, 2, 16, 1, 1, 2>", "all_reduce"),
    ("oneccl_allgatherv_pcie<sycl::half, Rt64_128_PCIE, RingTransmit>", "all_gather"),
    ("hcclReduceScatter_float", "reduce_scatter"),
    ("mscclKernel_Sum_half_Simple_false(ncclDevComm*)", "unknown"),
    ("void mscclpp::executionKernel<__half, mscclpp::LLPacket>(int)", "unknown"),
    ("void allreduce7<__half>(__half*, __half*, void*)", "all_reduce"),
    ("nvshmemi_transfer_rma_kernel", "unknown"),
    ("void rocshmem_barrier_all_kernel()", "barrier"),
    ("void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*)", "all_to_all"),
    ("void deep_ep::internode_ll::combine<7168, 9>(void*, void*)", "all_to_all"),
    ("_ZN7deep_ep9intranode7combineI13__nv_bfloat16Li8ELi768EEEvPT_", "all_to_all"),
    ("void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>()", "all_reduce"),
    ("void (anonymous namespace)::multimem_one_shot_reduce_kernel<c10::BFloat16, 16>()", "reduce"),
    ("void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<float, 16>()", "all_reduce"),
    ("(anonymous namespace)::barrier_kernel(unsigned int**, unsigned long, unsigned long)", "barrier"),
    ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)", "all_reduce"),
    ("void aiter::cross_device_reduce_2stage<__hip_bfloat16, 8>(aiter::RankData*)", "all_reduce"),
    ("void quickreduce::allreduce_prototype_twoshot<quickreduce::AllReduceTwoshot<__half>>(int)", "all_reduce"),
    ("void tensorrt_llm::kernels::oneShotAllReduceKernel<__half, 8, true, false>(AllReduceParams)", "all_reduce"),
    ("void tensorrt_llm::kernels::ar_fusion::allreduce_fusion_kernel_oneshot_lamport<__half>(int)", "all_reduce"),
    ("void tensorrt_llm::kernels::moe_comm::moeA2ADispatchKernel<8>(int)", "all_to_all"),
    ("void userbuffers_fp16_sum_inplace_gpu_rr_rs<2>(int, int, int)", "unknown"),
    ("_mxfp8_all_to_all_expert_major_kernel", "all_to_all"),
    ("_combine_all_to_all_kernel", "all_to_all"),
    ("one_shot_all_reduce_kernel", "all_reduce"),
    ("my_reducescatter_kernel_v2", "reduce_scatter"),
]
OTHERS = [
    "",
    "triton_red_fused_all_gather_into_tensor_mean_0",
    "triton_poi_fused_all_reduce_wait_tensor_1",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>()",
    "void at::native::index_elementwise_kernel<128, 4, at::native::gather_kernel>(long)",
    "void cub::DeviceScanKernel<Policy, int*, AllReduceTag>(int*)",  # only among its arguments
    "void oneflow::layer_norm<float, BlockAllReduce<SumOp>>(float*)",
    "void deep_ep::layout::get_dispatch_layout<256, 32, 8>(long const*)",
    "gemm_all_reduce_kernel",  # computes, and hides what it sends
    "void at::native::split_with_sizes_copy_out_contiguous_no_cast_kernel(char**)",
    "_ZN2at6native18elementwise_kernelILi128ELi4EZNS0_15all_gather_implEEEviT1_",
    "dispatch_kernel",
]


@pytest.mark.parametrize(("name", "kind"), COLLECTIVES)
def test_kernels_of_collectives(name, kind):
    assert library_of(name) is not None
    assert kernel_collective(name) == kind


@pytest.mark.parametrize("name", OTHERS)
def test_other_kernels(name):
    assert library_of(name) is None


def test_every_library_is_told_by_some_name_and_says_where_it_is_from():
    told = {id(library_of(name)) for name, _ in COLLECTIVES}
    untold = [library.title for library in LIBRARIES if id(library) not in told]
    assert untold == ["UCC, SHARP", "pplx, MORI"]
    assert library_of("ucc_ec_cuda_executor_kernel").title == "UCC, SHARP"
    assert library_of("void mori::moe::EpDispatchIntraNodeKernel<float>()").title == "pplx, MORI"
    assert all(library.source for library in LIBRARIES)


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("void foo::bar<int, baz<3>>(int)", "foo::bar"),
        ("std::enable_if<!(false), void>::type internal::gemvx::kernel<int, float>(float)", "internal::gemvx::kernel"),
        ("void (anonymous namespace)::elementwise<4>(int)", "(anonymous namespace)::elementwise"),
        ("_ZN7cutlass13device_kernelIN2at4cuda6detailEEEvv", "cutlass::device_kernel"),
        ("_Z6kernelv", "kernel"),
        ("_ZNSt6vector4sizeEv", "vector::size"),
        ("_Z", ""),
        ("_ZN99x", "x"),
        ("plain_kernel.kd", "plain_kernel.kd"),
    ],
)
def test_the_name_without_its_arguments(name, base):
    assert base_name(name) == base
