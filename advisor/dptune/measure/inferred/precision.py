"""Dtypes of optimizer updates and of autocast, from template arguments and names of kernels.

An optimizer's kernels name the type of their elements first (`AdamFunctor<float>`, `CUDAFunctor_add<c10::BFloat16>`).
A name says which kernels can compute in 16 bits; TF32 kernels, which take floats, are not among them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from dptune.measure.device.kernel_kinds import MATRIX_WORK, kernel_kind
from dptune.measure.device.precisions import precision
from dptune.measure.inferred.finding import Inferred
from dptune.measure.inferred.hosts import HostEvents
from dptune.runfile.facts import OptimizerFacts
from dptune.trace.collective_kernels import MOST_CHARACTERS

_ELEMENT = re.compile(r"\b(float|double|c10::Half|__half|c10::BFloat16|__nv_bfloat16|hip_bfloat16)\b")
_DTYPES = {
    "float": "float32",
    "double": "float64",
    "c10::Half": "float16",
    "__half": "float16",
    "c10::BFloat16": "bfloat16",
    "__nv_bfloat16": "bfloat16",
    "hip_bfloat16": "bfloat16",
}
_FUSED = re.compile(r"Fused\w*Functor|AdamFunctor")
_BF16 = re.compile(r"bf16|bfloat16|_BBS?_|^nvjet_(?:sm\d+_)?tst_", re.IGNORECASE)
_FP16 = re.compile(
    r"(?<!b)fp?16|(?<![a-z])half|c10::Half|h(?:884|1688|16816|161616)|[hs]884gemm|_HHS?_|^nvjet_(?:sm\d+_)?hsh_",
    re.IGNORECASE,
)
# Kernels that compute in 16 or 8 bits, or whose name does not say that they do not.
_NARROW = re.compile(
    r"16816|161616|(?<![d\d])884|hgemm|hmma|fp8|e[45]m[23]|^nvjet_|triton_tem|flash|fmha(?!\w*_f32)|attn_fwd|Cijk_(?!\w*_SB?_)",
    re.IGNORECASE,
)
_ATTENTION = re.compile(r"sdpa|flash|attn|fmha", re.IGNORECASE)  # cuDNN's kernels of bf16 are named f16
_WHOLE = {"float32"}


def update_dtypes(host: HostEvents) -> list[str]:
    """The dtypes of the tensors that optimizers compute on, empty where they are not known.

    Of several, some may be of copies, such as float32 master weights. Fused optimizers count steps in float32, in
    separate kernels, which are left out.
    """
    names = host.kernel_names(within=host.updates)
    names = {name for name in names if _FUSED.search(name)} or names
    return sorted({dtype for name in names if (dtype := element_dtype(name)) is not None})


def element_dtype(name: str) -> str | None:
    """The dtype that the name of a kernel has first among its template arguments; None where it names none."""
    found = _ELEMENT.search(name[:MOST_CHARACTERS])
    return None if found is None else _DTYPES[found[1]]


def autocast(host: HostEvents, optimizers: Sequence[OptimizerFacts], *, sharded: bool) -> list[Inferred]:
    """`cuda:bfloat16` if fp32 parameters are multiplied in 16 bits; None if nothing is multiplied in 16 bits.

    FSDP casts parameters itself: then 16 bits do not mean autocast.
    """
    names = [name[:MOST_CHARACTERS] for name in host.kernel_names()]
    products = [name for name in names if kernel_kind(name) in MATRIX_WORK]
    if not products:
        return []
    if not any(map(_may_be_narrow, products)):
        certain = not host.compiles and all(precision(name) is not None for name in products)
        certain = certain and not any(map(_may_be_narrow, names))
        return [Inferred.of("autocast", None, "high" if certain else "medium")]
    if sharded or not optimizers or any(set(optimizer.dtypes) != _WHOLE for optimizer in optimizers):
        return []
    kinds = {_narrow_type(name) for name in products if not _ATTENTION.search(name)} - {""}
    return [Inferred.of("autocast", f"cuda:{kinds.pop()}", "medium")] if len(kinds) == 1 else []


def _may_be_narrow(name: str) -> bool:
    return any(pattern.search(name) for pattern in (_BF16, _FP16, _NARROW))


def _narrow_type(name: str) -> str:
    return "bfloat16" if _BF16.search(name) else "float16" if _FP16.search(name) else ""
