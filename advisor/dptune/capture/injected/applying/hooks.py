"""Communication hooks of DistributedDataParallel: what a bucket of gradients is turned into before it is exchanged."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from dptune.capture.injected.applying.constructing import adjust, follow

_ONE_BUCKET_MB = 1 << 20


def _named(name: str, hook: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    """A hook by a name of its own, as which it stands in the facts.

    DDP refuses torch's own bf16 hook, by its name, where the backend is not NCCL, and any annotation but torch's.
    """

    def called(state: Any, bucket: Any) -> Any:
        return hook(state, bucket)

    called.__annotations__.clear()
    called.__qualname__ = f"{name}_gradients"
    return called


HOOKS: dict[str, Callable[[Any, Any], Any]] = {
    "fp16": _named("fp16", default_hooks.fp16_compress_hook),
    "bf16": _named("bf16", default_hooks.bf16_compress_hook),
    "powersgd": _named("powersgd", powerSGD_hook.powerSGD_hook),
}


def comm_hook(value: str) -> None:
    """One of HOOKS, or `none`; a hook that the script registers itself is left out.

    PowerSGD begins with the third step, as its error feedback must, and without NCCL it gets one bucket for all
    gradients: with several, gloo's exchanges of two buckets cross and never end.
    """
    register = DistributedDataParallel.register_comm_hook

    @functools.wraps(register)
    def passed_over(this: Any, state: object, hook: Callable[..., Any]) -> None:
        if hook in HOOKS.values():
            register(this, state, hook)

    DistributedDataParallel.register_comm_hook = passed_over  # type: ignore[method-assign, assignment]
    if value == "none":
        return
    if value == "powersgd":
        adjust(DistributedDataParallel, _one_bucket)
    follow(DistributedDataParallel, lambda module: module.register_comm_hook(_state(value, module), HOOKS[value]))


def _state(value: str, module: Any) -> Any:
    if value != "powersgd":
        return module.process_group
    return powerSGD_hook.PowerSGDState(module.process_group, matrix_approximation_rank=1, start_powerSGD_iter=2)


def _one_bucket(given: dict[str, Any]) -> None:
    if dist.get_backend(given.get("process_group")) != "nccl":
        given["bucket_cap_mb"] = _ONE_BUCKET_MB
        given.pop("bucket_cap_mb_list", None)


APPLIERS: dict[str, Callable[[Any], None]] = {"ddp.comm_hook": comm_hook}
