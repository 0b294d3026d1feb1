"""What the name of a kernel says about the precision it computes in, and which devices have tensor cores.

| pattern | source |
|---|---|
| tensor cores: h884 s884 h1688 s1688 hmma i8816 s16816 ... | NVIDIA PyProf `prof/tc.py`, taken over by tensorboard's torch_tb_profiler (`tensor_core.py`) |
| tensor cores: xmma with tf32, f16, bf16, i8, f8 or f64; tensorop, wgmma, nvjet, cutlass3x | CUTLASS naming (`tensorop` against `simt`); cuBLAS 12 kernels of Hopper and later |
| tensor cores: flash_fwd, fmha | FlashAttention and CUTLASS fused attention run on tensor cores only |
| matrix cores: Cijk_*_MI16x16, MFMA | AMD Tensile kernel naming: `MI` is the matrix instruction |
| fp32: sgemm, scudnn, simt_sgemm, f32f32_f32f32, gemv...float | cuBLAS and cuDNN: `s` is single; CUTLASS: `simt` uses no tensor core, nor does xmma's `ffma` |
| neither: fp16_sgemm | fp16 inputs multiplied without tensor cores: TF32 does not help |
| fp32: Cijk_*_SB_ | AMD Tensile: `S` is single precision |
| tf32: tf32f32, s1688gemm with float inputs | tensor cores fed with float: counted as tensor cores, not as fp32 |
"""  # noqa: E501 - a table

from __future__ import annotations

import re

# A word of a name begins after anything but a letter or digit: `_ZN7direct_group` and `hmmax` are others' names.
_TENSOR = re.compile(
    r"(?<![a-z0-9])(?:[hscidz](?:884|1688|8816|16816|16832|161616)(?!\d)"
    r"|(?:[hiq]mma|mfma|tensorop|wgmma)(?![a-z])|dgrad_1x1_stride_2x2|first_layer_wgrad_kernel|conv2d_c1_k1|direct_group"
    r"|cutlass3x_|flash_(?:fwd|bwd)_|tf32f32|xmma_\w*(?:tf32|f16|i8i|e[45]m[32]|f64|_tensor\d|warpgroup))"
    r"|^nvjet_|^(?:void )?(?:\w+::)*fmha(?:_|::)(?!\w*_sm[56]\d)|::fmha(?:fwd|bwd)|^Cijk_\w*_MI\d+x\d+",
    re.IGNORECASE,
)
_WITHOUT_TENSOR = re.compile(r"_[fhd]fma2?_|(?<![a-z])simt(?![a-z])|^triton_", re.IGNORECASE)
_FP32 = re.compile(
    r"(?<![a-z0-9])(?:(?:maxwell|pascal|volta|turing|ampere|ada|hopper|blackwell)_(?:sgemm|scudnn)(?!_b?f?p?16)"
    r"|cutlass_\w*simt_s|xmma_\w*(?<!t)f32f32_f32f32_f32_|magma_\w*sgemm|\w+_convolve_sgemm<float"
    r"|gemm\w*_kernel\w*<float|gemv\w*<(?:int, int, )?float)"
    r"|^(?:void )?sgemm_|^Cijk_\w*_SB_(?!\w*_MI\d)",
    re.IGNORECASE,
)

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


def is_tensor_core(name: str) -> bool:
    """Whether a kernel of this name runs on tensor or matrix cores."""
    return _TENSOR.search(name) is not None and not is_fp32(name) and _WITHOUT_TENSOR.search(name) is None


def is_fp32(name: str) -> bool:
    """Whether a kernel of this name multiplies matrices or convolves in fp32 without tensor cores."""
    return _FP32.search(name) is not None and not name.startswith("triton_")


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
