"""What else a trace shows of how the model runs: attention, TF32, CUDA graphs, checkpointing, compilation, the GPU.

A CUDA graph and a compiled model run no operators of attention: then the names of its kernels show which it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from dptune.advice import Confidence
from dptune.measure.device.architectures import architecture_of
from dptune.measure.device.matmul import device_of
from dptune.measure.device.precisions import is_fp32, is_tensor_core
from dptune.measure.inferred.compilation import compilation
from dptune.measure.inferred.hosts import HostEvents
from dptune.measure.inferred.loaders import workers
from dptune.measure.inferred.readiness import readiness
from dptune.measure.inferred.recomputing import Recomputed
from dptune.measured import Trait
from dptune.trace.collective_kernels import MOST_CHARACTERS
from dptune.trace.vendors import GRAPH_LAUNCH_NAME

_FUSED = {  # operators of torch.nn.functional.scaled_dot_product_attention, by what they run
    "flash attention": re.compile(r"aten::_scaled_dot_product_flash_attention(_for_cpu)?$"),
    "memory-efficient attention": re.compile(r"aten::_scaled_dot_product_efficient_attention$"),
    "cuDNN attention": re.compile(r"aten::_scaled_dot_product_cudnn_attention$"),
    "separate operators": re.compile(r"aten::_scaled_dot_product_attention_math$"),
}
_FUSED_KERNELS = {
    "flash attention": re.compile(r"flash_(?:fwd|bwd)_|FlashAttn|^attn_fwd"),
    "memory-efficient attention": re.compile(r"fmha_cutlass[FB]_|AttentionKernel<"),
}
_TF32 = re.compile(r"tf32|tfloat32|(?<![a-z0-9])s1688gemm(?!_b?fp?16)", re.IGNORECASE)
_TF32_SINCE = 8  # compute capability: Ampere


def traits(host: HostEvents, *, recomputed: Recomputed | None) -> Iterator[Trait]:
    """A trait for each of these that the trace shows; none for those that it does not show.

    `recomputed`: operators of the forward pass that backward passes run again.
    """
    found = [kind for kind, pattern in _FUSED.items() if len(host.rows(pattern))]
    names = {name[:MOST_CHARACTERS] for name in host.kernel_names()}
    if found:
        yield _trait("attention", f"{' and '.join(found)} (scaled_dot_product_attention)", "high")
    elif found := [kind for kind, pattern in _FUSED_KERNELS.items() if any(map(pattern.search, names))]:
        yield _trait("attention", f"{' and '.join(found)} (by its kernels)", "high")
    yield from _tf32(host, names)
    if graphs := len(host.calls(GRAPH_LAUNCH_NAME)):
        yield _trait("CUDA graphs", f"{graphs / max(1, len(host.view.steps)):.3g} launches per step", "high")
    if recomputed is not None and recomputed.by_checkpoints:
        yield _trait("checkpointing", "yes: forward operators rerun in the backward pass", "medium")
    elif recomputed is not None:
        value = "forward operators rerun in the backward pass of a custom autograd.Function"
        yield _trait("recomputation", value, "medium")
    if number := workers(host):
        yield _trait("DataLoader workers", f"{number}: the longest waits for a batch are {number} batches apart", "low")
    yield from readiness(host)
    yield from compilation(host)
    device = device_of(host.view)
    if (device is None or not device.name) and (shown := architecture_of(host.view)) is not None:
        kernels = f"{shown.kernels} kernel{'s are' if shown.kernels > 1 else ' is'} compiled for it"
        yield _trait("GPU", f"{shown.text}: {kernels}", "high" if shown.exact else "medium")


def _tf32(host: HostEvents, names: set[str]) -> Iterator[Trait]:
    """Whether products of fp32 tensors use TF32, on a GPU that has it."""
    device = device_of(host.view)
    if device is None or (device.compute_major or 0) < _TF32_SINCE:
        return
    fast = sum(is_tensor_core(name) and _TF32.search(name) is not None for name in names)
    slow = sum(map(is_fp32, names))
    kernels = f"{fast} TF32 kernel{'' if fast == 1 else 's'}, {slow} fp32 kernel{'' if slow == 1 else 's'}"
    if fast or slow:
        yield _trait("TF32", f"{'partly' if fast and slow else 'on' if fast else 'off'}: {kernels}", "medium")


def _trait(name: str, value: str, confidence: Confidence) -> Trait:
    return Trait(name=name, value=value, confidence=confidence)
