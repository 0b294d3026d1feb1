"""One object of the script -> its facts. Reading may raise: the caller guards."""

from __future__ import annotations

import array
import contextlib
import dataclasses
import hashlib
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.data import IterableDataset, Subset

from dptune.capture.injected.observe import process_rank
from dptune.capture.injected.observe.call_source import lines_of
from dptune.capture.injected.observe.costly_lines import costly_lines
from dptune.capture.injected.observe.dropped_samples import drops
from dptune.capture.injected.observe.indexed_samples import takes_lists
from dptune.capture.injected.observe.observers import Observers
from dptune.capture.injected.observe.padding_lines import padding_lines
from dptune.capture.injected.observe.places import Places
from dptune.capture.injected.observe.sharding import sharded_by
from dptune.capture.injected.observe.shift_lines import shift_lines
from dptune.knobs import of_call
from dptune.runfile.communication import DdpFacts, FsdpFacts
from dptune.runfile.facts import DeviceFacts, OptimizerFacts
from dptune.runfile.loader import LoaderFacts

# x86 (flags) and Arm (Features): source Linux, arch/x86/include/asm/cpufeatures.h and arch/arm64/kernel/cpuinfo.c
HALF_INSTRUCTIONS = {
    *("avx512_fp16", "amx_fp16", "avx512_bf16", "amx_bf16"),
    *("asimdhp", "bf16", "svebf16"),
}

_MOST_INDICES = 100_000  # of a Subset: random ones differ long before


def device() -> DeviceFacts:
    """The device this process computes on."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    facts = DeviceFacts(
        process_rank.device_kind(), cores=os.cpu_count(), usable_cores=usable, torch_threads=torch.get_num_threads()
    )
    if facts.kind == "cpu":
        facts.name, facts.instructions = _processor(), sorted(_flags() & HALF_INSTRUCTIONS)
        facts.available_bytes = _available_bytes()
        return facts
    facts.index = torch.cuda.current_device()
    card = torch.cuda.get_device_properties(facts.index)
    facts.name, facts.memory_bytes = card.name, card.total_memory
    facts.uuid = str(card.uuid) if hasattr(card, "uuid") else None  # since torch 2.5
    facts.clock_khz, facts.memory_clock_khz = (getattr(card, f"{m}clock_rate", None) for m in ("", "memory_"))
    facts.compute_capability = f"{card.major}.{card.minor}"
    facts.peak_allocated_bytes = torch.cuda.max_memory_allocated(facts.index)
    facts.peak_reserved_bytes = torch.cuda.max_memory_reserved(facts.index)
    return facts


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _available_bytes() -> int | None:
    """Memory of the host that is free or can be freed, within the limit of a control group; None where not known."""
    found = []
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        found += [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
        group = Path("/sys/fs/cgroup")
        limit, used = ((group / name).read_text(encoding="utf-8") for name in ("memory.max", "memory.current"))
        found.append(int(limit) - int(used))
    except (OSError, ValueError):
        pass
    return min(found, default=None)


def _flags() -> set[str]:
    """What the CPU can do, by the kernel's names; empty where they are not known."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return set()
    return set(next((line.partition(":")[2] for line in lines if line.startswith(("flags", "Features"))), "").split())


def ddp(module: Any, places: Places) -> DdpFacts:
    """A DistributedDataParallel, from its own log."""
    log = module._get_ddp_logging_data()
    return DdpFacts(
        module=type(module.module).__name__,
        where=places.line(module),
        bucket_cap_bytes=log.get("bucket_cap_bytes"),
        bucket_caps_bytes=_caps(module),
        first_bucket_bytes=_first_bucket(module),
        bucket_sizes=_numbers(log.get("bucket_sizes")),
        rebuilt_bucket_sizes=_numbers(log.get("rebuilt_bucket_sizes")),
        grad_ready_order=_numbers(log.get("prev_iteration_grad_ready_order_indices")),
        gradient_sizes=[
            parameter.numel() * parameter.element_size() for parameter in getattr(module, "_module_parameters", ())
        ],
        gradient_rows=[
            parameter.shape[0] if parameter.dim() > 1 else 0 for parameter in getattr(module, "_module_parameters", ())
        ],
        gradient_dtypes=sorted(
            {str(_dtype(parameter.dtype)) for parameter in getattr(module, "_module_parameters", ())}
        ),
        gradient_bytes=log.get("total_parameter_size_bytes"),
        parameter_tensors=log.get("num_parameter_tensors"),
        backend=log.get("backend_name"),
        find_unused_parameters=bool(module.find_unused_parameters),
        static_graph=bool(module.static_graph),
        gradient_as_bucket_view=bool(module.gradient_as_bucket_view),
        broadcast_buffers=bool(module.broadcast_buffers),
        sync_batch_norm=bool(log.get("has_sync_bn")),
        buffer_bytes=sum(buffer.numel() * buffer.element_size() for buffer in getattr(module, "modules_buffers", ())),
        unused_parameter_bytes=log.get("unused_parameter_size") if module.find_unused_parameters else None,
        batch_norms=sum(isinstance(part, _BatchNorm) and part.running_mean is not None for part in module.modules()),
        through=places.through(module),
        ranks=_ranks(module.process_group),
        comm_hook=log.get("comm_hook"),
        arguments=_arguments("ddp", DdpFacts, vars(module)),
        argument_lines=lines_of(places, module),
    )


def _ranks(group: Any) -> list[int]:
    """None where the group is gone."""
    try:
        return dist.get_process_group_ranks(group)
    except Exception:
        return []


def _caps(module: Any) -> list[int]:
    return list(getattr(getattr(module, "_bucket_config", None), "per_bucket_bytes_caps", ()))


def _first_bucket(module: Any) -> int | None:
    if hasattr(module, "_bucket_config"):
        return int(module._bucket_config.first_bucket_bytes_cap)
    if getattr(module, "bucket_bytes_cap_default", False):  # of an older torch, which asks as it makes the module
        return int(dist._DEFAULT_FIRST_BUCKET_BYTES)  # type: ignore[attr-defined]
    return getattr(module, "bucket_bytes_cap", None)


def _numbers(text: Any) -> list[int]:
    return [int(part) for part in str(text or "").replace(",", " ").split()]


def fsdp(places: Places) -> list[FsdpFacts]:
    """What is sharded, by either FSDP; units alike from one line are one entry."""
    flat = places.alive("FullyShardedDataParallel")
    paths = _paths(flat)
    found = [_fsdp1(unit, places.line(unit), paths.get(id(unit), "")) for unit in flat]
    found += [_fsdp2(state, where) for state, where in ((ref(), where) for ref, where in places.sharded) if state]
    merged: list[FsdpFacts] = []
    for unit_facts in found:
        alike = next((other for other in merged if _settings(other) == _settings(unit_facts)), None)
        if alike is None:
            merged.append(unit_facts)
        else:
            _add(alike, unit_facts)
    return merged


_WRAPPED = "_fsdp_wrapped_module"
# What differs between units that are sharded alike.
_OF_A_UNIT = ("units", "modules", "names", "gathered_bytes", "order", "kept_sharded_in_backward")
_DEPTHS = ("forward_prefetch", "backward_prefetch", "forward_prefetch_depth", "backward_prefetch_depth")


def _settings(facts: FsdpFacts) -> dict[str, Any]:
    apart = _OF_A_UNIT + (_DEPTHS if facts.version == 2 else ())  # the last unit of a pass prefetches none
    return {name: value for name, value in vars(facts).items() if name not in apart}


def _add(facts: FsdpFacts, unit: FsdpFacts) -> None:
    facts.units += unit.units
    facts.modules += [name for name in unit.modules if name not in facts.modules]
    facts.names += unit.names
    facts.gathered_bytes += unit.gathered_bytes
    facts.order += unit.order
    facts.kept_sharded_in_backward += unit.kept_sharded_in_backward
    facts.forward_prefetch = bool(facts.forward_prefetch or unit.forward_prefetch)
    facts.backward_prefetch = facts.backward_prefetch or unit.backward_prefetch
    facts.forward_prefetch_depth = max(facts.forward_prefetch_depth, unit.forward_prefetch_depth)
    facts.backward_prefetch_depth = max(facts.backward_prefetch_depth, unit.backward_prefetch_depth)


def _paths(units: list[Any]) -> dict[int, str]:
    """The path of each unit of FullyShardedDataParallel in the root that holds it, by its id."""
    found: dict[int, str] = {}
    for root in units:
        if getattr(root, "_is_root", False):
            for path, module in root.named_modules():
                found[id(module)] = ".".join(part for part in path.split(".") if part != _WRAPPED)
    return found


def _fsdp1(unit: Any, where: str | None, path: str) -> FsdpFacts:
    prefetch, mixed = unit.backward_prefetch, unit.mixed_precision
    between = getattr(unit, "_inter_node_pg", None)  # of HYBRID_SHARD: the replicas
    facts = FsdpFacts(
        1,
        units=1,
        where=where,
        modules=[type(unit.module).__name__],
        strategy=unit.sharding_strategy.name,
        mesh=[*([] if between is None else [between.size()]), unit.process_group.size()],
        reshard_after_forward=unit.sharding_strategy.name in ("FULL_SHARD", "HYBRID_SHARD"),
        parameter_dtype=_dtype(mixed.param_dtype),
        reduce_dtype=_dtype(mixed.reduce_dtype),
        offload="CPUOffload" if unit.cpu_offload.offload_params else None,
        backward_prefetch=None if prefetch is None else prefetch.name,
        forward_prefetch=bool(unit.forward_prefetch),
        limit_all_gathers=bool(unit.limit_all_gathers),
    )
    handle = getattr(unit, "_handle", None)
    if handle is not None and handle._pre_forward_order_index is not None:
        parameter = handle.flat_param
        dtype = mixed.param_dtype or parameter.dtype
        facts.names, facts.order = [path], [int(handle._pre_forward_order_index)]
        facts.gathered_bytes = [int(parameter._unpadded_unsharded_size.numel() * dtype.itemsize)]
    return facts


def _fsdp2(state: Any, where: str | None) -> FsdpFacts:
    groups = getattr(state, "_fsdp_param_groups", None) or [getattr(state, "_fsdp_param_group", None)]
    facts = FsdpFacts(
        2,
        units=1,
        where=where,
        modules=[type(module).__name__.removeprefix("FSDP") for module in state._modules],
        parameter_dtype=_dtype(state._mp_policy.param_dtype),
        reduce_dtype=_dtype(state._mp_policy.reduce_dtype),
        backward_prefetch="explicit" if state._states_to_backward_prefetch else None,
        forward_prefetch=bool(state._states_to_forward_prefetch),
        root=state._is_root,
        forward_prefetch_depth=len(state._states_to_forward_prefetch),
        backward_prefetch_depth=len(state._states_to_backward_prefetch),
    )
    for group in groups:
        if group is not None:
            _add_group(facts, group)
    return facts


def _add_group(facts: FsdpFacts, group: Any) -> None:
    after = group.post_forward_mesh_info
    whole = after is None or after is group.mesh_info or after == group.mesh_info
    facts.mesh = list(group.mesh_info.mesh.shape)
    facts.strategy = "HYBRID_SHARD" if len(facts.mesh) > 1 else "FULL_SHARD"
    facts.reshard_after_forward = after is not None if whole else int(after.shard_mesh_size)
    policy = type(group.offload_policy).__name__
    facts.offload = None if policy == "OffloadPolicy" else policy
    facts.names.append(group._module_fqn or "")
    facts.gathered_bytes.append(sum(map(_gathered_bytes, group.fsdp_params)))
    facts.kept_sharded_in_backward += not getattr(group, "unshard_in_backward", True)
    facts.reshard_after_backward = bool(group.reshard_after_backward)


def _gathered_bytes(parameter: Any) -> int:
    dtype = getattr(parameter, "param_dtype", None) or parameter.sharded_param.dtype
    return int(parameter._orig_size.numel() * dtype.itemsize)


def _dtype(dtype: torch.dtype | None) -> str | None:
    return None if dtype is None else str(dtype).removeprefix("torch.")


def loader(loader: Any, observers: Observers) -> LoaderFacts:
    """A DataLoader."""
    places = observers.places
    batches = loader.batch_sampler
    while hasattr(batches, "batch_sampler"):  # Accelerate shards a loader by wrapping what it draws batches with
        batches = batches.batch_sampler
    iterable = isinstance(loader.dataset, IterableDataset)
    dropped, costly = None, dict[str, str]()
    with contextlib.suppress(Exception):  # there may be no source to read
        dropped = drops(loader.dataset) if iterable else None
        costly = costly_lines(loader.dataset)
    takes_list = False
    with contextlib.suppress(Exception):
        takes_list = takes_lists(loader.dataset)
    padding = observers.meters.padding.facts(id(loader._index_sampler))
    with contextlib.suppress(Exception):
        if padding is not None:
            padding.lines = padding_lines(loader)
    shifts = list[str]()
    with contextlib.suppress(Exception):
        shifts = shift_lines(loader)
    sampler = loader.sampler if batches is loader.batch_sampler else getattr(batches, "sampler", loader.sampler)
    epoch_length = undivided_length = None
    with contextlib.suppress(Exception):  # an iterable data set does not say where it ends
        epoch_length = len(loader)
        undivided_length = len(batches) if getattr(loader.batch_sampler, "num_processes", 1) > 1 else None
    own_batches = loader.batch_size is None and batches is loader.batch_sampler and batches is not None
    return LoaderFacts(
        where=places.line(loader),
        through=places.through(loader),
        batch_size=loader.batch_size or getattr(batches, "batch_size", None),
        num_workers=loader.num_workers,
        pin_memory=loader.pin_memory,
        pins=places.pins.get(id(loader._index_sampler)),
        persistent_workers=loader.persistent_workers,
        prefetch_factor=loader.prefetch_factor,
        drop_last=loader.drop_last,
        dataset=type(loader.dataset).__name__,
        dataset_samples=len(loader.dataset) if hasattr(loader.dataset, "__len__") else None,
        subset=subset_digest(loader.dataset),
        batches_drawn=places.draws[id(loader._index_sampler)],
        sampler=type(sampler).__name__,
        sampler_where=places.line(sampler),
        iterated_at=observers.iterators.first_line(loader),
        distributed_sampler=hasattr(sampler, "num_replicas") or hasattr(loader.batch_sampler, "process_index"),
        replicas=getattr(sampler, "num_replicas", None),
        sampler_epoch=getattr(sampler, "epoch", None) if getattr(sampler, "shuffle", False) else None,
        own_batches=own_batches,
        batch_sampler=type(batches).__name__ if own_batches else None,
        preparing=observers.preparing.facts(loader),
        generators=observers.generators.facts(loader.dataset),
        random_samples=observers.generators.draws(loader.dataset),
        iterable=iterable,
        sharded_by=sharded_by(loader) if iterable else None,
        prepares_at=dropped[0] if dropped else None,
        drops_at=dropped[1] if dropped else None,
        costly_lines=costly,
        takes_lists=takes_list,
        shifts_at=shifts,
        epoch_length=epoch_length,
        undivided_length=undivided_length,
        padding=padding,
        arguments=_arguments("loader", LoaderFacts, vars(loader)),
        argument_lines=lines_of(places, loader),
    )


def subset_digest(dataset: Any) -> str | None:
    """Of the length and the first indices of a Subset; None where it is none."""
    if not isinstance(dataset, Subset):
        return None
    with contextlib.suppress(Exception):  # indices may be anything
        indices = array.array("q", (len(dataset), *map(int, dataset.indices[:_MOST_INDICES])))
        return hashlib.blake2b(indices.tobytes(), digest_size=8).hexdigest()
    return None


def _arguments(call: str, facts: type, attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of a call that are knobs and no field of the facts, by what the object keeps of them."""
    fields = {field.name for field in dataclasses.fields(facts)}
    wanted = (knob.argument for knob in of_call(call) if knob.argument not in fields)
    return {name: attributes[name] for name in wanted if isinstance(attributes.get(name), bool | int | float | str)}


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def optimizer(optimizer: Any, places: Places) -> OptimizerFacts:
    """An optimizer, with the learning rates of this moment."""
    tensors = [tensor for group in optimizer.param_groups for tensor in group["params"]]
    first = optimizer.param_groups[0]
    return OptimizerFacts(
        name=type(optimizer).__name__,
        where=places.line(optimizer),
        learning_rates=[float(group["lr"]) for group in optimizer.param_groups if "lr" in group],
        default_learning_rate=_number(optimizer.defaults.get("lr")),
        first_learning_rate=float(first["initial_lr"]) if "initial_lr" in first else None,
        fused=first.get("fused"),
        foreach=first.get("foreach"),
        betas=[float(beta) for beta in first.get("betas") or () if isinstance(beta, float)],
        eps=first["eps"] if "betas" in first and isinstance(first.get("eps"), float) else None,
        parameter_tensors=len(tensors),
        parameters=sum(getattr(tensor, "_local_tensor", tensor).numel() for tensor in tensors),  # FSDP2: of this rank
        dtypes=sorted({str(_dtype(tensor.dtype)) for tensor in tensors}),
        arguments=_arguments("optimizer", OptimizerFacts, optimizer.defaults),
        argument_lines=lines_of(places, optimizer),
    )
