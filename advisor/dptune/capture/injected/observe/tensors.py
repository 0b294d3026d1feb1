"""Weighs the tensors that are alive between two steps, by what they are for.

One look over all objects that Python tracks, after the warm-up. Nothing is kept alive by it, and nothing is computed.
What only C++ holds, such as the buckets of DistributedDataParallel, is not seen.
"""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from dptune.capture.injected.observe.kept_tensors import MOST_OBJECTS, optimizer_state
from dptune.capture.injected.observe.places import Places
from dptune.runfile.tensors import TensorFacts

_SIZES = 256  # of parameters, that are put down


def tensors(places: Places, device_kind: str) -> TensorFacts | None:
    """What is alive on this rank's device; None where Python tracks too many objects to look at them."""
    objects = gc.get_objects()
    if len(objects) > MOST_OBJECTS:
        return None
    optimizers = places.alive(Optimizer)
    modules = [thing for thing in objects if issubclass(type(thing), nn.Module)]
    alive = [thing for thing in objects if type(thing) in (torch.Tensor, nn.Parameter)]
    del objects
    trained = {
        id(parameter): parameter
        for optimizer in optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    held = {id(parameter): parameter for module in modules for parameter in _values(module, "_parameters")}
    parameters = {**trained, **held}
    seen: set[int] = set()

    def weighed(found: Iterable[Any]) -> int:
        return sum(_storages(found, device_kind, seen))

    facts = TensorFacts(
        parameter_bytes=weighed(parameters.values()),
        gradient_bytes=weighed(parameter.grad for parameter in parameters.values() if parameter.grad is not None),
        state_bytes=weighed(optimizer_state(optimizers)),
        buffer_bytes=weighed(buffer for module in modules for buffer in _values(module, "_buffers")),
        other_bytes=weighed(alive),
        whole_bytes=sum(map(_bytes, parameters.values())),
        trained_bytes=sum(_bytes(parameter) for parameter in trained.values() if parameter.requires_grad),
        trained_tensors=sum(bool(parameter.requires_grad) for parameter in trained.values()),
        parameter_sizes=sorted(set(map(_bytes, parameters.values())), reverse=True)[:_SIZES],
    )
    facts.block, facts.block_bytes = _blocks(modules)
    return facts


def _values(module: Any, kind: str) -> Iterator[Any]:
    yield from (value for value in module.__dict__.get(kind, {}).values() if isinstance(value, torch.Tensor))


def _bytes(tensor: Any) -> int:
    """Of all of it, whatever part of it this rank has."""
    return int(tensor.numel() * tensor.element_size())


def _storages(found: Iterable[Any], device_kind: str, seen: set[int]) -> Iterator[int]:
    """The sizes of storages that were not seen before, on a device of that kind."""
    for tensor in found:
        local = getattr(tensor, "_local_tensor", tensor)  # this rank's part of a DTensor
        if local.layout != torch.strided or local.device.type != device_kind:
            continue
        storage = local.untyped_storage()
        if storage.nbytes() and storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            yield storage.nbytes()


def _blocks(modules: Iterable[Any]) -> tuple[str, list[int]]:
    """The class and the parameters of each of the modules of the largest list of modules of one class.

    Also of a part of a list, as between a first and a last layer, where these modules hold others.
    """
    most: tuple[str, list[int]] = ("", [])
    for module in modules:
        if not isinstance(module, (nn.ModuleList, nn.Sequential)):
            continue
        for kind, alike in itertools.groupby(module, lambda block: type(block).__name__.removeprefix("FSDP")):
            blocks = list(alike)
            whole = len(blocks) == len(module) or all(any(block.children()) for block in blocks)
            sizes = [sum(map(_bytes, block.parameters())) for block in blocks]
            if len(blocks) > 1 and whole and sum(sizes) > sum(most[1]):
                most = kind, sizes
    return most
