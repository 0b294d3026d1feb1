"""Settings of fully_shard, made as the root of the units runs its first forward pass.

By then the script has wrapped all modules and has set what it sets before training, so the settings from outside win.
What the script sets later stays, and is read back as its own. Gradient synchronization is in `fsdp_micro_batches`.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch
from torch import nn

from dptune.capture.injected.applying.requested import asked
from dptune.capture.injected.imports import imports
from dptune.capture.injected.messages import say
from dptune.knobs.fsdp import DTYPES

STATE_MODULE = "torch.distributed.fsdp._fully_shard._fsdp_state"
_INIT_MODULE = "torch.distributed.fsdp._fully_shard._fsdp_init"
_changes: list[tuple[str, Callable[[Any], None]]] = []  # by the knob's name, of the state of a root


def before_first_forward(name: str, change: Callable[[Any], None]) -> None:
    """Call `change` with the state of each root just before it initializes its units."""
    _changes.append((name, change))
    if len(_changes) == 1:
        imports.after(STATE_MODULE, _hook)


def states_of(root: Any) -> list[Any]:
    """The states of a root's units in the order of its modules, the root's own first; each once."""
    modules = (module for module in root._modules[0].modules() if hasattr(module, "_get_fsdp_state"))
    return list({id(state): state for state in (module._get_fsdp_state() for module in modules)}.values())


def groups_of(state: Any) -> list[Any]:
    """The parameter groups of a unit: none where it has no parameters of its own; an older torch allows only one."""
    if hasattr(state, "_fsdp_param_groups"):
        return list(state._fsdp_param_groups)
    return [group for group in (getattr(state, "_fsdp_param_group", None),) if group is not None]


def all_groups(root: Any) -> Iterator[Any]:
    """The parameter groups of all units below a root."""
    return (group for state in states_of(root) for group in groups_of(state))


def _hook(module: ModuleType) -> None:
    begin = module.FSDPState._lazy_init

    @functools.wraps(begin)
    def initialized(this: Any) -> None:
        if this._is_root is None:  # its first forward pass: no state above it has claimed it
            for name, change in _changes:
                _guarded(name, change, this)
        begin(this)

    module.FSDPState._lazy_init = initialized


def _guarded(name: str, change: Callable[[Any], None], root: Any) -> None:
    try:
        change(root)
    except Exception as error:
        asked.refuse(name, f"torch refuses it: {error}")
        say(f"{name} could not be set: {type(error).__name__}: {error}")


def reshard_after_forward(value: bool | int | None) -> None:
    """None is torch's default: every unit but the root."""

    def change(root: Any) -> None:
        for state in states_of(root):
            state._auto_reshard_after_forward = value is None
            for group in groups_of(state):
                _reshard_to(group, True if value is None else value)

    before_first_forward("fsdp.reshard_after_forward", change)


def _reshard_to(group: Any, value: bool | int) -> None:
    initializing: Any = importlib.import_module(_INIT_MODULE)
    group.post_forward_mesh_info = initializing._get_post_forward_mesh_info(value, group.mesh_info)
    for parameter in group.fsdp_params:  # each knows the size of its smaller shard
        parameter.post_forward_mesh_info = group.post_forward_mesh_info
        if group.post_forward_mesh_info is not None:
            parameter._init_sharded_post_forward_param_metadata(torch.empty(parameter._orig_size, device="meta"))


def _dtype(knob: str, field: str, word: str | None) -> None:
    dtype = None if word is None else getattr(torch, DTYPES[word])

    def change(root: Any) -> None:
        for state in states_of(root):
            state._mp_policy = dataclasses.replace(state._mp_policy, **{field: dtype})
            for group in groups_of(state):
                group.mp_policy = dataclasses.replace(group.mp_policy, **{field: dtype})
                for parameter in group.fsdp_params:
                    parameter.mp_policy = dataclasses.replace(parameter.mp_policy, **{field: dtype})

    before_first_forward(knob, change)


def unshard_in_backward(value: bool) -> None:
    """False only for units that hold nothing but embeddings: the backward pass reads the weights of all others."""
    name = "fsdp.unshard_in_backward"

    def change(root: Any) -> None:
        groups = list(all_groups(root))
        chosen = groups if value else [group for group in groups if _holds_embeddings(group)]
        if not chosen:
            asked.refuse(name, "no unit holds only embeddings: the backward pass reads the weights of all units")
        for group in chosen:
            group.unshard_in_backward = value

    before_first_forward(name, change)


def _holds_embeddings(group: Any) -> bool:
    infos = [parameter._module_info for parameter in group.fsdp_params]
    return all(isinstance(info.module, nn.Embedding) and not info.shared_modules for info in infos)


def reshard_after_backward(value: bool) -> None:
    """True undoes what the script sets; False is refused: kept past the optimizer's step, parameters would be stale."""
    name = "fsdp.reshard_after_backward"
    if not value:
        asked.refuse(name, "only the script knows which micro-batch is the last of a step: set it there")
        return

    def change(root: Any) -> None:
        for group in all_groups(root):
            group.reshard_after_backward = True

    before_first_forward(name, change)


class _Order:
    """The order in which the units of a root run, from its first forward pass; then what each of them prefetches."""

    def __init__(self) -> None:
        self.forward: list[Any] = []
        self.backward: list[Any] = []
        self._is_set = False

    def note(self, order: list[Any], state: Any) -> None:
        """A unit starts its forward pass, or ends it: the later it ends, the earlier its backward pass."""
        if not self._is_set and groups_of(state) and state not in order:
            order.append(state)

    def set_prefetches(self) -> None:
        """Once: as the root starts its second forward pass."""
        if self._is_set or not self.forward:
            return
        self._is_set = True
        if "forward" in _depths:
            for at, state in enumerate(self.forward, 1):
                state._states_to_forward_prefetch = self.forward[at : at + _depths["forward"]]
        if "backward" in _depths:
            order = self.backward[::-1]
            for at, state in enumerate(order, 1):
                state._states_to_backward_prefetch = order[at : at + _depths["backward"]]


_depths: dict[str, int] = {}  # by the pass, in units


def _prefetch(direction: str, depth: int) -> None:
    _depths[direction] = depth
    if len(_depths) == 1:
        imports.after(STATE_MODULE, _hook_order)


def _hook_order(module: ModuleType) -> None:
    orders: dict[int, _Order] = {}  # by the context that the states of a root share
    enter, leave = module.FSDPState._root_pre_forward, module.FSDPState._register_pre_backward_hook

    @functools.wraps(enter)
    def entered(this: Any, *args: Any, **kwargs: Any) -> Any:
        starts = this._state_ctx.iter_forward_root is None
        result = enter(this, *args, **kwargs)
        order = orders.setdefault(id(this._state_ctx), _Order())
        if starts:
            order.set_prefetches()
        order.note(order.forward, this)
        return result

    @functools.wraps(leave)
    def left(this: Any, *args: Any, **kwargs: Any) -> Any:
        if order := orders.get(id(this._state_ctx)):
            order.note(order.backward, this)
        return leave(this, *args, **kwargs)

    module.FSDPState._root_pre_forward = entered
    module.FSDPState._register_pre_backward_hook = left


APPLIERS: dict[str, Callable[[Any], None]] = {
    "fsdp.reshard_after_forward": reshard_after_forward,
    "fsdp.forward_prefetch": functools.partial(_prefetch, "forward"),
    "fsdp.backward_prefetch": functools.partial(_prefetch, "backward"),
    "fsdp.param_dtype": functools.partial(_dtype, "fsdp.param_dtype", "param_dtype"),
    "fsdp.reduce_dtype": functools.partial(_dtype, "fsdp.reduce_dtype", "reduce_dtype"),
    "fsdp.unshard_in_backward": unshard_in_backward,
    "fsdp.reshard_after_backward": reshard_after_backward,
}
