"""Whether an optimizer steps on gradients that DistributedDataParallel has averaged over the ranks.

DDP averages in a backward pass only what the forward pass before it has announced to its reducer. A forward pass under
`no_sync` announces nothing, nor does one of the wrapped module, past DDP. The reducer averages all that has added up in
the gradients, so the last backward pass before the optimizer's step decides.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import weakref
from dataclasses import dataclass, field
from typing import Any

import torch.distributed as dist

from dptune.capture.injected.observe.places import Places, users_line

_WATCHED = 4  # parameters of a module whose gradients are looked at
_GROUPS = 8  # parameter groups of an optimizer


@dataclass
class _Replica:
    """One DDP module. `averaged`: whether its gradients are; None before its first backward pass."""

    module: weakref.ref[Any]
    reducer: int
    parameters: set[int]
    ranks: int
    watched: list[Any] = field(default_factory=list)
    before: list[tuple[int, int]] = field(default_factory=list)
    averaged: bool | None = None
    flag: bool = True  # as the last pass left `require_forward_param_sync`
    where: str | None = None

    @property
    def versions(self) -> list[tuple[int, int]]:
        """What differs once a backward pass has added to a gradient."""
        gradients = (parameter.grad for parameter in (ref() for ref in self.watched) if parameter is not None)
        return [(-1, 0) if gradient is None else (id(gradient), gradient._version) for gradient in gradients]


class Averaging:
    """Follows the gradients of each DDP module through backward passes, to the steps of its optimizers."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._replicas: dict[int, _Replica] = {}
        self._announced: set[int] = set()  # reducers that the next backward pass starts
        self._known = False
        self._missed = False
        self.where: str | None = None

    def install(self) -> None:
        """Wrap the call with which DDP's forward pass announces a backward pass to its reducer."""
        reducer = getattr(dist, "Reducer", None)  # absent where torch was built without distributed
        if reducer is None:
            return
        announce = reducer.prepare_for_backward

        @functools.wraps(announce)
        def announced(this: Any, *args: Any, **kwargs: Any) -> Any:
            self._announced.add(id(this))
            return announce(this, *args, **kwargs)

        reducer.prepare_for_backward = announced
        self._known = True

    def before_pass(self) -> None:
        """A backward pass starts."""
        with contextlib.suppress(Exception):
            for replica in self._alive():
                replica.before = replica.versions

    def after_pass(self) -> None:
        """It has ended; called from the function that the script called."""
        with contextlib.suppress(Exception):
            for replica in self._alive():
                touched = replica.before != replica.versions
                module = replica.module()
                if module is None or not (touched or replica.reducer in self._announced):
                    continue
                replica.averaged = replica.reducer in self._announced
                replica.flag = module.require_forward_param_sync
                replica.where = None if replica.averaged else users_line(sys._getframe(2))
                if touched:
                    self._announced.discard(replica.reducer)

    def stepped(self, optimizer: Any) -> None:
        """An optimizer has made a step."""
        with contextlib.suppress(Exception):
            firsts = {id(group["params"][0]) for group in optimizer.param_groups[:_GROUPS] if group["params"]}
            for replica in self._alive():
                module = replica.module()
                if replica.averaged is not False or module is None or not firsts & replica.parameters:
                    continue
                if module.require_forward_param_sync and not replica.flag:
                    continue  # dptune's own `ddp.no_sync` has averaged them after the pass
                self._missed, self.where = True, replica.where

    def take(self) -> bool:
        """Whether an optimizer has stepped on gradients that were not averaged, since this was last asked."""
        missed, self._missed = self._missed, False
        return missed

    def _alive(self) -> list[_Replica]:
        if not self._known or not dist.is_initialized():
            return []
        modules = self._places.ddp()
        for module in modules:
            known = self._replicas.get(id(module))
            if known is None or known.module() is not module:
                self._replicas[id(module)] = _replica(module)
        replicas = [(self._replicas[id(module)], module) for module in modules]
        return [replica for replica, module in replicas if replica.ranks > 1 and not averages_by_other_means(module)]


def _replica(module: Any) -> _Replica:
    reduced = [
        parameter for parameter in getattr(module, "_module_parameters", module.parameters()) if parameter.requires_grad
    ]
    stride = max(1, (len(reduced) - 1) // (_WATCHED - 1))
    watched = [weakref.ref(parameter) for parameter in reduced[::stride]]
    return _Replica(
        weakref.ref(module),
        id(module.reducer),
        {id(parameter) for parameter in reduced},
        dist.get_world_size(module.process_group),
        watched,
    )


def averages_by_other_means(module: Any) -> bool:
    """Whether gradients are averaged elsewhere than in the C++ reducer."""
    return bool(getattr(module, "_use_python_reducer", False) or getattr(module, "_delay_all_reduce_all_params", False))
