"""Finds optimizers that start without their state although the script continues from a checkpoint that has it.

A checkpoint counts if the script loads it with `torch.load` itself, it has weights and the state of an optimizer, and
the function that loads it keeps the epoch or step that it has. At the first step of an optimizer without state, its
parameters are compared with the weights of the checkpoint, by some of their values: all must be equal, as after
`load_state_dict`. Fine-tuning replaces some of them, or begins at step 0.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from dptune.capture.injected.observe.places import Places, is_the_users, users_line
from dptune.capture.injected.observe.renewed_optimizers import RenewedOptimizers
from dptune.capture.injected.observe.tensor_samples import elements, is_readable
from dptune.capture.injected.observe.validation import source_of, tree_of
from dptune.runfile.unrestored_states import UnrestoredStateFacts

_CHECKPOINTS = 4
_OPTIMIZERS = 8
_LEAST = 2  # parameters
_PROGRESS = re.compile(r"(?i)^(?:start_|last_|global_|current_|cur_)?(?:epoch|step|iter|iteration|global_step)s?$")
_KINDS = ("betas", "momentum", "alpha", "rho", "lr_decay")  # options that tell which state an optimizer has
_NUMBERS = ("int", "max", "min")  # what passes a number on


@dataclass
class _Checkpoint:
    """Its line, the keys of the optimizer's state and of its progress, shapes in that state, and values of weights.

    `kind`: the options of the optimizer that tell its kind, and whether each is set.
    """

    loaded_at: str | None
    key: str
    progress: str
    shapes: list[tuple[int, ...]]
    kind: dict[str, bool]
    weights: dict[tuple[int, ...], list[torch.Tensor]]


class UnrestoredStates:
    """Watches `torch.load` and the first step of each optimizer."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._checkpoints: list[_Checkpoint] = []
        self._seen: set[int] = set()
        self._handle: Any = None
        self._renewed = RenewedOptimizers(places)
        self._facts: list[UnrestoredStateFacts] = []

    def install(self) -> None:
        """Wrap `torch.load`, and watch which optimizers step."""
        self._renewed.begin()
        load = torch.load

        @functools.wraps(load)
        def watched(*args: Any, **kwargs: Any) -> Any:
            loaded = load(*args, **kwargs)
            with contextlib.suppress(Exception):  # a file may hold anything
                self._note(loaded, sys._getframe(1))
            return loaded

        torch.load = torch.serialization.load = watched

    def end(self) -> None:
        """Watch no more optimizers."""
        self._renewed.end()
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
        self._checkpoints = []

    def facts(self) -> list[UnrestoredStateFacts]:
        """The facts of optimizers that started without their state."""
        return [*self._facts, *self._renewed.facts()]

    def _note(self, loaded: Any, frame: FrameType) -> None:
        if not isinstance(loaded, Mapping) or not is_the_users(frame.f_code.co_filename):
            return
        if len(self._checkpoints) >= _CHECKPOINTS:
            return
        progress = next(iter(_kept_numbers(frame, loaded)), None)
        key = next((str(key) for key, value in loaded.items() if _shapes(value)), None)
        if progress is None or key is None:
            return
        weights: dict[tuple[int, ...], list[torch.Tensor]] = {}
        for value in loaded.values():
            for tensor in value.values() if isinstance(value, Mapping) and "param_groups" not in value else ():
                if isinstance(tensor, torch.Tensor) and is_readable(tensor):
                    weights.setdefault(tuple(tensor.shape), []).append(elements(tensor).cpu())
        state = loaded[key]
        kind = _kind(state["param_groups"])
        self._checkpoints.append(_Checkpoint(users_line(frame), key, progress, _shapes(state), kind, weights))
        if self._handle is None:
            self._handle = register_optimizer_step_pre_hook(self._begins)

    def _begins(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if id(optimizer) in self._seen or len(self._seen) >= _OPTIMIZERS:
            return
        self._seen.add(id(optimizer))
        with contextlib.suppress(Exception):
            if any(optimizer.state.values()):
                return
            parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            for checkpoint in self._checkpoints:
                if checkpoint.kind == _kind(optimizer.param_groups) and _fits(parameters, checkpoint):
                    self._facts.append(
                        UnrestoredStateFacts(
                            type(optimizer).__name__,
                            self._places.line(optimizer),
                            checkpoint.loaded_at,
                            checkpoint.key,
                            checkpoint.progress,
                            len(parameters),
                        )
                    )
                    return


def _shapes(value: Any) -> list[tuple[int, ...]]:
    """Of the state that an optimizer's state dict has for each parameter, one tensor each; empty for anything else."""
    if not isinstance(value, Mapping) or not isinstance(value.get("state"), Mapping) or "param_groups" not in value:
        return []
    of_parameters = [
        [tuple(tensor.shape) for tensor in state.values() if isinstance(tensor, torch.Tensor) and tensor.numel() > 1]
        for state in value["state"].values()
        if isinstance(state, Mapping)
    ]
    return [shapes[0] for shapes in of_parameters if shapes]


def _kind(groups: Sequence[Mapping[str, Any]]) -> dict[str, bool]:
    return {option: bool(groups[0][option]) for option in _KINDS if option in groups[0]}


def _fits(parameters: Sequence[Any], checkpoint: _Checkpoint) -> bool:
    """Whether the state is that of these parameters, and each starts with weights of the checkpoint."""
    several = sorted(tuple(parameter.shape) for parameter in parameters if parameter.numel() > 1)
    if len(parameters) < _LEAST or sorted(checkpoint.shapes) != several:
        return False
    return all(
        any(torch.equal(values, sample) for sample in checkpoint.weights.get(tuple(parameter.shape), ()))
        for parameter in parameters
        if is_readable(parameter)
        for values in [elements(parameter).cpu()]
    )


def _kept_numbers(frame: FrameType, loaded: Mapping[Any, Any]) -> Iterator[str]:
    """The keys of numbers of training's progress that the function which loads the checkpoint assigns or returns."""
    code = frame.f_code
    source: ast.AST | None = tree_of(code.co_filename) if code.co_name == "<module>" else source_of(code)
    for statement in ast.walk(source) if source is not None else ():
        if isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Return)) and statement.value:
            for key in _read_keys(statement.value):
                if _PROGRESS.match(key) and isinstance(loaded.get(key), int):
                    yield key


def _read_keys(node: ast.AST) -> Iterator[str]:
    """Keys that an expression reads a number under: `checkpoint["epoch"] + 1`, `int(checkpoint.get("step", 0))`."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        if isinstance(node.slice.value, str):
            yield node.slice.value
    elif isinstance(node, ast.Call):
        called = node.func
        if isinstance(called, ast.Attribute) and called.attr == "get" and node.args:
            if isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, str):
                yield node.args[0].value
        elif isinstance(called, ast.Name) and called.id in _NUMBERS:
            for argument in node.args:
                yield from _read_keys(argument)
    elif isinstance(node, (ast.BinOp, ast.Tuple, ast.List, ast.IfExp, ast.BoolOp)):
        for inner in ast.iter_child_nodes(node):
            yield from _read_keys(inner)
