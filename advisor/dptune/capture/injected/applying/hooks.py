"""Communication hooks of DistributedDataParallel: what a bucket of gradients is turned into before it is sent."""

from __future__ import annotations

import functools
import importlib
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from dptune.capture.injected.applying.constructing import adjust, follow
from dptune.capture.injected.applying.requested import asked

KNOB = "ddp.comm_hook"
_ONE_BUCKET_MB = 1 << 20
_TORCHS = "torch.distributed.algorithms.ddp_comm_hooks"
# By the knob's word: the module and the hook of torch. They are imported where they are asked for: one imports NumPy.
_HOOKS = {
    "fp16": ("default_hooks", "fp16_compress_hook"),
    "bf16": ("default_hooks", "bf16_compress_hook"),
    "powersgd": ("powerSGD_hook", "powerSGD_hook"),
}
_STEPS = "the existing hook steps the optimizer"
# Hooks that do more than communicate: without them, gradients stay in 16 bits, or nothing steps the optimizer.
_INDISPENSABLE = {
    f"{_TORCHS}.mixed_precision_hooks": "DDP's mixed precision installs its own hook",
    f"{_TORCHS}.optimizer_overlap_hooks": _STEPS,
    f"{_TORCHS}.ddp_zero_hook": _STEPS,
}


class _Choice:
    """Which hook a module gets: the one asked for, unless it has one that is indispensable."""

    def __init__(self, value: str) -> None:
        self._value = value
        self._hook: Any = None if value == "none" else _named(value, _torchs(*_HOOKS[value]))
        self._waiting: list[weakref.ref[Any]] = []
        self._register = DistributedDataParallel.register_comm_hook

    def install(self) -> None:
        """Pass over what the script registers, and register after that."""
        register, builtin = self._register, DistributedDataParallel._register_builtin_comm_hook

        @functools.wraps(register)
        def passed_over(this: Any, state: object, hook: Callable[..., Any]) -> None:
            if why := _INDISPENSABLE.get(getattr(getattr(hook, "func", hook), "__module__", "")):  # or a partial's
                asked.refuse(KNOB, why)
                register(this, state, hook)

        @functools.wraps(builtin)
        def builtin_passed_over(this: Any, comm_hook_type: Any) -> None:
            pass

        DistributedDataParallel.register_comm_hook = passed_over  # type: ignore[method-assign, assignment]
        DistributedDataParallel._register_builtin_comm_hook = builtin_passed_over  # type: ignore[method-assign]
        if self._hook is not None:
            follow(DistributedDataParallel, lambda module: self._waiting.append(weakref.ref(module)))
            self._before_backward()

    def _before_backward(self) -> None:
        """Register as the first backward pass begins: by then the script, and DDP itself, have registered theirs."""
        backward = torch.autograd.backward

        @functools.wraps(backward)
        def after_registering(*args: Any, **kwargs: Any) -> None:
            while self._waiting:
                module = self._waiting.pop()()
                if module is not None:
                    self._give(module)
            backward(*args, **kwargs)

        torch.autograd.backward = after_registering

    def _give(self, module: Any) -> None:
        if getattr(module, "_comm_hooks", None):
            return
        if any(hasattr(parameter, "_in_backward_optimizers") for parameter in module.parameters()):
            asked.refuse(KNOB, _STEPS)  # at its first forward pass the module registers a hook that does
            return
        try:
            self._register(module, self._state(module), self._hook)
        except Exception as error:
            asked.refuse(KNOB, f"torch refuses it: {error}")

    def _state(self, module: Any) -> Any:
        if self._value != "powersgd":
            return module.process_group
        state = _torchs("powerSGD_hook", "PowerSGDState")
        return state(module.process_group, matrix_approximation_rank=1, start_powerSGD_iter=2)


def _torchs(module: str, name: str) -> Any:
    return getattr(importlib.import_module(f"{_TORCHS}.{module}"), name)


def _named(name: str, hook: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    """A hook by a name of its own, as which it stands in the facts.

    DDP refuses torch's own bf16 hook, by its name, where the backend is not NCCL, and any annotation but torch's.
    """

    def called(state: Any, bucket: Any) -> Any:
        return hook(state, bucket)

    called.__annotations__.clear()
    called.__qualname__ = f"{name}_gradients"
    return called


def comm_hook(value: str) -> None:
    """One of `fp16`, `bf16` and `powersgd`, or `none`; a hook that the script registers itself is left out.

    PowerSGD begins with the third step, as its error feedback must, and without NCCL it gets one bucket for all
    gradients: with several, gloo's collectives of two buckets cross and never end.
    """
    _Choice(value).install()
    if value == "powersgd":
        adjust(DistributedDataParallel, _one_bucket)


def _one_bucket(given: dict[str, Any]) -> None:
    group, mesh = given.get("process_group"), given.get("device_mesh")
    if group is None and mesh is not None:
        group = mesh.get_group(mesh_dim=0)
    if dist.get_backend(group) != "nccl":
        given["bucket_cap_mb"] = _ONE_BUCKET_MB
        given.pop("bucket_cap_mb_list", None)


APPLIERS: dict[str, Callable[[Any], None]] = {KNOB: comm_hook}
