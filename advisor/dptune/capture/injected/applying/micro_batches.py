"""Synchronize gradients on the last micro-batch of an accumulated step only, as `no_sync` of DDP does.

`MicroBatches` counts, whatever wraps the module; `Synchronization` is what differs: here for DDP, for fully_shard in
`fsdp_micro_batches`.

How many backward passes a step has is learned from the steps before. A step that ends before that many, as at the end
of an epoch, holds gradients that were never reduced: they are averaged before the optimizer, a GradScaler or clipping
reads them. Averaging late is the same sum: what is averaged already stays what it is. All ranks count the same passes,
so all come to the same decision; whether a gradient overflowed plays no part in it.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel.distributed import _find_tensors

from dptune.capture.injected.applying import boundaries
from dptune.capture.injected.applying.constructing import follow
from dptune.capture.injected.applying.requested import asked

KNOB = "ddp.no_sync"

BY_ITSELF = "the script already skips synchronization itself"
_CLOSURE = "its optimizer uses a closure, which runs backward passes inside the step"
_IN_BACKWARD = "its optimizer steps inside the backward pass"
_JOIN = "its ranks may have different numbers of batches (join)"
# What is found while all passes are still all-reduced; ranks send its place in this list to each other.
_LEARNED = (
    "",
    "the script reads gradients between micro-batches",
    "several backward passes follow one forward pass",
    "ranks read gradients at different places",
)
_BETWEEN, _AGAIN, _APART = 1, 2, 3


class Synchronization(Protocol):
    """How the gradients of a module are averaged over ranks, and the switch that leaves it out."""

    knob: str

    @property
    def is_on(self) -> bool:
        """Whether the next backward pass averages."""

    def turn(self, on: bool) -> None:
        """Set that."""

    def parameters(self) -> list[Any]:
        """The parameters whose gradients are averaged."""

    def unfit(self) -> str:
        """Why gradients of this module cannot be averaged later; empty where they can."""

    def why_leave(self) -> str:
        """Why its averaging is the script's from now on, found as a forward pass starts; empty where it is not."""

    def largest(self, counts: list[int]) -> list[int]:
        """The largest of each count over the ranks that average together."""

    def average(self) -> None:
        """Average gradients of passes that were not averaged."""

    def discard(self, parameters: set[int]) -> None:
        """Drop what is kept of passes that were not averaged, of parameters whose gradients were thrown away."""


class MicroBatches:
    """Of one module: backward passes since its last step, and how many a step has.

    Of the four events, `before_forward` decides, `passed` counts, `before_reading` averages and `ended` counts anew.
    """

    def __init__(self, module: Any, synchronization: Synchronization) -> None:
        self._module = weakref.ref(module)
        self._synchronization = synchronization
        self._parameters = {id(parameter) for parameter in synchronization.parameters()}
        self._passes = self._of_a_step = self._made_before = 0
        self._forwards = self._forwards_used = 0
        self._pass = -1  # autograd's number of the last pass that was counted
        self._pending = False  # whether a pass was, or may have been, made without a collective in it or after it
        self._left = True  # how the module's switch was left
        self._reads = 0
        self._learned = self._stopped = False
        self._against = 0

    def install(self) -> None:
        """Hook into the module's forward pass, unless it is of a kind for which this cannot be right."""
        module = self._module()
        if module is None:
            return
        if why := self._synchronization.unfit():
            self._stop(why)
            return
        module.register_forward_pre_hook(self.before_forward)
        module.register_forward_hook(self.after_forward)

    @property
    def waits(self) -> bool:
        """Whether passes were made since the last step."""
        return self._passes > 0

    def is_of(self, module: Any) -> bool:
        """Whether it counts for this module."""
        return self._module() is module

    def before_forward(self, module: Any, _: Any) -> None:
        """Reduce gradients after this forward only where it is the last of its step."""
        if torch.compiler.is_compiling() or self._stopped or not torch.is_grad_enabled():
            return
        if self._synchronization.is_on != self._left:
            self._stop(BY_ITSELF)
        elif why := self._synchronization.why_leave():
            self.leave(why)
        elif _in_backward():
            self.leave("a forward pass runs inside the backward pass")
        else:
            if self._reads:
                self._against = self._against or _BETWEEN
            last = not self._of_a_step or self._passes + 1 >= self._of_a_step
            self._left = last
            self._synchronization.turn(last)
            self._pending = self._pending or not last

    def after_forward(self, _: Any, __: Any, output: Any) -> None:
        """Notice when the backward pass of this forward begins."""
        if torch.compiler.is_compiling() or self._stopped or not torch.is_grad_enabled():
            return
        self._forwards += 1
        notice = functools.partial(self.passed, self._forwards, self._left)
        with contextlib.suppress(Exception):  # a module may return anything; a pass that is not seen is averaged late
            for tensor in _find_tensors(output):  # type: ignore[no-untyped-call]
                if tensor.requires_grad:
                    tensor.register_hook(notice)

    def passed(self, forward: int, communicated: bool, _: Any) -> None:
        """The backward pass of that forward, the first of which is 1, has reached the module."""
        this = torch._C._current_graph_task_id()
        if this == self._pass:
            return
        self._pass = this
        self._passes += 1
        if forward <= self._forwards_used:
            self._against = self._against or _AGAIN
        self._forwards_used = self._forwards
        self._pending = not communicated

    def before_reading(self, parameters: set[int] | None = None) -> None:
        """Average what no backward pass has reduced. `parameters` are those that are read, by identity."""
        if not (self._passes or self._pending) or not (parameters is None or parameters & self._parameters):
            return
        self._reads += 1
        module = self._module()
        if self._pending and module is not None:
            self._pending = False
            self._synchronization.average()

    def ended(self, parameters: set[int]) -> None:
        """A step of an optimizer of these parameters has ended, or was skipped."""
        if not self._passes or not parameters & self._parameters:
            return
        made, self._passes = self._passes, 0
        if made > 1 and not self._learned and not self._stopped:
            self._agree(made)
        if made > self._of_a_step or made == self._made_before:
            self._of_a_step = made if self._learned else 1
        self._made_before = made
        self._reads = 0

    def cleared(self, parameters: set[int]) -> None:
        """The gradients of these parameters were thrown away: where that is all, nothing is left to reduce."""
        if self._passes:
            self._synchronization.discard(parameters)
        if self._passes and self._parameters <= parameters:
            self._passes = self._reads = 0
            self._pending = False

    def leave(self, why: str) -> None:
        """Leave reducing gradients to the script from here on."""
        module = self._module()
        if module is not None and not self._stopped:
            if not self._left:
                self._synchronization.turn(True)
            self._stop(why)

    def given_closure(self, parameters: set[int]) -> None:
        """An optimizer of these parameters runs backward passes inside its step."""
        if parameters & self._parameters:
            self.leave(_CLOSURE)

    def _stop(self, why: str) -> None:
        self._stopped = True
        asked.refuse(self._synchronization.knob, why)

    def _agree(self, made: int) -> None:
        """Begin to skip all-reduces where every rank saw the same, with nothing against it. One small all-reduce."""
        if self._module() is None:
            return
        if _in_backward():
            self.leave(_IN_BACKWARD)
            return
        self._learned = True
        local_counts = [self._against, made, -made, self._reads, -self._reads]
        against, most_made, least_made, most_reads, least_reads = self._synchronization.largest(local_counts)
        if most_made != -least_made or most_reads != -least_reads:
            against = against or _APART
        if against:
            self.leave(_LEARNED[against])


def _in_backward() -> bool:
    return bool(torch._C._current_graph_task_id() != -1)


class _OfDdp:
    """Synchronization of a DistributedDataParallel."""

    knob = KNOB

    def __init__(self, module: Any) -> None:
        self._module = weakref.ref(module)

    @property
    def is_on(self) -> bool:
        return bool(self._ddp.require_backward_grad_sync)

    def turn(self, on: bool) -> None:
        self._ddp.require_backward_grad_sync = on

    def parameters(self) -> list[Any]:
        """In the order in which all ranks have them."""
        module = self._ddp
        reduced = getattr(module, "_module_parameters", module.parameters())
        return [parameter for parameter in reduced if parameter.requires_grad]

    def unfit(self) -> str:
        module = self._ddp
        if getattr(module, "mixed_precision", None) is not None:
            return "DDP's mixed precision converts gradients during the all-reduce"
        if getattr(module, "_delay_all_reduce_params", None):
            return "the script delays the all-reduce of some parameters itself"
        if any(getattr(submodule, "sparse", False) is True for submodule in module.modules()):
            return "the module has sparse gradients"
        return ""

    def why_leave(self) -> str:
        return _JOIN if self._ddp._join_config.enable else ""

    def largest(self, counts: list[int]) -> list[int]:
        most = torch.tensor(counts, dtype=torch.int64, device=self._ddp.device)
        dist.all_reduce(most, dist.ReduceOp.MAX, group=self._ddp.process_group)
        return most.tolist()

    @torch.no_grad()
    def average(self) -> None:
        """As DistributedDataParallel does: a gradient that no rank has stays None."""
        module, parameters = self._ddp, self.parameters()
        group = module.process_group
        has = torch.tensor([param.grad is not None for param in parameters], dtype=torch.int32, device=module.device)
        dist.all_reduce(has, group=group)
        for parameter, ranks in zip(parameters, has.tolist(), strict=True):
            if not ranks:
                continue
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            gradient = parameter.grad.contiguous()
            gradient /= dist.get_world_size(group)  # before the sum: it overflows later, as torch's own
            dist.all_reduce(gradient, group=group)
            if gradient is not parameter.grad:
                parameter.grad.copy_(gradient)
        module.require_forward_param_sync = True  # buffers are sent before the next forward pass, as after a collective

    def discard(self, parameters: set[int]) -> None:
        """Gradients that were thrown away are all that is kept."""

    @property
    def _ddp(self) -> Any:
        return self._module()


def no_sync(value: bool) -> None:
    """True reduces gradients in the last micro-batch only, False in every backward pass."""
    if not value:
        _never()
        return
    watched: list[MicroBatches] = []

    def watch(module: Any) -> None:
        watched.append(MicroBatches(module, _OfDdp(module)))
        watched[-1].install()

    follow(DistributedDataParallel, watch)
    _heed_the_scripts_own(watched)
    boundaries.install(watched)


def _heed_the_scripts_own(watched: Iterable[MicroBatches]) -> None:
    enter: Any = DistributedDataParallel.no_sync

    @functools.wraps(enter)
    def entered(this: Any) -> Any:
        for micro_batches in watched:
            if micro_batches.is_of(this):
                micro_batches.leave(BY_ITSELF)
        return enter(this)

    DistributedDataParallel.no_sync = entered  # type: ignore[method-assign, assignment]


def _never() -> None:
    enter: Any = DistributedDataParallel.forward

    @functools.wraps(enter)
    def synchronised(this: Any, *args: Any, **kwargs: Any) -> Any:
        this.require_backward_grad_sync = True
        return enter(this, *args, **kwargs)

    DistributedDataParallel.forward = synchronised  # type: ignore[method-assign, assignment]


APPLIERS: dict[str, Callable[[Any], None]] = {KNOB: no_sync}
