"""Watches activation checkpointing: how long forward passes are recomputed, and how much memory that spares.

torch has two implementations. With `use_reentrant=True` the function runs again in the backward pass of an autograd
function; without it, when the first tensor that it saved is asked for. Neither is replaced: the function that is run
again is timed. What it saves is weighed in the warm-up only.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any

import torch
from torch.optim import Optimizer

from dptune.capture.injected.imports import imports
from dptune.capture.injected.observe.places import Places, entry, users_line
from dptune.runfile.facts import CheckpointingFacts


class Checkpointing:
    """Sums what is recomputed between two steps. A GPU's backward pass runs in a thread of its own: one sum for all."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._facts = CheckpointingFacts()
        self._seen = False
        self._weighing = True
        self._parameters: set[int] | None = None
        self._spent_ns = self._kept_bytes = 0

    def install(self) -> None:
        """Follow torch's checkpoints as soon as the script, or a library, imports them."""
        imports.after("torch.utils.checkpoint", self._watch)
        imports.after("torch.distributed.algorithms._checkpoint.checkpoint_wrapper", self._watch_wrapper)
        imports.after("transformers.modeling_utils", self._watch_transformers)

    def begin(self) -> None:
        """The warm-up is over: weigh no more, where that is done."""
        self._weighing = self._seen and self._facts.kept_bytes is None

    def take(self) -> int:
        """How long functions were run again since this was last asked, ns."""
        spent, self._spent_ns = self._spent_ns, 0
        if self._weighing and self._kept_bytes:
            self._facts.kept_bytes = max(self._facts.kept_bytes or 0, self._kept_bytes)
        self._kept_bytes = 0
        return spent

    def facts(self) -> CheckpointingFacts | None:
        """What was seen; None without a checkpoint."""
        return self._facts if self._seen else None

    def _watch(self, module: ModuleType) -> None:
        self._watch_frames(module)
        self._watch_reentrant(module)

    def _watch_wrapper(self, module: ModuleType) -> None:
        self._watch_enabling(module.CheckpointWrapper, "__init__")

    def _watch_transformers(self, module: ModuleType) -> None:
        self._watch_enabling(module.PreTrainedModel, "gradient_checkpointing_enable")

    def _watch_enabling(self, kind: Any, method: str) -> None:
        """Note the line, unless the Trainer of transformers calls it: the line of its argument is noted then."""
        enable = getattr(kind, method)

        @functools.wraps(enable)
        def watched(this: Any, *args: Any, **kwargs: Any) -> Any:
            enabled = enable(this, *args, **kwargs)
            with contextlib.suppress(Exception):
                caller = sys._getframe(1)
                if not entry(caller).startswith("transformers."):
                    self._facts.enabled_where = self._facts.enabled_where or users_line(caller)
            return enabled

        setattr(kind, method, watched)

    def _watch_frames(self, module: ModuleType) -> None:
        construct = module._CheckpointFrame.__init__

        @functools.wraps(construct)
        def watched(this: Any, recompute: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
            frame = weakref.ref(this)
            construct(this, self._timed(recompute, lambda: _recomputed(frame())), *args, **kwargs)
            self._note(False)

        module._CheckpointFrame.__init__ = watched

    def _watch_reentrant(self, module: ModuleType) -> None:
        forward = module.CheckpointFunction.forward

        @functools.wraps(forward)
        def watched(ctx: Any, function: Callable[..., Any], *args: Any) -> Any:
            outputs = forward(ctx, function, *args)
            with contextlib.suppress(Exception):
                ctx.run_function = self._timed(function, None)
                self._note(True)
            return outputs

        module.CheckpointFunction.forward = staticmethod(watched)

    def _timed(
        self, function: Callable[..., Any], kept: Callable[[], Iterable[torch.Tensor]] | None
    ) -> Callable[..., Any]:
        """`kept`: what the function has saved, once it has run; None where only hooks show that."""

        @functools.wraps(function)
        def again(*args: Any, **kwargs: Any) -> Any:
            saved: list[torch.Tensor] = []
            begun = time.perf_counter_ns()
            try:
                with _saving(saved) if kept is None and self._weighing else contextlib.nullcontext():
                    return function(*args, **kwargs)
            finally:
                self._spent_ns += time.perf_counter_ns() - begun
                if self._weighing:
                    with contextlib.suppress(Exception):
                        self._kept_bytes += self._weigh(saved if kept is None else kept())

        return again

    def _weigh(self, tensors: Iterable[torch.Tensor]) -> int:
        """Bytes of the storages of tensors; parameters exist anyway."""
        if self._parameters is None:
            optimizers = self._places.alive(Optimizer)
            groups = (group for optimizer in optimizers for group in optimizer.param_groups)
            self._parameters = {parameter.data_ptr() for group in groups for parameter in group["params"]}
        storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
        return sum(size for at, size in storages.items() if at not in self._parameters)

    def _note(self, reentrant: bool) -> None:
        if self._seen:
            return
        with contextlib.suppress(Exception):
            caller = sys._getframe(2)
            self._facts.where, self._facts.through = users_line(caller), entry(caller)
            self._facts.reentrant = reentrant
            self._seen = True


@contextlib.contextmanager
def _saving(found: list[torch.Tensor]) -> Iterator[None]:
    """Note what is saved for backward, unless hooks of the script do something with it."""

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        found.append(tensor.detach())
        return tensor

    if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
        yield
        return
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield


def _recomputed(frame: Any) -> Iterator[torch.Tensor]:
    if frame is not None:
        for tensors in frame.recomputed.values():
            yield from tensors.values()
