"""Reduce-scatter on the last micro-batch of an accumulated step only, as `set_requires_gradient_sync` of FSDP2 does.

Until then each rank keeps gradients of whole parameters.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

from dptune.capture.injected.applying import boundaries
from dptune.capture.injected.applying.fsdp import all_groups, before_first_forward
from dptune.capture.injected.applying.micro_batches import BY_ITSELF, MicroBatches
from dptune.capture.injected.imports import imports

KNOB = "fsdp.no_sync"
_MODULE = "torch.distributed.fsdp._fully_shard._fully_shard"
_SCRIPTS_OWN = ("set_requires_gradient_sync", "set_requires_all_reduce", "set_is_last_backward")


class _OfFsdp:
    """Synchronization of the units below a root of fully_shard."""

    knob = KNOB

    def __init__(self, root: Any) -> None:
        self._root = weakref.ref(root)

    @property
    def is_on(self) -> bool:
        return all(group.reduce_grads and group.all_reduce_grads for group in self._groups)

    def turn(self, on: bool) -> None:
        for group in self._groups:
            group.reduce_grads = group.all_reduce_grads = on

    def parameters(self) -> list[Any]:
        """The shards, which the modules hold between passes: what an optimizer updates."""
        root = self._root()
        held = [] if root is None else root._modules[0].parameters()
        return [parameter for parameter in held if parameter.requires_grad]

    def unfit(self) -> str:
        meshes = {group.mesh_info.mesh for group in self._groups}  # equal by ranks: each call may make its own
        return "its units are sharded over several meshes" if len(meshes) != 1 else ""

    def why_leave(self) -> str:
        return ""

    def largest(self, counts: list[int]) -> list[int]:
        mesh = self._groups[0].mesh_info.mesh
        most = torch.tensor(counts, dtype=torch.int64, device=self._groups[0].device)
        for dimension in range(mesh.ndim):
            dist.all_reduce(most, dist.ReduceOp.MAX, group=mesh.get_group(dimension))
        return most.tolist()

    def average(self) -> None:
        """As FSDP does at the end of a backward pass for units that its hooks have not reached."""
        root, was_on = self._root(), self.is_on
        if root is not None:
            self.turn(True)
            root._root_post_backward_final_callback()
            self.turn(was_on)

    def discard(self, parameters: set[int]) -> None:
        """The gradients of whole parameters, which the script does not see."""
        for group in self._groups:
            for parameter in group.fsdp_params:
                if id(parameter.sharded_param) in parameters and hasattr(parameter, "_unsharded_param"):
                    parameter._unsharded_param.grad = parameter.unsharded_accumulated_grad = None

    @property
    def _groups(self) -> list[Any]:
        root = self._root()
        return [] if root is None else list(all_groups(root))


def no_sync(value: bool) -> None:
    """True leaves the reduce-scatter out on all but the last micro-batch; False makes every backward pass reduce."""
    watched: list[MicroBatches] = []

    def watch(root: Any) -> None:
        module = root._modules[0]
        watched.append(MicroBatches(module, _OfFsdp(root)))
        watched[-1].install()

    if value:
        before_first_forward(KNOB, watch)
        imports.after(_MODULE, functools.partial(_heed_the_scripts_own, watched))
        boundaries.install(watched)
    else:
        imports.after(_MODULE, _never)


def _heed_the_scripts_own(watched: list[MicroBatches], module: ModuleType) -> None:
    for name in _SCRIPTS_OWN:
        setattr(module.FSDPModule, name, _after_leaving(getattr(module.FSDPModule, name), watched))


def _after_leaving(act: Callable[..., None], watched: list[MicroBatches]) -> Callable[..., None]:
    @functools.wraps(act)
    def left(this: Any, *args: Any, **kwargs: Any) -> None:
        for micro_batches in watched:
            micro_batches.leave(BY_ITSELF)
        act(this, *args, **kwargs)

    return left


def _never(module: ModuleType) -> None:
    synchronize = module.FSDPModule.set_requires_gradient_sync

    @functools.wraps(synchronize)
    def always(this: Any, requires_gradient_sync: bool, **kwargs: Any) -> None:
        synchronize(this, True, **kwargs)

    module.FSDPModule.set_requires_gradient_sync = always


APPLIERS: dict[str, Callable[[Any], None]] = {KNOB: no_sync}
