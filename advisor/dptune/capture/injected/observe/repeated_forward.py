"""Watches calls of modules in the warm-up steps: which compute again what was computed before in the same step.

Counting calls shows which modules are called several times between two optimizer steps; only their inputs and outputs
are looked at, from their second call on, and compared when the step ends. Calls without gradients are also compared
with the calls that the last optimizer step trained on, and so are calls with gradients that no backward pass has gone
through one step later. A few values of each row of all inputs and outputs show whether
rows repeat. `nn.Module.__call__` is wrapped until the first window opens; nothing is left on the script's modules.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dptune.capture.injected.observe.call_contents import contents, tensors_in
from dptune.capture.injected.observe.module_paths import parents, path_of
from dptune.capture.injected.observe.places import Places
from dptune.capture.injected.observe.repeated_rows import rows_of
from dptune.capture.injected.observe.repeats import Call, Repeat, kept, repeats, trained_again, unused_again
from dptune.capture.injected.observe.row_calls import RowCalls
from dptune.capture.injected.observe.slice_calls import SliceCalls
from dptune.capture.injected.observe.source_loops import parting, place, script_lines
from dptune.runfile.repeated_forward import RepeatedForwardFacts

_CALLS = 4096  # whose contents are kept between two optimizer steps
_OF_MODULE = 512  # of one module
_NAMED = 4
Called = Callable[[Any, tuple[Any, ...], dict[str, Any], FrameType], None]
_LABELS = ("labels", "label", "targets", "target")  # arguments for the loss that a model may compute itself
# A module; whether prefixes or rows repeat, or it was trained on the inputs, and no backward pass uses the outputs.
_Kind = tuple[int, bool, bool, bool, bool]


class RepeatedForward:
    """The modules that are called again on what they have computed on."""

    def __init__(self, places: Places, passes: Callable[[], int], called: Called) -> None:
        self._places = places
        self._called = called
        self._passes = passes
        self._call = nn.Module.__call__
        self.row_calls = RowCalls()
        self.slice_calls = SliceCalls()
        self._wrapped: Any = None
        self._thread = 0
        self._around: Call | None = None
        self._calls: list[Call] = []
        self._trained: list[Call] = []  # of the last optimizer step
        self._last: Callable[[], list[Repeat]] = list  # whose outputs were not used, of the last optimizer step
        self._counts: Counter[int] = Counter()
        self._trains: dict[int, bool] = {}  # modules: whether they have parameters
        self._called_again: set[int] = set()  # between two steps
        self._kept = 0
        self._step: list[Repeat] = []
        self._forward_ns = 0
        self._begun_ns = 0
        self._steps = 0
        self._found: dict[_Kind, tuple[Any, RepeatedForwardFacts]] = {}
        self._facts: list[RepeatedForwardFacts] = []

    def begin(self) -> None:
        """Watch calls from now on, but none that torch.compile reads."""
        if self._places.compiled:
            return
        call = self._call = nn.Module.__call__
        observer = self  # torch's profiler takes what such a frame calls `self` for the module
        self._thread = threading.get_ident()
        self._begun_ns = time.perf_counter_ns()

        @functools.wraps(call)
        def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or not observer._watches():
                return call(self, *args, **kwargs)
            with contextlib.suppress(Exception):
                observer._called(self, args, kwargs, sys._getframe(1))
            entered, around = observer._entered(self, args, kwargs), observer._around
            if entered is None:
                return call(self, *args, **kwargs)
            observer._around = entered
            begun_ns = time.perf_counter_ns()
            try:
                output = call(self, *args, **kwargs)
            finally:
                entered.spent_ns = time.perf_counter_ns() - begun_ns
                observer._around = around
            observer._left(entered, output)
            return output

        self._wrapped = nn.Module.__call__ = watched  # type: ignore[method-assign]

    def stepped(self) -> None:
        """An optimizer has made a step: what was computed before is no longer of use."""
        if self._wrapped is None:
            return
        begun_ns = time.perf_counter_ns()
        self.row_calls.stepped()
        with contextlib.suppress(Exception):
            again = repeats(self._calls)
            self._step += [*again, *trained_again(self._calls, self._trained, again), *self._last()]
            calls, before = self._calls, self._trained
            self._last = lambda: list(unused_again(calls, before, again))
            if any(call.graph for call in self._calls):
                self._trained = [call for call in self._calls if call.graph and call.inputs is not None]
        self._forward_ns += sum(call.spent_ns for call in self._calls if call.goes_back and call.around is None)
        self._calls, self._kept, self._counts = [], 0, Counter()
        self._begun_ns += time.perf_counter_ns() - begun_ns  # comparing is no part of the step

    def ticked(self) -> None:
        """A step of the recording has ended."""
        if self._wrapped is None:
            return
        self.stepped()
        self.row_calls.ticked()
        self.slice_calls.ticked()
        now_ns = time.perf_counter_ns()
        with contextlib.suppress(Exception):
            if self._steps and self._forward_ns:  # the first shows which modules to look at
                self._add(now_ns - self._begun_ns)
            self._steps += bool(self._forward_ns)
        self._step, self._forward_ns, self._begun_ns = [], 0, time.perf_counter_ns()

    def end(self) -> None:
        """Watch no more, and find where in the model the modules are."""
        if self._wrapped is not None and nn.Module.__call__ is self._wrapped:
            nn.Module.__call__ = self._call  # type: ignore[method-assign]
        self._wrapped = None
        self.row_calls.end()
        self.slice_calls.end()
        with contextlib.suppress(Exception):  # modules may be anything
            known = parents() if self._found else {}
            for module, facts in self._found.values():
                wrapped = module.module if isinstance(module, DistributedDataParallel) else module
                facts.module = path_of(wrapped, known)
            # The first one shows which modules to look at, the next what they train on, and a third what is used.
            least = self._steps - 1
            found = [
                facts for _, facts in self._found.values() if len(facts.step_ns) >= least - facts.trained - facts.unused
            ]
            self._facts = sorted(found, key=lambda module_facts: -sum(module_facts.again_ns))[:_NAMED]
        self._found, self._step, self._calls, self._trained, self._around = {}, [], [], [], None
        self._last = list

    def facts(self) -> list[RepeatedForwardFacts]:
        """What was repeated in every step that was looked at, what takes longest first."""
        return self._facts

    def _watches(self) -> bool:
        """Not in a backward pass, where checkpointed parts run again, nor on other threads."""
        return (
            self._wrapped is not None
            and threading.get_ident() == self._thread
            and torch._C._current_graph_task_id() == -1
        )

    def _entered(self, module: Any, args: Any, kwargs: Any) -> Call | None:
        try:
            call = Call(module, self._around, self._passes(), module.training)
            self._counts[id(module)] += 1
            again = self._counts[id(module)]
            if id(module) not in self._trains:
                self._trains[id(module)] = next(module.parameters(), None) is not None
            self._called_again |= {id(module)} if again > 1 else set()
            if self._trains[id(module)]:
                self.slice_calls.entered(module, (args, kwargs), sys._getframe(2), call.after)
            if self._trains[id(module)] and again <= _OF_MODULE and self._kept < _CALLS:
                self._kept += 1
                call.inputs = contents(args, kwargs) if id(module) in self._called_again else None
                if call.inputs is not None and self._around is None:
                    features = {name: given for name, given in kwargs.items() if name not in _LABELS}
                    call.features = call.inputs if len(features) == len(kwargs) else contents(args, features)
                rows = rows_of(args, kwargs)
                call.rows = (rows, rows) if rows is not None else None
                call.lines = script_lines(sys._getframe(2))
            if self._trains[id(module)] and self._around is None and again <= _CALLS:
                lines = call.lines or script_lines(sys._getframe(2))
                self.row_calls.entered(module, (args, kwargs), lines, sys._getframe(2), call.after)
            if call.inputs is not None or call.rows is not None or call.around is None:
                self._calls.append(call)
        except Exception:  # arguments may be anything
            return None
        return call

    def _left(self, call: Call, output: Any) -> None:
        with contextlib.suppress(Exception):
            call.graph = torch.is_grad_enabled() and any(p.requires_grad for p in call.module.parameters())
            if call.graph and call.around is None and self._passes() == call.after:
                _watch_backward(call, output)
            if call.inputs is not None:
                call.outputs = contents(output)
            if call.rows is not None:
                returned = rows_of(output)
                call.rows = (call.rows[0], returned) if returned is not None else None

    def _add(self, step_ns: int) -> None:
        """Add what was repeated in this step."""
        together: dict[_Kind, list[Repeat]] = {}
        for repeat in self._step:
            kind = (id(repeat.module), repeat.prefixes, repeat.rows_repeat > 1, repeat.trained, repeat.unused)
            together.setdefault(kind, []).append(repeat)
        for at, found in together.items():
            if at not in self._found:
                self._found[at] = (found[0].module, RepeatedForwardFacts("", at[1], trained=at[3], unused=at[4]))
            facts = self._found[at][1]
            facts.rows_repeat = min(repeat.rows_repeat for repeat in found)
            spare = [call for repeat in found for call in repeat.spare]
            facts.calls = sum(len(repeat.calls) for repeat in found)
            facts.inputs = sum(repeat.inputs for repeat in found)
            facts.without_graph = not any(call.graph for call in spare) and any(call.graph for call in found[0].calls)
            facts.in_training = facts.trained and any(call.training for call in spare)
            calls = kept(found[0].calls, found[0].spare)
            lines = [*calls[0].lines[:1]] if facts.rows_repeat > 1 else parting([call.lines for call in calls])
            facts.lines = [place(line) for line in lines]
            facts.step_ns.append(step_ns)
            facts.again_ns.append(sum(repeat.spare_ns(with_graph=False) for repeat in found))
            facts.graph_ns.append(sum(repeat.spare_ns(with_graph=True) for repeat in found))
            facts.forward_ns.append(self._forward_ns)


def _watch_backward(call: Call, output: Any) -> None:
    """Notice a backward pass through one of these outputs, at its operator: nothing is left on tensors."""

    def reach(_: Any) -> None:
        call.reached = True

    for tensor in tensors_in(output):
        if tensor.grad_fn is not None:  # a parameter that is returned has none
            call.reached = False
            tensor.grad_fn.register_prehook(reach)
