"""What the name of a kernel says about the precision it computes in, and which devices have tensor cores.

A kernel of matrix work (a matrix product, convolution or attention) is of one of four classes: on matrix units (tensor
or matrix cores), in fp32 without them, other (16-bit or fp64 without matrix units, or a step that only prepares or sums
up a product), or not known from its name.

| pattern | source |
|---|---|
| tensor cores: h884 s884 h1688 s1688 hmma i8816 s16816 ... | NVIDIA PyProf `prof/tc.py`, taken over by tensorboard's torch_tb_profiler (`tensor_core.py`) |
| tensor cores: xmma with tf32, f16, bf16, i8, f8 or f64; tensorop, wgmma, nvjet, cutlass3x | CUTLASS naming (`tensorop` against `simt`); cuBLAS 12 kernels of Hopper and later |
| tensor cores: Mainloop...Sm90 and later, Sm100...Gemm, TiledMMA, MMA_Atom, tfloat32 | CUTLASS 3 and 4, CuTe: their templates of Hopper and Blackwell use nothing else |
| tensor cores: flash_fwd, FlashAttn...Sm90, fmha | FlashAttention 2 and 3, CUTLASS fused attention run on tensor cores only |
| matrix units: attn_fwd, bwd_kernel_dk_dv, unified_attention, matmul_kernel, linear_...kernel | Triton's `tl.dot`: AOTriton, vLLM, triton_kernels |
| matrix cores: Cijk_*_MI16x16, MFMA, xdl, wmma, igemm_*_gtcx | AMD Tensile (`MI` is the matrix instruction), Composable Kernel (`xdl`), MIOpen (`x` of gtcx is xdlops) |
| fp32: sgemm, cgemm, scudnn, simt_sgemm, f32f32_f32f32 | cuBLAS and cuDNN: `s` is single, `c` complex of singles; CUTLASS: `simt` uses no tensor core, nor does xmma's `ffma` |
| fp32: winograd, dgrad_engine, wgrad_alg0_engine, gemv, ... of float | cuDNN's and cuBLAS's templates, whose first type is that of the data |
| other: fp16_sgemm, gemv of half | 16-bit inputs multiplied without tensor cores: TF32 does not help |
| fp32: Cijk_*_SB_ | AMD Tensile: `S` is single precision |
| tf32: tf32f32, s1688gemm with float inputs | tensor cores fed with float: counted as tensor cores, not as fp32 |
"""  # noqa: E501 - a table

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal

from dptune.measure.device.kernel_kinds import MATRIX_WORK, REMEMBERED, kernel_kind
from dptune.trace.collective_kernels import MOST_CHARACTERS

Precision = Literal["matrix units", "fp32", "other"]

# A word of a name begins after anything but a letter or digit: `_ZN7direct_group` and `hmmax` are others' names.
_TENSOR = re.compile(
    r"(?<![a-z0-9])(?:[hscidz](?:884|1688|8816|16816|16832|161616)(?!\d)"
    r"|(?:[hiq]mma|mfma|tensorop|wgmma|umma|gmma|wmma|xdl|xdlops)(?![a-z])|dgrad_1x1_stride_2x2|first_layer_wgrad_kernel"
    r"|conv2d_c1_k1|direct_group|cutlass3x_|flash_(?:fwd|bwd)_|tf32f32|igemm_(?:fwd|bwd|wrw)_gtcx"
    r"|(?:attn_fwd|bwd_kernel_(?:dk_dv|dq)|kernel_unified_attention)(?![a-z])"
    r"|xmma_\w*(?:tf32|f16|i8i|e[45]m[32]|f64|_tensor\d|warpgroup))"
    r"|Mainloop\w*Sm(?:9|1\d)\d|enable_3x_kernel_for_sm(?:9|1)\d|Sm1\d\d\w*Gemm|TiledMMA|MMA_Atom|tfloat32|_xdl(?:ops)?_"
    r"|_wmma_|FlashAttn(?!BwdPre)\w*Sm\d"
    r"|^nvjet_|^(?:void )?(?:\w+::)*fmha(?:_|::)(?!\w*_sm[56]\d)|::fmha(?:fwd|bwd)|^Cijk_\w*_MI\d+x\d+"
    r"|^(?!_*triton_)\w*(?:matmul|gemm|grouped_mm)\w*_(?:bf16|fp16|fp8|mxfp\d|e4m3|int8)"
    r"|^(?!_*triton_)\w*(?:matmul|linear)_\w*$",
    re.IGNORECASE,
)
_WITHOUT_TENSOR = re.compile(
    r"_[fhd]fma2?_|(?<![a-z])simt(?![a-z])|^triton_|(?<![a-z])[hsc]gemm_(?:bf|fp)16", re.IGNORECASE
)
_FP32 = re.compile(
    r"(?<![a-z0-9])(?:(?:maxwell|pascal|volta|turing|ampere|ada|hopper|blackwell)_"
    r"(?:(?:sgemm|scudnn)(?!_b?f?p?16)|g?cgemm)"
    r"|cutlass_\w*simt_s|xmma_\w*(?<!t)f32f32_f32f32_f32_|magma_\w*[sc]gemm|\w+_convolve_sgemm<float"
    r"|gemm\w*_kernel\w*<float|gemv\w*<(?:int, int, )?float|miopen\w{0,40}Conv\w{0,60}_fp32_)"
    r"|^(?:void )?g?[sc]gemm_|^Cijk_\w*_[SC]B_(?!\w*_MI\d)",
    re.IGNORECASE,
)
# What prepares a product, or adds up the parts of one; and multiplications of 16 or 64 bits without matrix units.
_OTHER = re.compile(
    r"split_?k_?reduce|reducesplitk|prepare_\w*gemm|gemm_args|_prepare_kernel|(?<![a-z])dot_kernel|FlashAttnBwdPreprocess"
    r"|im2col|col2im|_nchw_helper|flip_filter|(?<![a-z])(?:g?[dz]|h)gemm|fp16_s(?:gemm|cudnn)|_[hd]fma2?_"
    r"|^Cijk_\w*_(?:H|B|D|Z|HH|BB)\w?B_|miopen\w{0,40}Conv\w{0,60}_b?fp?16_",
    re.IGNORECASE,
)
_CERTAIN = re.compile(
    r"^nvjet_|_MI\d+x\d+|[hs](?:884|1688|16816)gemm", re.IGNORECASE
)  # matrix units whatever else it holds
# The first type among the template arguments, past numbers and the types of indices.
_FIRST_TYPE = re.compile(r"<(?:(?:(?:unsigned )?(?:int|long)|true|false|\d+\w*), )*([\w:]+)")
_TYPES: dict[str, Precision] = {
    "float": "fp32",
    "float2": "fp32",
    "double": "other",
    "half": "other",
    "__half": "other",
    "c10::Half": "other",
    "__nv_bfloat16": "other",
    "c10::BFloat16": "other",
    "hip_bfloat16": "other",
    "__hip_bfloat16": "other",
}

# Turing cards without tensor cores; every other NVIDIA device of compute capability 7.0 or later has them
# (CUDA C++ Programming Guide, compute capabilities; the TU116/TU117 whitepaper for these).
_WITHOUT = re.compile(r"\b(?:GTX 16[56]0|MX450|MX550|T[46]00|T1000|T500|T550)\b", re.IGNORECASE)
# AMD: matrix cores since MI100 (CDNA whitepaper) and RDNA 3 (WMMA).
_AMD = re.compile(r"\bInstinct\b|\bMI[1-9]\d{2}|\bRX 7|\bRX 9|\bgfx9(?:08|0a|4|5)", re.IGNORECASE)
_NVIDIA_WITH = re.compile(
    r"\b(?:V100S?|T4G?|A(?:2|10[GM]?|16|30X?|40|100X?|800)|L(?:2|4|20|40S?)|H(?:20|[128]00)|GH200|B[123]00|GB[123]00|RTX"
    r"|TITAN (?:V|RTX))\b",
    re.IGNORECASE,
)


@lru_cache(maxsize=REMEMBERED)
def precision(name: str) -> Precision | None:
    """How a kernel of this name multiplies; None where it does not, or its name does not tell."""
    name = name[:MOST_CHARACTERS]
    matrix = kernel_kind(name) in MATRIX_WORK
    if matrix and _OTHER.search(name) and not _CERTAIN.search(name):
        return "other"
    if _FP32.search(name) and not name.startswith("triton_"):
        return "fp32"
    if _TENSOR.search(name) and not _WITHOUT_TENSOR.search(name):
        return "matrix units"
    first = _FIRST_TYPE.search(name) if matrix and not name.startswith("_Z") else None
    return None if first is None else _TYPES.get(first[1])


def is_tensor_core(name: str) -> bool:
    """Whether a kernel of this name runs on tensor or matrix cores."""
    return precision(name) == "matrix units"


def is_fp32(name: str) -> bool:
    """Whether a kernel of this name multiplies matrices or convolves in fp32 without tensor cores."""
    return precision(name) == "fp32"


def is_unclassified(name: str) -> bool:
    """Whether a kernel of this name does matrix work and the name does not tell the precision."""
    return kernel_kind(name) in MATRIX_WORK and precision(name) is None


def has_tensor_cores(name: str, compute_major: int | None) -> bool | None:
    """Whether a device has tensor (or matrix) cores; None where its name and capability say nothing."""
    if _AMD.search(name):
        return True
    if _WITHOUT.search(name):
        return False
    if "amd" in name.lower() or "radeon" in name.lower():
        return False
    if compute_major is not None:
        return compute_major >= 7
    return True if _NVIDIA_WITH.search(name) else None
