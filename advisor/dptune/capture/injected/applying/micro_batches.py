"""All-reduce on the last micro-batch of an accumulated step only, as `DistributedDataParallel.no_sync` does.

How many micro-batches a step has is learned from the first step. A step that ends before that many, as at the end of an
epoch, would leave gradients that were never exchanged: they are averaged before the optimizer uses them.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from dptune.capture.injected.applying.constructing import follow


class _MicroBatches:
    """Of one module: forwards since the last step, and how many a step has."""

    def __init__(self, module: Any) -> None:
        self._module = weakref.ref(module)
        self._parameters = {id(parameter) for parameter in module.parameters()}
        self._of_a_step = self._since_step = 0
        self._unsynced = False

    def before_forward(self, module: Any, _: Any) -> None:
        """Exchange gradients after this forward only where it is the last of its step."""
        if not (module.training and torch.is_grad_enabled()):
            return
        self._since_step += 1
        last = not self._of_a_step or self._since_step >= self._of_a_step
        module.require_backward_grad_sync = last
        self._unsynced = not last

    def before_step(self, optimizer: Any) -> None:
        """Average what no backward pass has exchanged."""
        module = self._module()
        if module is None or not self._unsynced or not self._is_of(optimizer):
            return
        group = module.process_group
        for parameter in module.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad, group=group)
                parameter.grad /= dist.get_world_size(group)
        self._unsynced = False

    def after_step(self, optimizer: Any) -> None:
        """Count anew."""
        if self._is_of(optimizer) and self._since_step:
            self._of_a_step = self._of_a_step or self._since_step
            self._since_step = 0

    def _is_of(self, optimizer: Any) -> bool:
        return any(
            id(parameter) in self._parameters for group in optimizer.param_groups for parameter in group["params"]
        )


def no_sync(value: bool) -> None:
    """True leaves the exchange out on all but the last micro-batch; False makes every backward pass exchange."""
    if not value:
        _never()
        return
    watched: list[_MicroBatches] = []

    def watch(module: Any) -> None:
        own = _MicroBatches(module)
        watched.append(own)
        module.register_forward_pre_hook(own.before_forward)

    follow(DistributedDataParallel, watch)

    def before(optimizer: Any, *_: Any) -> None:
        for own in watched:
            own.before_step(optimizer)

    def after(optimizer: Any, *_: Any) -> None:
        for own in watched:
            own.after_step(optimizer)

    register_optimizer_step_pre_hook(before)
    register_optimizer_step_post_hook(after)


def _never() -> None:
    enter: Any = DistributedDataParallel.forward

    @functools.wraps(enter)
    def synchronised(this: Any, *args: Any, **kwargs: Any) -> Any:
        this.require_backward_grad_sync = True
        return enter(this, *args, **kwargs)

    DistributedDataParallel.forward = synchronised  # type: ignore[method-assign, assignment]


APPLIERS: dict[str, Callable[[Any], None]] = {"ddp.no_sync": no_sync}
