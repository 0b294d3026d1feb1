"""Kernels of a cross entropy that read or write all logits: log-softmax, its gradient, and the negative log likelihood.

| kernel | names that tell it |
|---|---|
| log-softmax | LogSoftMaxForwardEpilogue, LogSoftMaxBackwardEpilogue |
| the same, 513 classes or more | softmax_warp_forward<input, output, sum, log2 of classes, true, ...>, log2 >= 10 |
| negative log likelihood | nll_loss_forward_reduce_cuda_kernel_2d |
| compiled | triton_red_fused__log_softmax_... |

Source: torch ATen native/cuda SoftMax.cu, PersistentSoftmax.cuh, Loss.cu; torch inductor codegen/triton.py.
Inductor names a kernel after everything that shares a node with it: on a public trace `nll_loss_forward` is in the name
of a kernel of each layer, so of compiled kernels only those with a log-softmax count. A fused loss (Liger, Apex) has
neither name. Losses of up to 512 classes do not count: a log2 below 10, and compiled kernels that reduce few elements
(`triton_per_`, `triton_poi_`). Nor do those of images (`nll_loss2d`, SpatialSoftMax): their logits are no matrix
product's. A likelihood counts only beside a log-softmax that does.
"""

from __future__ import annotations

import re

from dptune.trace.by_name import once_per_name
from dptune.trace.collective_kernels import MOST_CHARACTERS

_COMPILED = "triton_"
_LOG_SOFTMAX = re.compile(
    r"^(?!triton_p(?:er|oi)_).*?(?:log_?softmax|softmax_warp_(?:for|back)ward<(?:[^<>,]+, ?){3}1\d, ?true)",
    re.IGNORECASE,
)
_LIKELIHOOD = re.compile(r"nll_?loss(?!_?2d)", re.IGNORECASE)
_OF_IMAGES = re.compile(r"spatial_?softmax|nll_?loss_?2d", re.IGNORECASE)


@once_per_name
def is_of_loss(name: str) -> bool:
    """Whether this is the name of a kernel of log-softmax or of the negative log likelihood."""
    name = name[:MOST_CHARACTERS]
    if _OF_IMAGES.search(name):
        return False
    return is_log_softmax(name) or (is_likelihood(name) and not is_compiled(name))


@once_per_name
def is_log_softmax(name: str) -> bool:
    """Whether this is the name of a kernel of a log-softmax, or of its gradient, of 513 classes or more."""
    name = name[:MOST_CHARACTERS]
    return _LOG_SOFTMAX.search(name) is not None and _OF_IMAGES.search(name) is None


@once_per_name
def is_likelihood(name: str) -> bool:
    """Whether a negative log likelihood is in the name: a log-softmax without one is of another loss, such as CTC."""
    return _LIKELIHOOD.search(name[:MOST_CHARACTERS]) is not None


def is_compiled(name: str) -> bool:
    """Whether torch.compile generated the kernel."""
    return name.startswith(_COMPILED)
