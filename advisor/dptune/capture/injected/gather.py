"""Collects the facts of this rank. Each is read under its own guard: reading some torch settings can raise."""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Callable
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from dptune.capture.injected import identity
from dptune.capture.injected.places import Places
from dptune.runfile.facts import DdpFacts, DeviceFacts, Facts, LoaderFacts, OptimizerFacts
from dptune.runfile.redaction import redacted_environment

_SETTINGS: dict[str, Callable[[], Any]] = {
    "float32_matmul_precision": torch.get_float32_matmul_precision,
    "backends.cuda.matmul.allow_tf32": lambda: torch.backends.cuda.matmul.allow_tf32,
    "backends.cudnn.allow_tf32": lambda: torch.backends.cudnn.allow_tf32,
    "backends.cudnn.benchmark": lambda: torch.backends.cudnn.benchmark,
    "backends.cudnn.deterministic": lambda: torch.backends.cudnn.deterministic,
    "anomaly_mode": torch.is_anomaly_enabled,
    "deterministic_algorithms": torch.are_deterministic_algorithms_enabled,
    "default_dtype": lambda: str(torch.get_default_dtype()),
}


def gather(facts: Facts, places: Places) -> None:
    """Fill in everything but the windows; a later call reads again, so that the last one stands."""
    readings: dict[str, Callable[[], Any]] = {
        "local_rank": identity.local_rank,
        "world_size": identity.world_size,
        "host": socket.gethostname,
        "pid": os.getpid,
        "python": platform.python_version,
        "torch": lambda: str(torch.__version__),
        "backend": lambda: identity.backend() or facts.backend,
        "device": _device,
        "ddp": lambda: [_ddp(module, places) for module in places.ddp()] or facts.ddp,
        "loaders": lambda: [_loader(loader, places) for loader in places.alive(DataLoader)] or facts.loaders,
        "optimizers": lambda: [_optimizer(o, places) for o in places.alive(Optimizer)] or facts.optimizers,
        "environment": redacted_environment,
        "autocast": lambda: places.autocast,
        "grad_scaler": lambda: any(scaler.is_enabled() for scaler in places.alive(GradScaler)),
    }
    facts.unread = {}
    for name, read in readings.items():
        _guarded(facts, name, lambda name=name, read=read: setattr(facts, name, read()))  # type: ignore[misc]
    for name, read in _SETTINGS.items():
        _guarded(facts, name, lambda name=name, read=read: facts.settings.__setitem__(name, read()))  # type: ignore[misc]


def _guarded(facts: Facts, name: str, read: Callable[[], None]) -> None:
    try:
        read()
    except Exception as error:
        facts.unread[name] = f"{type(error).__name__}: {error}"


def _device() -> DeviceFacts:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    facts = DeviceFacts(
        identity.device_kind(), cores=os.cpu_count(), usable_cores=usable, torch_threads=torch.get_num_threads()
    )
    if facts.kind == "cpu":
        facts.name = platform.processor() or platform.machine()
        return facts
    facts.index = torch.cuda.current_device()
    card = torch.cuda.get_device_properties(facts.index)
    facts.name, facts.memory_bytes = card.name, card.total_memory
    facts.compute_capability = f"{card.major}.{card.minor}"
    facts.peak_allocated_bytes = torch.cuda.max_memory_allocated(facts.index)
    facts.peak_reserved_bytes = torch.cuda.max_memory_reserved(facts.index)
    return facts


def _ddp(module: Any, places: Places) -> DdpFacts:
    log = module._get_ddp_logging_data()
    return DdpFacts(
        module=type(module.module).__name__,
        where=places.line(module),
        bucket_cap_bytes=log.get("bucket_cap_bytes"),
        bucket_sizes=_numbers(log.get("bucket_sizes")),
        rebuilt_bucket_sizes=_numbers(log.get("rebuilt_bucket_sizes")),
        grad_ready_order=_numbers(log.get("prev_iteration_grad_ready_order_indices")),
        gradient_bytes=log.get("total_parameter_size_bytes"),
        parameter_tensors=log.get("num_parameter_tensors"),
        backend=log.get("backend_name"),
        find_unused_parameters=bool(module.find_unused_parameters),
        static_graph=bool(module.static_graph),
        gradient_as_bucket_view=bool(module.gradient_as_bucket_view),
        broadcast_buffers=bool(module.broadcast_buffers),
        comm_hook=log.get("comm_hook"),
    )


def _numbers(text: Any) -> list[int]:
    return [int(part) for part in str(text or "").replace(",", " ").split()]


def _loader(loader: Any, places: Places) -> LoaderFacts:
    sampler = loader.sampler
    return LoaderFacts(
        where=places.line(loader),
        batch_size=loader.batch_size,
        num_workers=loader.num_workers,
        pin_memory=loader.pin_memory,
        persistent_workers=loader.persistent_workers,
        prefetch_factor=loader.prefetch_factor,
        drop_last=loader.drop_last,
        dataset=type(loader.dataset).__name__,
        dataset_samples=len(loader.dataset) if hasattr(loader.dataset, "__len__") else None,
        batches_drawn=places.draws[id(loader._index_sampler)],
        sampler=type(sampler).__name__,
        distributed_sampler=hasattr(sampler, "num_replicas"),
    )


def _optimizer(optimizer: Any, places: Places) -> OptimizerFacts:
    tensors = [tensor for group in optimizer.param_groups for tensor in group["params"]]
    first = optimizer.param_groups[0]
    return OptimizerFacts(
        name=type(optimizer).__name__,
        where=places.line(optimizer),
        learning_rates=[float(group["lr"]) for group in optimizer.param_groups if "lr" in group],
        fused=first.get("fused"),
        foreach=first.get("foreach"),
        parameter_tensors=len(tensors),
        parameters=sum(tensor.numel() for tensor in tensors),
    )
