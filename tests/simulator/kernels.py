"""How long kernels take on a card, and what they are called."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tests.simulator.machine import Device

TILE = 128  # rows and columns of a matrix product that a block calculates
_ELEMENTWISE = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::{0}, std::array<char*, 3ul> >"
    "(int, at::native::{0}, std::array<char*, 3ul>)"
)
_MULTI = (
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
    "TensorListMetadata<{1}>, at::native::(anonymous namespace)::{0}<float, {1}, 1, 0>, float>(...)"
)
NAMES = {
    "add": _ELEMENTWISE.format("CUDAFunctor_add<float>"),
    "mul": _ELEMENTWISE.format("BinaryFunctor<float, float, float, at::native::binary_internal::MulFunctor<float> >"),
    "scale": _ELEMENTWISE.format("AUnaryFunctor<float, float, float, at::native::binary_internal::MulFunctor<float> >"),
    "square": _ELEMENTWISE.format("(anonymous namespace)::pow_tensor_scalar_kernel_impl<float, float>"),
    "gelu": _ELEMENTWISE.format("GeluCUDAKernelImpl(at::TensorIteratorBase&, at::native::GeluType)"),
    "gelu_backward": _ELEMENTWISE.format("GeluBackwardCUDAKernelImpl(at::TensorIteratorBase&, at::native::GeluType)"),
    "fill": _ELEMENTWISE.format("FillFunctor<float>"),
    "masked_fill": _ELEMENTWISE.format("(anonymous namespace)::masked_fill_kernel(at::TensorIterator&)"),
    "copy": "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<at::native::"
    "direct_copy_kernel_cuda(at::TensorIteratorBase&)> >(int)",
    "cast": "void at::native::unrolled_elementwise_kernel<at::native::bfloat16_copy_kernel_cuda(at::TensorIteratorBase"
    "&)>(int)",
    "sum": "void at::native::reduce_kernel<128, 4, at::native::ReduceOp<float, at::native::func_wrapper_t<float, "
    "at::native::sum_functor<float, float, float> >, unsigned int, float, 4, 4> >(...)",
    "mean": "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, float, "
    "float, float>, unsigned int, float, 4, 4> >(...)",
    "layer_norm": "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float, false>(...)",
    "layer_norm_input": "void at::native::(anonymous namespace)::layer_norm_grad_input_kernel_vectorized<float, "
    "float, false>(...)",
    "layer_norm_weight": "void at::native::(anonymous namespace)::GammaBetaBackwardCUDAKernelTemplate<float, float, "
    "32u, 32u, 256u, false>(...)",
    "softmax": "void (anonymous namespace)::softmax_warp_forward<float, float, float, 8, false, false>(...)",
    "softmax_backward": "void (anonymous namespace)::softmax_warp_backward<float, float, float, 8, false, false>(...)",
    "split_copy": "void at::native::(anonymous namespace)::split_with_sizes_copy_out_contiguous_no_cast_kernel(...)",
    "chunk_cat": "void at::native::(anonymous namespace)::chunk_cat_cuda_kernel<float, float>(...)",
}
ATTENTION = {  # forward, backward
    "fp32": (
        "fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<float>::Params)",
        "fmha_cutlassB_f32_aligned_64x64_k64_sm80(PyTorchMemEffAttention::AttentionBackwardKernel<float>::Params)",
    ),
    "bf16": (
        "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4, cutlass::bfloat16_t> >(...)",
        "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<64, 64, 128, 8, "
        "cutlass::bfloat16_t> >(...)",
    ),
}


@dataclass(frozen=True)
class Kernel:
    """A kernel as it is launched."""

    name: str
    duration_us: float
    grid: tuple[int, int, int]
    block: tuple[int, int, int] = (128, 1, 1)


@dataclass(frozen=True)
class Kernels:
    """The kernels of a card. `times` is a factor on all durations."""

    device: Device
    times: float = 1.0

    def _memory_us(self, moved_bytes: float) -> float:
        rate = self.device.card.memory_tb_per_s * 1e6 * self.device.memory_share  # bytes per us
        return self.device.least_kernel_us + moved_bytes / rate

    def pointwise(self, name: str, moved_bytes: float, elements: int) -> Kernel:
        """Bound by memory: what it reads and writes, over the bandwidth, after the start of the smallest kernel."""
        grid = (max(1, math.ceil(elements / 512)), 1, 1)
        return Kernel(NAMES.get(name, name), self.times * self._memory_us(moved_bytes), grid)

    def multi_tensor(self, functor: str, lists: int, moved_bytes: float, elements: int) -> list[Kernel]:
        """A foreach operation: a launch for each 320 chunks of 65,536 elements."""
        launches = max(1, math.ceil(elements / 65_536 / 320))
        duration_us = self.times * self._memory_us(moved_bytes / launches)
        grid = (min(320, max(1, math.ceil(elements / 65_536))), 1, 1)
        return [Kernel(_MULTI.format(functor, lists), duration_us, grid, (512, 1, 1))] * launches

    def matmul(self, rows: int, columns: int, inner: int, precision: str, layout: str, batch: int = 1) -> Kernel:
        """FLOPs over the rate of that precision, in whole waves of tiles: a part of a wave takes as long as a wave."""
        card = self.device.card
        tiles = math.ceil(rows / TILE) * math.ceil(columns / TILE) * batch
        split = 1
        while tiles * split * 2 <= card.multiprocessors and inner // (2 * split) >= 256:  # split-K
            split *= 2
        waves = tiles * split / card.multiprocessors
        filled = waves / math.ceil(waves)
        flops = 2.0 * rows * columns * inner * batch
        rate = card.tera_flops[precision] * self.device.matmul_share[precision] * filled * 1e6  # FLOPs per us
        size = 2 if precision == "bf16" else 4
        moved = size * batch * (rows * inner + inner * columns + rows * columns)
        duration_us = max(self.device.least_kernel_us + flops / rate, self._memory_us(moved))
        grid = (math.ceil(rows / TILE), math.ceil(columns / TILE), batch * split)
        return Kernel(self._matmul_name(precision, layout), self.times * duration_us, grid, (256, 1, 1))

    def _matmul_name(self, precision: str, layout: str) -> str:
        hopper = self.device.card.compute_capability[0] == 9
        if precision == "fp32":
            return (
                f"sm80_xmma_gemm_f32f32_f32f32_f32_{layout}_n_tilesize128x128x8_stage3_warpsize2x2x1_ffma_aligna4_alignc4"
                "_execute_kernel__5x_cublas"
            )
        if precision == "tf32":
            return (
                f"sm90_xmma_gemm_f32f32_tf32f32_f32_{layout}_n_tilesize128x128x32_warpgroupsize1x1x1_execute_segment_k_off"
                "_kernel__5x_cublas"
                if hopper
                else f"ampere_sgemm_tf32_128x128_{layout}"
            )
        return (
            f"sm90_xmma_gemm_bf16bf16_bf16f32_f32_{layout}_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off"
            "_kernel__5x_cublas"
            if hopper
            else f"ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_{layout}"
        )

    def attention(self, shape: Sequence[int], precision: str, backward: bool) -> Kernel:
        """Fused attention of [batch, heads, tokens, width]: its two products (five in backward) at half their rate."""
        batch, heads, tokens, width = shape
        products = 5 if backward else 2
        flops = products * 2.0 * batch * heads * tokens * tokens * width
        used = "bf16" if precision == "bf16" else "fp32"
        rate = 0.5 * self.device.card.tera_flops[used] * self.device.matmul_share[used] * 1e6
        size = 2 if used == "bf16" else 4
        moved = (8 if backward else 4) * size * batch * heads * tokens * width
        duration_us = max(self.device.least_kernel_us + flops / rate, self._memory_us(moved))
        grid = (math.ceil(tokens / 64), heads, batch)
        return Kernel(ATTENTION[used][backward], self.times * duration_us, grid)
