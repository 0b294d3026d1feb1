"""Sums of a few parameters: equal on ranks that hold the same weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from dptune.capture.injected.observe import process_rank
from dptune.capture.injected.observe.places import Places

_TENSORS = 8
_LAST = 2  # of a new layer behind a pretrained model
_ELEMENTS = 1 << 20  # of each: a few milliseconds in all, on a CPU


@torch.no_grad()
def parameter_sums(places: Places) -> list[float]:
    """Of parameters spread over the model; none where a rank is alone, or holds shards."""
    if not process_rank.together() or places.engine or places.sharded or places.alive("FullyShardedDataParallel"):
        return []
    trained = [parameter for parameter in _trained(places) if _is_whole(parameter)]
    stride = max(1, -(-len(trained) // _TENSORS))
    indices = range(len(trained))
    sampled = [trained[at] for at in sorted({*indices[::stride], *indices[-_LAST:]})]
    # one transfer from the device, not one for each
    sums = [parameter.view(-1)[:_ELEMENTS].sum(dtype=torch.float64) for parameter in sampled]
    return [float(total) for total in torch.stack(sums).tolist()] if sums else []


def _trained(places: Places) -> Sequence[Any]:
    """The parameters of the DDP modules; without any, those of the optimizer that has most."""
    if modules := places.ddp():
        return [parameter for module in modules for parameter in module.parameters() if parameter.requires_grad]
    held = [
        [param for group in optimizer.param_groups for param in group["params"]]
        for optimizer in places.alive(Optimizer)
    ]
    return max(held, key=lambda parameters: sum(param.numel() for param in parameters), default=[])


def _is_whole(parameter: Any) -> bool:
    """An ordinary dense tensor: no shard of a distributed one, and nothing that would have to be copied."""
    dense = parameter.layout == torch.strided and parameter.is_floating_point() and parameter.device.type != "meta"
    return dense and parameter.is_contiguous() and not hasattr(parameter, "device_mesh")
