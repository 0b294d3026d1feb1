"""Kernels that communicate, by name: the one table.

A name is read without its template and call arguments, which hold the names of other things: `base_name`. Where the
table is silent, the operator that launched a kernel decides (`measure/device/communicating.py`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from dptune.trace.by_name import once_per_name


@dataclass(frozen=True)
class Library:
    """Kernels of one library: a regular expression of their base names; `kind` of collective where the name hides it.

    `backend` is what torch.distributed calls the library, "" where a library of another name carries it.
    """

    title: str
    name: str
    source: str
    kind: str = ""
    backend: str = ""


_WORDS = r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|(?<![a-z0-9])a2a"

LIBRARIES = (
    Library("NCCL, RCCL, and SHARP under them", r"(?i)nccl|rccl", "NCCL src/device/generate.py", backend="nccl"),
    Library("oneCCL", r"^oneccl_reduce_base", "oneCCL's SYCL all-reduce", kind="all_reduce", backend="xccl"),
    Library("oneCCL", r"(?i)oneccl", "oneCCL's SYCL kernels: oneccl_allreduce_pcie, ...", backend="xccl"),
    Library("HCCL", r"(?i)hccl", "the collective libraries of Gaudi and MTIA", backend="hccl"),
    Library("MSCCL, MSCCL++", r"^msccl|\bmscclpp\b", "RCCL's MSCCL kernels; mscclpp executionKernel"),
    Library("NVSHMEM, rocSHMEM, Intel SHMEM", r"(?i)nvshmem|roc_?shmem|ishmem", "their device libraries"),
    Library("UCC, SHARP", r"^(tl_)?ucc_|^sharp_|^hcoll", "UCC components/ec and tl: their own kernels"),
    Library(
        "DeepEP",
        r"\b(deep_ep|hybrid_ep|uccl)\b(?!::layout).*(dispatch|combine|barrier|notify)",
        "DeepEP csrc/kernels: intranode, internode, internode_ll; layout only counts",
        kind="all_to_all",
    ),
    Library("pplx, MORI", r"\b(pplx|mori)\b.*(?i:dispatch|combine)", "expert-parallel all-to-all", kind="all_to_all"),
    Library("multimem", r"^multimem_|\bmultimem_\w*(reduce|gather)", "torch CUDASymmetricMemoryOps.cu"),
    Library("symmetric memory", r"\b(one|two)_shot_|\b(put|wait)_signal_kernel", "torch CUDASymmetricMemory*.cu"),
    Library("symmetric memory", r"\bbarrier_kernel$", "torch CUDASymmetricMemory.cu", kind="barrier"),
    Library("custom all-reduce", r"\bcross_device_reduce", "custom_all_reduce.cuh of vLLM, AITER", kind="all_reduce"),
    Library("quick-reduce", r"(?i)quick_?(all_?)?reduce", "vLLM csrc/quickreduce", kind="all_reduce"),
    Library("TensorRT-LLM", r"\bmoe_?(A2A|Comm|AllToAll)", "cpp/tensorrt_llm/kernels", kind="all_to_all"),
    Library("Transformer Engine", r"^userbuffers_", "transformer_engine/common/comm_gemm_overlap/userbuffers"),
    Library("any other, Triton's too", rf"(?i){_WORDS}", "named after the collective, as TensorRT-LLM's and MSCCL++'s"),
)
# Kernels that inductor generates are named after the operators that they compute the inputs and outputs of; a product
# fused with a collective computes.
_COMPUTES = re.compile(r"(?i)^triton_(poi|red|per|for|tem|mix|unk)_|gemm|matmul|cutlass")
_PATTERNS = tuple((library, re.compile(library.name)) for library in LIBRARIES)

_RETURN_TYPE = re.compile(r"^(?:void |std::enable_if<.*?>::type )")
_BASE = re.compile(r"((?:\(anonymous namespace\)|\[clone [^\]]*\]|[^<(])*)")
_LENGTH = re.compile(r"\d{1,6}")
MOST_CHARACTERS = 4096  # of a name that are looked through: what follows repeats its arguments


def base_name(name: str) -> str:
    """The qualified name of a kernel without return type and arguments; of one that is mangled its identifiers."""
    name = name[:MOST_CHARACTERS]
    if name.startswith("_Z"):
        return "::".join(_identifiers(name))
    spoken = _RETURN_TYPE.sub("", name)
    found = _BASE.match(spoken)
    return (spoken if found is None else found[1]).strip()


def _identifiers(mangled: str) -> list[str]:
    """The nested name of an Itanium-mangled function: length, identifier, and so on, as far as its arguments."""
    at, found = 2, []
    while at < len(mangled) and mangled[at] in "NKL":
        at += 1
    if mangled.startswith("St", at):  # std
        at += 2
    while length := _LENGTH.match(mangled, at):
        until = length.end() + int(length[0])
        found.append(mangled[length.end() : until])
        at = until
    return found


@once_per_name
def library_of(name: str) -> Library | None:
    """The library whose collective a kernel of this name runs; None where the name shows none."""
    base = base_name(name)
    for library, pattern in _PATTERNS:
        if pattern.search(base):
            return None if library is LIBRARIES[-1] and _COMPUTES.search(base) else library
    return None
