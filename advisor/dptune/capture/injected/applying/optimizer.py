"""The learning rate and the constants of an optimizer, and which implementation of its step it takes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim import optimizer as implementation

from dptune.capture.injected.applying.constructing import follow
from dptune.capture.injected.applying.requested import asked

_MARK = "dptune_lr_times"
_OTHER = {"fused": "foreach", "foreach": "fused"}


def _implementation(name: str) -> Callable[[Any], None]:
    """The one of two that exclude each other. Optimizers that know neither are left alone."""

    def apply(value: bool) -> None:
        def change(optimizer: Any) -> None:
            if name not in optimizer.defaults:
                return
            if why := _unfit(optimizer, name) if value else "":
                asked.refuse(f"optimizer.{name}", why)
                return
            for group in (optimizer.defaults, *optimizer.param_groups):
                _choose(group, name, value)
            _settle(optimizer)
            optimizer.register_load_state_dict_pre_hook(lambda _, saved: _chosen(saved, name, value))

        follow(Optimizer, change)

    return apply


def _choose(group: dict[str, Any], name: str, value: bool) -> None:
    group[name] = value
    if value and _OTHER[name] in group:
        group[_OTHER[name]] = False


def _chosen(saved: dict[str, Any], name: str, value: bool) -> dict[str, Any]:
    """A saved state with what was asked for: it holds the implementation by which it was made, and brings it back."""
    groups = [dict(group) for group in saved["param_groups"]]
    for group in groups:
        _choose(group, name, value)
    return {**saved, "param_groups": groups}


def _settle(optimizer: Any) -> None:
    """What a constructor derives from `fused`: who skips a step that overflowed, and where steps are counted."""
    if "fused" not in optimizer.defaults:
        return
    fused = [bool(group.get("fused")) for group in optimizer.param_groups]
    if hasattr(optimizer, "_step_supports_amp_scaling") or any(fused):
        optimizer._step_supports_amp_scaling = all(fused)
    for group, is_fused in zip(optimizer.param_groups, fused, strict=True):
        for parameter in group["params"]:
            count = optimizer.state[parameter].get("step") if parameter in optimizer.state else None
            if isinstance(count, torch.Tensor):  # Adagrad counts from its constructor on
                where = parameter.device if is_fused else torch.device("cpu")
                optimizer.state[parameter]["step"] = count.to(where, torch.float32)


def _unfit(optimizer: Any, name: str) -> str:
    """Why torch would fail in the step; empty where it would not."""
    for group in optimizer.param_groups:
        if group.get("differentiable"):
            return f"a differentiable optimizer cannot be {name}"
        if name == "foreach" and isinstance(group.get("lr"), torch.Tensor) and not group.get("capturable"):
            return "a tensor learning rate works with foreach only if the optimizer is capturable"
        if name == "fused" and not all(_can_be_fused(parameter) for parameter in group["params"]):
            return "not all of its parameters are floating-point tensors on a device with fused optimizers"
    return ""


def _can_be_fused(parameter: Any) -> bool:
    try:
        implementation._device_dtype_check_for_fused(parameter)
    except RuntimeError:
        return False
    return True


def _learning_rate(value: float | None) -> None:
    """Of the first group; the others keep their proportion to it, and a scheduler that is made later starts from it."""
    changed: list[dict[str, Any]] = []  # the groups; a wrapper of an optimizer has those of the one it wraps

    def change(optimizer: Any) -> None:
        first = optimizer.param_groups[0]
        if value is None or any(first is group for group in changed):
            return
        if changed:
            asked.refuse("optimizer.lr", "the script creates several optimizers, so the setting is ambiguous")
            return
        now = first.get("lr")
        if not now:
            asked.refuse("optimizer.lr", f"the learning rate of {type(optimizer).__name__} is 0 or not set")
            return
        times = value / float(now)
        changed.extend(optimizer.param_groups)
        for group in (optimizer.defaults, *optimizer.param_groups):
            _scale(group, times)
        optimizer.register_state_dict_post_hook(lambda _, state: _with_mark(state, times))
        optimizer.register_load_state_dict_pre_hook(lambda _, saved: _scaled(saved, times))

    follow(Optimizer, change)


def _scale(group: dict[str, Any], times: float) -> None:
    for name in ("lr", "initial_lr"):
        if isinstance(group.get(name), torch.Tensor):
            group[name] = group[name] * times
        elif group.get(name) is not None:
            group[name] *= times


def _with_mark(state: dict[str, Any], times: float) -> dict[str, Any]:
    """A state to be saved, of a run with the change: where it is loaded again, its rates are what they should be."""
    return {**state, "param_groups": [{**group, _MARK: times} for group in state["param_groups"]]}


def _scaled(saved: dict[str, Any], times: float) -> dict[str, Any]:
    """A saved state, with its rates changed by as much as they are not yet: those of a run without it by all of it."""
    groups = []
    for saved_group in saved["param_groups"]:
        group = {name: value for name, value in saved_group.items() if name != _MARK}
        _scale(group, times / saved_group.get(_MARK, 1.0))
        groups.append(group)
    return {**saved, "param_groups": groups}


def _betas(text: str) -> None:
    betas = tuple(float(part) for part in text.split(","))
    if len(betas) != 2 or max(betas) >= 1:
        asked.refuse("optimizer.betas", "betas are two numbers below 1")
        return
    _constant("betas", betas)


def _constant(name: str, value: Any) -> None:
    """Of an optimizer that has betas: of the first group, and of others and of a saved state where they are alike."""
    changed: list[dict[str, Any]] = []

    def change(optimizer: Any) -> None:
        first = optimizer.param_groups[0]
        if not {name, "betas"} <= first.keys() or any(first is group for group in changed):
            return
        if changed:
            asked.refuse(
                f"optimizer.{name}", f"the script creates several optimizers with {name}, so the setting is ambiguous"
            )
            return
        before = _comparable(first[name])
        changed.extend(optimizer.param_groups)

        def replaced(group: dict[str, Any]) -> dict[str, Any]:
            return {**group, name: value} if _comparable(group.get(name)) == before else group

        for group in (optimizer.defaults, *optimizer.param_groups):
            group.update(replaced(group))
        optimizer.register_load_state_dict_pre_hook(
            lambda _, saved: {**saved, "param_groups": [replaced(group) for group in saved["param_groups"]]}
        )

    follow(Optimizer, change)


def _comparable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def default(name: str, value: Any) -> None:
    """An argument that an optimizer keeps as a default of its groups; one that has none of that name is left alone."""

    def change(optimizer: Any) -> None:
        for group in (optimizer.defaults, *optimizer.param_groups):
            if name in group:
                group[name] = value

    follow(Optimizer, change)


APPLIERS: dict[str, Callable[[Any], None]] = {
    "optimizer.lr": _learning_rate,
    "optimizer.betas": _betas,
    "optimizer.eps": partial(_constant, "eps"),
    **{name: _implementation(name.partition(".")[2]) for name in ("optimizer.fused", "optimizer.foreach")},
}
