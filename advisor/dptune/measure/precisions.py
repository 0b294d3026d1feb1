"""What the name of a kernel says about the precision it computes in, and which devices have tensor cores.

| pattern | source |
|---|---|
| tensor cores: h884 s884 h1688 s1688 hmma i8816 16816 xmma ... | NVIDIA PyProf `prof/tc.py`, taken over by tensorboard's torch_tb_profiler (`tensor_core.py`) |
| tensor cores: tensorop, wgmma, sm90_xmma, nvjet, cutlass3x | CUTLASS naming (`tensorop` against `simt`); cuBLAS 12 kernels of Hopper and later |
| tensor cores: flash_fwd, fmha, triton's mma | FlashAttention and CUTLASS fused attention run on tensor cores only |
| matrix cores: Cijk_*_MI16x16, MFMA | AMD Tensile kernel naming: `MI` is the matrix instruction |
| fp32: sgemm, scudnn, simt_sgemm, f32f32_f32f32, gemv...float | cuBLAS and cuDNN: `s` is single; CUTLASS: `simt` uses no tensor core |
| fp32: Cijk_*_SB_ | AMD Tensile: `S` is single precision |
| tf32: tf32f32, s1688gemm with float inputs | tensor cores fed with float: counted as tensor cores, not as fp32 |
"""  # noqa: E501 - a table

from __future__ import annotations

import re

_TENSOR = re.compile(
    r"h884|s884|h1688|s1688|c1688|hmma|imma|i8816|16816|16832|dgrad_1x1_stride_2x2|first_layer_wgrad_kernel"
    r"|conv2d_c1_k1|direct_group|xmma_(?!.*simt)|tensorop|wgmma|nvjet|cutlass3x|flash_(?:fwd|bwd)|fmha|tf32f32"
    r"|Cijk_.*_MI\d+x\d+|mfma",
    re.IGNORECASE,
)
_FP32 = re.compile(
    r"sgemm|scudnn|simt_s|f32f32_f32f32|gemm\w*_kernel\w*<float|gemv\w*<(?:int, int, )?float|Cijk_\w*_SB_",
    re.IGNORECASE,
)

# Turing cards without tensor cores; every other NVIDIA device of compute capability 7.0 or later has them
# (CUDA C++ Programming Guide, compute capabilities; the TU116/TU117 whitepaper for these).
_WITHOUT = re.compile(r"\b(?:GTX 16[56]0|MX450|MX550|T[46]00|T1000|T500|T550)\b", re.IGNORECASE)
# AMD: matrix cores since MI100 (CDNA whitepaper) and RDNA 3 (WMMA).
_AMD = re.compile(r"\bInstinct\b|\bMI[1-9]\d{2}|\bRX 7|\bRX 9|\bgfx9(?:08|0a|4|5)", re.IGNORECASE)
_NVIDIA_WITH = re.compile(r"\b(?:V100|T4|A\d{1,3}|A100|H\d00|GH200|B[23]?00|GB\d00|L4|L40|RTX|TITAN (?:V|RTX))\b", re.I)


def is_tensor_core(name: str) -> bool:
    """Whether a kernel of this name runs on tensor or matrix cores."""
    return _TENSOR.search(name) is not None


def is_fp32(name: str) -> bool:
    """Whether a kernel of this name multiplies matrices or convolves in fp32 without tensor cores."""
    return _FP32.search(name) is not None and not is_tensor_core(name)


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
