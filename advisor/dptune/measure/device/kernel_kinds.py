"""What a kernel does, from its name: matrix product, convolution, attention, normalization, ...

| kind | names that tell it | source |
|---|---|---|
| attention | flash_fwd, fmha, FlashAttn, attn_fwd | FlashAttention, CUTLASS example 41, xFormers, AOTriton |
| convolution | fprop, dgrad, wgrad, winograd, cudnn's conv, MIOpen's igemm | cuDNN and MIOpen kernel naming |
| matrix product | gemm (not fbgemm), gemv, nvjet, Cijk, splitKreduce, cutlass | cuBLAS, CUTLASS, Tensile; MTIA's fc |
| optimizer | multi_tensor_apply, Adam, SGD, LAMB | torch ForeachUtils, fused optimizers; Apex |
| elementwise, reduction, indexing | the template's own name | torch ATen native/cuda Loops.cuh, Reduce.cuh |
| fused by triton | triton_ (`poi` pointwise, `red` and `per` reductions) | torch inductor codegen/triton.py |
"""

from __future__ import annotations

import re

from dptune.trace.by_name import once_per_name
from dptune.trace.collective_kernels import MOST_CHARACTERS, base_name
from dptune.trace.kernels import Work, work_of

COMMUNICATION = "communication"
MATRIX_WORK = ("matrix product", "convolution", "attention")
OTHER = "other"

# Inductor names a pointwise or reducing kernel after all that is fused into it or beside it.
_FUSED = re.compile(r"^triton_(?:poi|red|per|for)_")
# Templates whose own name says nothing: what they run stands in their arguments.
_SHELL = re.compile(r"(?:^|::)(?:Kernel2?|device_kernel|kernel)$")

# MTIA names kernels after operators and their results' type.
_OF_MTIA = (
    r"^(?:aten::)?(?:customized_fba_)?(?:add|sub|mul|divide|sqrt|reciprocal|log2?|neg|sigmoid|tanh|relu|clip|where"
    r"|nan_to_num|threshold|eq|[lg][te])(?![a-z])[\w.]*-dtype_"
)

# The first that fits decides: on the name before its template arguments, of a shell on all of it.
_KINDS = (
    ("attention", r"flash_?(?:fwd|bwd|attn)|fmha|attention|(?<![a-z])attn"),
    ("indexing", r"(?<!implicit_gemm_)index|gather|scatter|embedding|masked_(?:fill|select)"),
    (
        "elementwise",
        r"elementwise|pointwise|^triton_poi_|copy_kernel|batchedcopy|transpose|nchwto|nhwcto|upsample|dropout",
    ),
    ("normalization", r"batch_?norm|layer_?norm|group_?norm|rms_?norm|(?<![a-z])bn_(?:fw|bw)|welford"),
    (
        "convolution",
        r"fprop|dgrad|wgrad|winograd|conv(?!ert)|igemm_(?:fwd|bwd|wrw)|(?<![a-z])[sh]cudnn|implicit_gemm|im2col|col2im"
        r"|^fft[12]d_[rc]2[rc]|^flip_filter",
    ),
    (
        "matrix product",
        r"(?<!fb)gemm|gemv|^nvjet|^cijk_|splitk_?reduce|matmul|cutlass|(?<![a-z])(?:linear_|dot_kernel)|^fc-dtype",
    ),
    ("optimizer", r"multi_tensor_apply|adam|(?<![a-z])sgd|lamb"),
    ("softmax and loss", r"softmax|nll_loss|cross_entropy|(?<![a-z])loss"),
    ("pooling", r"pool"),
    ("reduction", r"reduce|^triton_(?:red|per)_"),
    ("fused by triton", r"^triton_"),
    # Last, words that other kinds hold too.
    ("indexing", r"sort|top_?k|(?<![a-z])select|unique|bucketize|histogram|bounds_check|kv_?cache|^split_eb_"),
    (
        "elementwise",
        r"op_?tensor|tensor_?op|(?:convert|scale|add|set|transform)\w*tensor|act_and_mul|silu|gelu|swiglu|copy|cast|quant"
        r"|_?to_(?:mx)?fp\d|fill|memset|chunk_cat|fused_(?:add|mul)|entropy|rope|rotary|" + _OF_MTIA,
    ),
    ("reduction", r"scan|(?<![a-z])sum(?![a-z])|^(?:aten::)?(?:vector_norm|mean|(?:min|max)_dim)[\w.]*-dtype_"),
)
_PATTERNS = tuple((kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in _KINDS)
KERNEL_KINDS = (*dict.fromkeys(kind for kind, _ in _KINDS), OTHER, COMMUNICATION)


@once_per_name
def kernel_kind(name: str) -> str:
    """The kind of a kernel; `other` where its name does not tell."""
    if work_of("kernel", name) == Work.COMMUNICATION:
        return COMMUNICATION
    name = name[:MOST_CHARACTERS]
    base = "" if name.startswith("_Z") else base_name(name)
    said = name if not base or _SHELL.search(base) else base
    skipped = MATRIX_WORK if _FUSED.match(name) else ()
    return next((kind for kind, pattern in _PATTERNS if kind not in skipped and pattern.search(said)), OTHER)
