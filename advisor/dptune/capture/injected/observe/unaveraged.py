"""Finds parameters that DDP does not average: those that it did not take when it wrapped the module.

DDP hands the parameters that require gradients to its reducer once, when it is constructed. Those that are unfrozen or
added later get gradients that stay local to the rank.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import weakref
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dptune.capture.injected.observe.averaging import averages_by_other_means
from dptune.capture.injected.observe.places import Places, caller, is_the_users, users_function
from dptune.capture.injected.observe.unfreezing import unfreezing_line
from dptune.runfile.unaveraged import UnaveragedFacts

_NAMED = 2
_SUMMED = 8  # parameters
_ELEMENTS = 1 << 20  # of each

_Known = dict[int, "weakref.ref[Any]"]


@dataclass
class _Unaveraged:
    module: weakref.ref[Any]
    facts: UnaveragedFacts
    parameters: list[weakref.ref[Any]] = field(default_factory=list)


class Unaveraged:
    """Looks at the parameters of each optimizer that steps for those that no DDP module has taken."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._known: _Known = {}  # parameters that a DDP module has taken, or that have been looked at
        self._wrapped: _Known = {}  # the DDP modules whose parameters are known
        self._found: dict[int, _Unaveraged] = {}
        self._line: str | None = None
        self._searched = False  # the source of the script
        self.step = 0

    def install(self) -> None:
        """Note what DDP takes, and where the script unfreezes modules."""
        construct = DistributedDataParallel.__init__

        @functools.wraps(construct)
        def constructed(this: Any, *args: Any, **kwargs: Any) -> None:
            construct(this, *args, **kwargs)
            with contextlib.suppress(Exception):
                self._line = None
                self._wrapped[id(this)] = weakref.ref(this)
                for parameter in this.module.parameters():
                    if parameter.requires_grad:
                        self._known[id(parameter)] = weakref.ref(parameter)

        DistributedDataParallel.__init__ = constructed  # type: ignore[method-assign, assignment]
        switch = nn.Module.requires_grad_

        @functools.wraps(switch)
        def switched(this: Any, requires_grad: bool = True) -> Any:
            with contextlib.suppress(Exception):
                frame = caller(sys._getframe(1))
                if requires_grad and frame is not None and is_the_users(frame.f_code.co_filename):
                    self._line = users_function(frame)
            return switch(this, requires_grad)

        nn.Module.requires_grad_ = switched  # type: ignore[method-assign, assignment]

    def stepped(self, optimizer: Any) -> None:
        """An optimizer has made a step."""
        with contextlib.suppress(Exception):
            self.step += 1
            if not self._known:
                return
            new = [
                parameter
                for group in optimizer.param_groups
                for parameter in group["params"]
                if ((known := self._known.get(id(parameter))) is None or known() is not parameter)
                and parameter.requires_grad
                and parameter.grad is not None
            ]
            if new:
                self._look(new)

    def facts(self) -> list[UnaveragedFacts]:
        """Of the DDP modules that still exist and have such parameters."""
        found = [unaveraged for unaveraged in self._found.values() if unaveraged.module() is not None]
        for unaveraged in found:
            unaveraged.facts.sums, unaveraged.facts.sums_step = _sums(unaveraged.parameters), self.step
            if unaveraged.facts.unfrozen_where is None and not self._searched:
                self._searched = True
                with contextlib.suppress(Exception):  # sources may be anything
                    unaveraged.facts.unfrozen_where = unfreezing_line()
        return [unaveraged.facts for unaveraged in found]

    def _look(self, new: list[Any]) -> None:
        """Which of these parameters a DDP module holds; the others are none of its business."""
        for candidate in new:
            self._known[id(candidate)] = weakref.ref(candidate)
        wanted = {id(parameter) for parameter in new}
        for module in [candidate for ref in self._wrapped.values() if (candidate := ref()) is not None]:
            if dist.get_world_size(module.process_group) < 2 or averages_by_other_means(module):
                continue
            ignored = getattr(module, "parameters_to_ignore", ())
            for name, candidate in module.module.named_parameters():
                if id(candidate) in wanted and name not in ignored:
                    self._note(module, name, candidate)

    def _note(self, module: Any, name: str, parameter: Any) -> None:
        found = self._found.get(id(module))
        if found is None or found.module() is not module:
            facts = UnaveragedFacts(type(module.module).__name__, self._places.line(module))
            found = self._found[id(module)] = _Unaveraged(weakref.ref(module), facts)
        facts = found.facts
        facts.unfrozen_where = facts.unfrozen_where or self._line
        facts.tensors += 1
        facts.parameters += parameter.numel()
        facts.size_bytes += parameter.numel() * parameter.element_size()
        if len(facts.names) < _NAMED:
            facts.names.append(name)
        if len(found.parameters) < _SUMMED:
            found.parameters.append(weakref.ref(parameter))


@torch.no_grad()
def _sums(parameters: list[weakref.ref[Any]]) -> list[float]:
    """Of parameters that are ordinary dense tensors; one transfer from the device."""
    alive = [tensor for tensor in (parameter() for parameter in parameters) if tensor is not None]
    whole = [tensor for tensor in alive if tensor.layout == torch.strided and tensor.is_contiguous()]
    sums = [tensor.view(-1)[:_ELEMENTS].sum(dtype=torch.float64) for tensor in whole]
    return [float(total) for total in torch.stack(sums).tolist()] if sums else []
