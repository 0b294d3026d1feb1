"""What else a trace shows of how the model runs: fused attention, CUDA graphs, checkpointing, compilation, the GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dptune.advice import Confidence
from dptune.measure.device.architectures import architecture_of
from dptune.measure.device.matmul import device_of
from dptune.measure.inferred.compilation import compilation
from dptune.measure.inferred.hosts import HostEvents
from dptune.measure.inferred.loaders import workers
from dptune.measured import Trait
from dptune.trace.vendors import GRAPH_LAUNCH_NAME

_FUSED = {  # operators of torch.nn.functional.scaled_dot_product_attention, by what they run
    "flash attention": re.compile(r"aten::_scaled_dot_product_flash_attention(_for_cpu)?$"),
    "memory-efficient attention": re.compile(r"aten::_scaled_dot_product_efficient_attention$"),
    "cuDNN attention": re.compile(r"aten::_scaled_dot_product_cudnn_attention$"),
    "separate operators": re.compile(r"aten::_scaled_dot_product_attention_math$"),
}


def traits(host: HostEvents) -> Iterator[Trait]:
    """A trait for each of these that the trace shows; none for those that it does not show."""
    found = [kind for kind, pattern in _FUSED.items() if len(host.rows(pattern))]
    if found:
        yield _trait("attention", f"{' and '.join(found)} (scaled_dot_product_attention)", "high")
    if graphs := len(host.calls(GRAPH_LAUNCH_NAME)):
        yield _trait("CUDA graphs", f"{graphs / max(1, len(host.view.steps)):.3g} launches per step", "high")
    if host.inside(host.forward, host.backward).any():  # a backward pass of the script's own may run some, too
        yield _trait("checkpointing", "operators of the forward pass run again in the backward pass", "medium")
    if number := workers(host):
        yield _trait("DataLoader workers", f"{number}: the longest waits for a batch are {number} batches apart", "low")
    yield from compilation(host)
    device = device_of(host.view)
    if (device is None or not device.name) and (shown := architecture_of(host.view)) is not None:
        kernels = f"{shown.kernels} kernel{'s are' if shown.kernels > 1 else ' is'} compiled for it"
        yield _trait("GPU", f"{shown.text}: {kernels}", "high" if shown.exact else "medium")


def _trait(name: str, value: str, confidence: Confidence) -> Trait:
    return Trait(name=name, value=value, confidence=confidence)
