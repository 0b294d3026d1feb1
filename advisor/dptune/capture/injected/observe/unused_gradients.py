"""Which gradients of a backward pass no optimizer uses: of parameters it does not have, or discarded before its step.

And which passes go back through a graph again, where the sum of the losses would need one.

Passes are distinguished by the script's lines that lead to the call. What a pass computes gradients of is read from its
graph, in its first passes only. After that, a pass costs a look at one gradient for each optimizer.
"""

from __future__ import annotations

import contextlib
import sys
import time
import weakref
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from dptune.capture.injected.observe.graph_inputs import GraphInputs
from dptune.capture.injected.observe.kept_graphs import KeptGraphs, has_gradients
from dptune.capture.injected.observe.left_out import AddedParameters, left_out
from dptune.capture.injected.observe.pass_times import PassClock, PassTimes
from dptune.capture.injected.observe.places import Places, is_the_users, users_line
from dptune.runfile.left_out import LeftOutFacts
from dptune.runfile.unused import RepeatedPassFacts, UnusedGradientFacts

_WALKS = 3  # passes of one call whose graph is read: what a model freezes may change after the first
_NODES = 200_000  # of a graph; a larger one is not read
_REPEATS = 8  # passes of one call in a step whose graph is read
_CALLS = 32  # calls of backward that are distinguished
_DEPTH = 3  # lines of the script that tell a call apart
_PENDING = 64  # passes that an optimizer may leave behind; of one that never steps no more are kept
_OFTEN = 3  # times that gradients were discarded before this is said of a call
_SAMPLED = 8  # elements of a parameter that show whether it changes


@dataclass
class _Call:
    """One place that calls backward.

    `leaves`: the parameters it computes gradients of, with some of their values; `order`: when each was first used;
    `earliest`: the one that was used first, which all losses of a step share if they share any. `times` are of its last
    pass that was timed, and `shared_ns` of `timed_ns` were in operators that an earlier pass of the step went through.
    """

    where: str | None
    leaves: dict[int, tuple[weakref.ref[Any], torch.Tensor]] = field(default_factory=dict)
    order: dict[int, int] = field(default_factory=dict)
    earliest: weakref.ref[Any] | None = None
    walks: int = 0
    walking: bool = False
    whole: bool = True
    spent_ns: int = 0
    nodes: set[int] = field(default_factory=set)  # of the graph of its last pass, by their sequence numbers
    times: PassTimes | None = None
    earlier: set[int] = field(default_factory=set)  # nodes of the passes of this step
    shared_ns: int = 0
    timed_ns: int = 0
    counted: PassTimes | None = None
    shared: bool = False  # whether a later pass of a step went through nodes of an earlier one
    in_step: int = 0  # passes with retain_graph since an optimizer last stepped
    firsts: int = 0
    repeats: int = 0
    again_ns: int = 0
    used_by: set[int] = field(default_factory=set)
    discarded_by: Counter[int] = field(default_factory=Counter)
    runs_at: str | None = None  # the call of a module that no optimizer updates
    entered_at: str | None = None  # the call whose input leads it to what is discarded


@dataclass
class _Pending:
    """A pass whose gradients an optimizer has not used yet. `passed_over`: another optimizer has stepped meanwhile."""

    call: _Call
    passed_over: bool = False


@dataclass
class _Updates:
    """An optimizer, by its first parameter, so that one made anew for each step is the same one."""

    parameters: set[int]
    optimizer: weakref.ref[Any]
    pending: list[_Pending] = field(default_factory=list)
    touched: dict[int, Any] = field(default_factory=dict)  # by call: a parameter of its pass


class Unused:
    """Follows gradients from the passes that compute them to the optimizers that use or discard them."""

    def __init__(self, places: Places, added: AddedParameters) -> None:
        self._places = places
        self._added = added
        self._calls: dict[tuple[Any, ...], _Call] = {}
        self._updates: dict[int, _Updates] = {}
        self._call: _Call | None = None
        self._begun_ns = 0
        self._again = False  # whether the pass adds to gradients of one through the same graph
        self.timing = False  # whether steps run without the profiler
        self.inputs = GraphInputs()
        self._clock = PassClock()
        self._kept = KeptGraphs()

    def before_pass(self, roots: Any, inputs: Any = None, retain: Any = None) -> None:
        """A backward pass starts from these tensors; called from the function that the script called."""
        self._call, self._again = None, False
        with contextlib.suppress(Exception):
            self._find_discarded()
            if inputs is not None:
                return
            frame = sys._getframe(2)
            at = tuple(_lines(frame))
            if at not in self._calls and len(self._calls) < _CALLS:
                self._calls[at] = _Call(users_line(frame))
            call = self._calls.get(at)
            is_read = call is not None and self._is_read(call)
            if call is not None and is_read:
                self._read_graph(call, roots)
                call.runs_at = call.runs_at or self.inputs.runs_at(call.leaves.keys() - self._held())
            if call is not None and call.entered_at is None and call.discarded_by:
                self._find_entry(call, roots)
            if call is not None and retain:
                self._again = call.in_step > 0 and has_gradients(call)
                call.firsts += call.in_step == 0
                call.repeats += self._again
                call.in_step += 1
            if call is not None:
                self._follow_graph(call, call.nodes if is_read and call.whole else (), keeps=bool(retain))
            self._call, self._begun_ns = call, time.perf_counter_ns()

    def _follow_graph(self, call: _Call, nodes: Collection[int], *, keeps: bool) -> None:
        first = None if self._again else self._kept.again(call, nodes)
        if first is not None:
            self._again = True
            call.earlier |= first.times.spent_ns.keys() if first.times is not None else set()
        if keeps:
            self._kept.keep(call, nodes)

    def after_pass(self) -> None:
        """It has ended."""
        call, self._call = self._call, None
        self._clock.end()
        if call is None:
            return
        with contextlib.suppress(Exception):
            self._count_shared(call)
            if self.timing:
                spent_ns = time.perf_counter_ns() - self._begun_ns
                call.spent_ns += spent_ns
                call.again_ns += spent_ns if self._again else 0
            for updates in self._alive():
                if len(updates.pending) < _PENDING and self._touched(updates, call) is not None:
                    updates.pending.append(_Pending(call))

    def stepped(self, optimizer: Any) -> None:
        """An optimizer has made a step: it has used what its parameters' gradients hold."""
        with contextlib.suppress(Exception):
            for call in self._calls.values():
                call.in_step, call.earlier = 0, set()
            self.inputs.stepped()
            self._clock.stepped()
            self._kept.stepped()
            first = _first(optimizer)
            known = self._updates.get(first)
            if known is None:
                return
            for pending in known.pending:
                pending.call.used_by.add(first)
            known.pending = []
            for at, other in self._updates.items():
                if at != first and other.pending and not other.parameters & known.parameters:
                    for pending in other.pending:
                        pending.passed_over = True

    def facts(self) -> list[UnusedGradientFacts]:
        """What no optimizer used so far, but for parameters that seem to be left out by mistake."""
        if self._sharded():
            return []
        found = [self._orphaned(call, orphans) for call, orphans, missed in self._without_optimizer() if not missed]
        for call in list(self._calls.values()):
            leaves = _alive(call)
            for first, updates in self._updates.items():
                discards = call.discarded_by[first] >= _OFTEN and first not in call.used_by
                held = [leaf for at, leaf in leaves.items() if at in updates.parameters]
                if discards and held and (optimizer := updates.optimizer()) is not None:
                    facts = self._facts(call, held, self._places.line(optimizer))
                    facts.entered_at = call.entered_at
                    found.append(facts)
        return found

    def _orphaned(self, call: _Call, orphans: list[Any]) -> UnusedGradientFacts:
        facts = self._facts(call, orphans, None)
        facts.runs_at = call.runs_at
        return facts

    def left_out(self) -> list[LeftOutFacts]:
        """Parameters that get gradients and seem to be missing from the optimizer."""
        if self._sharded():
            return []
        return [missed for _, _, missed in self._without_optimizer() if missed is not None]

    def repeated(self) -> list[RepeatedPassFacts]:
        """Calls that go back through one graph several times a step, and add up the gradients."""
        return self._kept.repeated(list(self._calls.values()))

    def _sharded(self) -> bool:
        return bool(self._places.alive("FullyShardedDataParallel") or self._places.sharded or self._places.engine)

    def _without_optimizer(self) -> Iterator[tuple[_Call, list[Any], LeftOutFacts | None]]:
        """Calls with parameters that no optimizer holds by now, and how these were left out, if by mistake."""
        held = self._held()
        for call in list(self._calls.values()):
            leaves = _alive(call)
            orphans = [leaf for at, leaf in leaves.items() if at not in held]
            others = [leaf for at, leaf in leaves.items() if at in held]
            if call.whole and orphans and others and not self._change(call, orphans):
                missed = left_out(orphans, others, call.order, self._added, self._places)
                if missed is not None:
                    missed.where = call.where
                yield call, orphans, missed

    def _held(self) -> set[int]:
        """The parameters of all optimizers."""
        groups = (group for optimizer in self._places.alive(Optimizer) for group in optimizer.param_groups)
        return {id(parameter) for group in groups for parameter in group["params"]}

    def _is_read(self, call: _Call) -> bool:
        """Whether the graph of this pass is read: of the first passes, and of those that follow them in a step."""
        if call.in_step == 0:
            call.walking = call.walks < _WALKS
            call.walks += call.walking
        return call.walking and call.whole and call.in_step < _REPEATS

    def _count_shared(self, call: _Call) -> None:
        """Of a pass that follows another in its step: the time in operators that it shares with those before."""
        times = call.times
        if times is None or not times.spent_ns or call.counted is times:
            return
        if self._again:
            shared_ns, timed_ns = times.shared_with(call.earlier)
            call.shared_ns += shared_ns
            call.timed_ns += timed_ns
        call.earlier |= times.spent_ns.keys()
        call.counted = times

    def _read_graph(self, call: _Call, roots: Any) -> None:
        found = _leaves([roots] if isinstance(roots, torch.Tensor) else roots)
        if found is None:
            call.whole, call.times = False, None
            return
        leaves, operators = found
        nodes = {operator._sequence_nr() for operator in operators}
        call.order.update({id(leaf): number for leaf, number in leaves})
        call.shared = call.shared or (call.in_step > 0 and not call.nodes.isdisjoint(nodes))
        call.nodes = nodes
        with contextlib.suppress(Exception):
            call.times = None if self._sharded() else self._clock.watch(operators)
        parameters = [(number, leaf) for leaf, number in leaves if isinstance(leaf, nn.Parameter)]
        if parameters and call.in_step == 0:
            call.earliest = weakref.ref(min(parameters, key=lambda used: used[0])[1])
        for leaf, _ in leaves:
            if id(leaf) not in call.leaves and isinstance(leaf, nn.Parameter):
                call.leaves[id(leaf)] = (weakref.ref(leaf), _sample(leaf))
                for updates in self._updates.values():
                    updates.touched.pop(id(call), None)

    def _find_entry(self, call: _Call, roots: Any) -> None:
        discarding = [
            updates.parameters
            for first, updates in self._updates.items()
            if call.discarded_by[first] and first not in call.used_by
        ]
        leaves = set(call.leaves)
        for parameters in discarding:
            listed = [roots] if isinstance(roots, torch.Tensor) else roots
            call.entered_at = call.entered_at or self.inputs.entry(listed, leaves & parameters)

    def _alive(self) -> list[_Updates]:
        for optimizer in self._places.alive(Optimizer):
            first = _first(optimizer)
            known = self._updates.get(first)
            if known is None or (known.optimizer() is not optimizer and len(self._updates) < _CALLS):
                parameters = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
                pending = known.pending if known else []
                self._updates[first] = _Updates(parameters, weakref.ref(optimizer), pending)
        return list(self._updates.values())

    def _touched(self, updates: _Updates, call: _Call) -> Any:
        """One of the optimizer's parameters that the call computes gradients of; None without."""
        if id(call) not in updates.touched:
            both = [ref for at, (ref, _) in call.leaves.items() if at in updates.parameters]
            updates.touched[id(call)] = both[-1] if both else None
        ref = updates.touched[id(call)]
        return None if ref is None else ref()

    def _find_discarded(self) -> None:
        """Gradients that are gone before their optimizer has made a step."""
        for first, updates in self._updates.items():
            if not updates.pending:
                continue
            leaf = self._touched(updates, updates.pending[0].call)
            if leaf is not None and leaf.grad is None:
                for pending in updates.pending:
                    pending.call.discarded_by[first] += pending.passed_over
                updates.pending = []

    def _change(self, call: _Call, leaves: list[Any]) -> bool:
        """Whether the values of parameters without an optimizer change: the script updates them by itself."""
        return any(not torch.equal(_sample(leaf), call.leaves[id(leaf)][1]) for leaf in leaves)

    def _facts(self, call: _Call, leaves: list[Any], optimizer: str | None) -> UnusedGradientFacts:
        found = UnusedGradientFacts(
            call.where,
            optimizer,
            len(leaves),
            len(call.leaves),
            sum(leaf.numel() * leaf.element_size() for leaf in leaves),
            spent_ns=call.spent_ns,
        )
        wanted = {id(leaf) for leaf in leaves}
        found.needless = list(call.times.needless(wanted) or ()) if call.times is not None else []
        for module in self._places.ddp():
            names = [name for name, parameter in module.module.named_parameters() if id(parameter) in wanted]
            if names:
                found.reduced, found.made_at = True, self._places.line(module)
                found.modules = list(dict.fromkeys(name.partition(".")[0] for name in names))[:4]
        return found


def _first(optimizer: Any) -> int:
    return id(optimizer.param_groups[0]["params"][0])


def _lines(frame: FrameType | None) -> Iterator[tuple[Any, int]]:
    """The innermost lines of the script that lead to a frame."""
    found = 0
    while frame is not None and found < _DEPTH:
        if is_the_users(frame.f_code.co_filename):
            found += 1
            yield frame.f_code, frame.f_lineno
        frame = frame.f_back


def _alive(call: _Call) -> dict[int, Any]:
    """The parameters that the call computes gradients of, of those that still exist."""
    return {at: leaf for at, (ref, _) in call.leaves.items() if (leaf := ref()) is not None}


def _leaves(roots: Iterable[Any]) -> tuple[list[tuple[Any, int]], list[Any]] | None:
    """The tensors that a backward pass from these accumulates gradients in, and the operators.

    With each tensor the sequence number of the first operator that uses it. None of a graph too large to read.
    """
    todo = deque(root.grad_fn for root in roots if root.grad_fn is not None)
    seen, found, operators = set(todo), [], list[Any]()
    uses: dict[Any, int] = {}  # of the nodes that accumulate gradients
    while todo:
        node = todo.popleft()
        if (leaf := getattr(node, "variable", None)) is not None:
            found.append((node, leaf))
        else:
            operators.append(node)
        for following, _ in node.next_functions:
            if getattr(following, "variable", None) is not None:
                uses[following] = min(uses.get(following, node._sequence_nr()), node._sequence_nr())
            if following is not None and following not in seen:
                seen.add(following)
                todo.append(following)
        if len(seen) > _NODES:
            return None
    return [(leaf, uses.get(node, 0)) for node, leaf in found], operators


def _sample(parameter: torch.Tensor) -> torch.Tensor:
    """Some of its values, spread over it."""
    flat = parameter.detach().reshape(-1)
    return flat[:: max(1, flat.numel() // _SAMPLED)][:_SAMPLED].clone()
