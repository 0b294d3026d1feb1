"""Watches operators in a few warm-up steps: which compute again what was computed before, from the same tensors.

A mode of torch sees each call of an operator from Python, outside of backward passes. Operators whose inputs have the
same value numbers as in an earlier step compute the same again; some values of their results are compared, for not all
updates show in the numbers; of tests, whose results agree on other values too, those of the inputs. Only operators on
tensors that the step does not change remain: no weights in training, and no batches.

Results that follow from plain values alone, as a table that a loop fills with numbers, need no comparison, so short
operators count as well. `whole` functions compute nothing else.

Within a step, operators without gradients whose inputs have the same numbers as those of an earlier call in this step
compute the same again, as a mask of the batch that each layer makes.
"""

from __future__ import annotations

import contextlib
import inspect
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, Protocol

import torch
from torch import overrides
from torch.overrides import TorchFunctionMode

from dptune.capture.injected.observe.compared_values import agree, largest_of, some_inputs, some_values
from dptune.capture.injected.observe.histories import JOINING
from dptune.capture.injected.observe.places import OURS, TORCHS, Places, function_at, script_frame
from dptune.capture.injected.observe.value_numbers import ValueNumbers
from dptune.runfile.same_results import SameResultFacts

_STEPS = 3  # that are watched: the first has nothing to be compared with
_CALLS = 20_000  # of a step; scripts with more are not watched
_LEAST_NS = 20_000  # of a call whose results are compared: what takes less costs mainly the call
_LEAST_OF_CONSTANTS_NS = 50_000  # of the short calls of a line in a step
_KEPT = 2_000  # results of which values are kept, by step
_NAMED = 3
OperatorCall = tuple[str, Any, Any, Any]  # its name, arguments, keyword arguments and result
# What copies a tensor, and with another dtype or device computes, unless the copy is changed later.
_CASTS = frozenset(("to", "cuda", "cpu", "float", "double", "half", "bfloat16"))
_IN_PLACE = re.compile(r"[^_]\w*[^_]_|__(?:setitem|i(?:add|sub|mul|truediv|floordiv|mod|pow|and|or|xor))__")
# What makes a tensor without computing on another, and what copies one, so that it can be changed.
_UNCOUNTED = frozenset(
    (
        *_CASTS,
        *("zeros", "ones", "full", "empty", "arange", "eye", "linspace", "tensor", "zeros_like", "ones_like"),
        *("full_like", "empty_like", "empty_strided", "new_zeros", "new_ones", "new_full", "new_empty", "new_tensor"),
        *("clone", "contiguous", "pin_memory"),
        *("backward", "item", "tolist", "numpy", "as_tensor", "from_numpy", "__deepcopy__"),
    )
)


@dataclass(frozen=True, eq=False)
class _Call:
    """A call on what an earlier step has computed on; `code` and `line` are of the script's function around it."""

    number: int
    operator: str
    spent_ns: int
    code: Any
    line: int
    size: list[int]
    values: torch.Tensor | None  # None of what follows from plain values
    first: torch.Tensor | None = None  # values of the first call with that number in the same step, of a later one
    count: int = 1  # calls


_Compared = tuple[int, int, list[_Call]]  # a step: its duration, that of forward operators, and what it computes again


class CallObserver(Protocol):
    """Sees the calls of operators in the steps that are watched."""

    def before(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        """A call is about to be made; what this returns is given to `after`."""

    def after(self, token: Any, call: OperatorCall, spent_ns: int, frame: FrameType | None) -> None:
        """It has been made, from that frame."""

    def ticked(self, step_ns: int, forward_ns: int) -> None:
        """A watched step has ended."""

    def end(self) -> None:
        """No more calls are shown."""


class _Watching(TorchFunctionMode):
    def __init__(self, observer: SameResults) -> None:
        super().__init__()
        self._observer = observer

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._observer.call(func, args, kwargs or {})


class SameResults:
    """The functions of the script that compute the same again."""

    def __init__(
        self,
        places: Places,
        joined: Callable[[Any, FrameType | None], None] = lambda *_: None,
        others: Sequence[CallObserver] = (),
    ) -> None:
        """`joined` is called with the parts that a function of torch joins, and the frame of the script.

        `others` see each call as well.
        """
        self._observers = others
        self._places = places
        self._joined = joined
        self._mode: _Watching | None = None
        self._wanted = False
        self._thread = 0
        self._numbers = ValueNumbers()
        self._values: dict[int, torch.Tensor] = {}  # of results of earlier steps, by number
        self._new_values: dict[int, torch.Tensor] = {}
        self._of_first: set[int] = set()  # numbers of results of the first watched step
        self._again: list[_Call] = []
        self._constants: dict[tuple[Any, int], list[Any]] = {}  # by function and line: time, calls and operators
        self._others: set[Any] = set()  # functions that compute what they did not compute before
        self._known: set[int] = set()  # numbers of constants of earlier steps
        self._new_known: set[int] = set()
        self._changed: set[int] = set()  # numbers of what is changed in place in this step
        self._calls = self._steps = 0
        self._begun_ns = self._forward_ns = self._own_ns = 0
        self._times: list[_Compared] = []  # of the compared steps
        self._mixed: set[Any] = set()  # functions that were among others in any of them
        self._facts: list[SameResultFacts] = []

    def begin(self) -> None:
        """Watch from the next step on, but no code that torch.compile reads."""
        self._wanted, self._thread = not self._places.compiled, threading.get_ident()

    def ticked(self) -> None:
        """A step of the recording has ended."""
        if not self._wanted or threading.get_ident() != self._thread:
            return
        if self._mode is None:
            self._enter()
            return
        now_ns = time.perf_counter_ns()
        if self._calls > _CALLS or self._places.compiled:
            self.end()
            return
        with contextlib.suppress(Exception), torch._C.DisableTorchFunction():  # values may be on any device
            agreeing = [call for call in self._again if self._is_the_same(call)]
            if self._steps:
                agreeing += self._of_constants()
                self._mixed |= self._others
                self._times.append((max(1, now_ns - self._begun_ns - self._own_ns), self._forward_ns, agreeing))
        for other in self._observers:
            with contextlib.suppress(Exception):
                other.ticked(max(1, now_ns - self._begun_ns - self._own_ns), self._forward_ns)
        self._values.update(self._new_values)
        if not self._steps:
            self._of_first = set(self._new_values)
        self._known |= self._new_known
        self._steps += 1
        if self._steps >= _STEPS:
            self.end()
            return
        self._numbers.forget_dead()
        self._start_step()

    def end(self) -> None:
        """Watch no more."""
        self._wanted = False
        if self._mode is None or threading.get_ident() != self._thread:
            return
        with contextlib.suppress(Exception):
            _remove(self._mode)
            self._facts = _facts(_lasting(self._times, self._of_first), self._mixed)
        for other in self._observers:
            with contextlib.suppress(Exception):
                other.end()
        self._mode, self._numbers = None, ValueNumbers()
        self._values, self._new_values, self._again, self._times = {}, {}, [], []

    def facts(self) -> list[SameResultFacts]:
        """What every compared step computed again, what takes longest first."""
        return self._facts

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Make a call, and note what it computes on."""
        if not self._watches():
            return func(*args, **kwargs)
        entered_ns = time.perf_counter_ns()
        if _is_observers(sys._getframe(2)):
            result = func(*args, **kwargs)
            self._own_ns += time.perf_counter_ns() - entered_ns
            return result
        name, number = _name(func), None
        self._calls += 1
        if name in JOINING and args:
            with contextlib.suppress(Exception):
                self._joined(args[0], script_frame(sys._getframe(2)))
        with contextlib.suppress(Exception):  # inference tensors have no version; arguments may be anything
            number = self._numbers.number(name, args, kwargs)
            if kwargs.get("inplace") or _IN_PLACE.fullmatch(name):
                base = args[0]._base  # of a view
                self._changed.add(self._numbers.of(args[0] if base is None else base))
        tokens = [_before(other, func, name, args, kwargs) for other in self._observers]
        begun_ns = time.perf_counter_ns()
        result = func(*args, **kwargs)
        ended_ns = time.perf_counter_ns()
        for other, token in zip(self._observers, tokens, strict=True):
            with contextlib.suppress(Exception):
                other.after(token, (name, args, kwargs, result), ended_ns - begun_ns, sys._getframe(2))
        with contextlib.suppress(Exception):
            if number is not None:
                self._note(name, number, result, ended_ns - begun_ns, args)
            elif (frame := script_frame(sys._getframe(2))) is not None:
                self._others.add(frame.f_code)
        self._own_ns += time.perf_counter_ns() - entered_ns - (ended_ns - begun_ns)
        return result

    def _note(self, name: str, number: int, result: Any, spent_ns: int, args: Any) -> None:
        self._numbers.made(args[0] if name == "__setitem__" else result, number)
        if name != "backward":
            self._forward_ns += spent_ns
        largest = largest_of(result)
        computes = name == "__setitem__" or (largest is not None and not name.startswith("get "))
        if computes and self._is_constant(name, number, largest, spent_ns):
            return
        if spent_ns < _LEAST_NS or name.startswith("get ") or largest is None:
            return
        if name in _UNCOUNTED and not _converts(name, args, largest):
            return
        if len(self._new_values) >= _KEPT or any(result is each for each in args):  # in place
            return
        tests = largest.dtype is torch.bool
        if tests and largest.numel() == 1:  # `isnan(weights).any()`: the answer is the same of other values, too
            return
        before, first = number in self._values, self._new_values.get(number)
        within = not before and first is not None and not largest.requires_grad and len(self._again) < _KEPT
        values = first
        if values is None or within:
            values = some_inputs(args) if tests else some_values(largest)
            self._new_values.setdefault(number, values)
        frame = script_frame(sys._getframe(3)) if before or within else None
        if frame is not None:
            size, earlier = list(largest.shape), first if within else None
            self._again.append(_Call(number, name, spent_ns, frame.f_code, frame.f_lineno, size, values, earlier))

    def _is_constant(self, name: str, number: int, largest: torch.Tensor | None, spent_ns: int) -> bool:
        """Count a short call; whether it follows from plain values, and so does not need to be compared."""
        constant = number in self._numbers.constants
        if constant:
            self._new_known.add(number)
        if not self._steps:
            return False
        known = number in self._known
        if number in self._values and spent_ns >= _LEAST_NS and largest is not None:
            return False  # it is compared
        frame = script_frame(sys._getframe(4))
        if frame is None:
            return False
        if not known:
            self._others.add(frame.f_code)
            return False
        if name in _UNCOUNTED:
            return False
        found = self._constants.setdefault((frame.f_code, frame.f_lineno), [0, 0, Counter[str]()])
        found[0], found[1] = found[0] + spent_ns, found[1] + 1
        found[2][name] += spent_ns
        return True

    def _of_constants(self) -> list[_Call]:
        return [
            _Call(hash(place), operators.most_common(1)[0][0], spent_ns, *place, [], None, count=calls)
            for place, (spent_ns, calls, operators) in self._constants.items()
            if spent_ns >= _LEAST_OF_CONSTANTS_NS
        ]

    def _is_the_same(self, call: _Call) -> bool:
        """Whether its values are those of the call that it repeats: in an earlier step, or in the same one."""
        if call.operator in _CASTS and call.number in self._changed:
            return False
        before = self._values.get(call.number) if call.first is None else call.first
        return call.values is not None and agree(before, call.values)

    def _enter(self) -> None:
        """Only below all other modes: leaving one takes off whatever is on top."""
        with contextlib.suppress(Exception):
            if _modes():
                self._wanted = False
                return
            self._mode = _Watching(self)
            self._mode.__enter__()  # type: ignore[no-untyped-call]
            self._start_step()

    def _start_step(self) -> None:
        self._new_values, self._again, self._changed = {}, [], set()
        self._constants, self._others, self._new_known = {}, set(), set()
        self._calls = self._forward_ns = self._own_ns = 0
        self._begun_ns = time.perf_counter_ns()

    def _watches(self) -> bool:
        """Not in a backward pass, in transforms of functions, nor while code is traced."""
        return (
            self._wanted
            and self._calls <= _CALLS
            and torch._C._current_graph_task_id() == -1
            and torch._C._functorch.peek_interpreter_stack() is None
            and torch._C._get_tracing_state() is None
        )


def _before(observer: CallObserver, func: Any, name: str, args: Any, kwargs: Any) -> Any:
    with contextlib.suppress(Exception):  # arguments may be anything
        return observer.before(func, name, args, kwargs)
    return None


def _modes() -> list[Any]:
    """The modes that are entered in this thread, the outermost first."""
    return list(overrides._get_current_function_mode_stack())  # type: ignore[no-untyped-call]


def _remove(mode: TorchFunctionMode) -> None:
    """Take a mode off, and leave those that were entered after it."""
    above = []
    while _modes():
        top = overrides._pop_mode()  # type: ignore[no-untyped-call]
        if top is mode:
            break
        above.append(top)
    for other in reversed(above):
        overrides._push_mode(other)  # type: ignore[no-untyped-call]


def _name(func: Any) -> str:
    """`matmul`, or `get T` for what reads a property."""
    name = str(getattr(func, "__name__", ""))
    return f"get {getattr(func.__self__, '__name__', '')}" if name == "__get__" else name


def _is_observers(frame: FrameType | None) -> bool:
    """Whether an observer computes it for itself: functions that it puts around those of torch are nested ones."""
    while frame is not None and frame.f_code.co_filename.startswith(TORCHS):
        frame = frame.f_back
    if frame is None or not frame.f_code.co_filename.startswith(OURS):
        return False
    return not frame.f_code.co_flags & inspect.CO_NESTED or frame.f_code.co_name.startswith("<")


def _converts(name: str, args: Any, result: torch.Tensor) -> bool:
    """Whether it is a copy of a tensor with another dtype or on another device."""
    given = args[0] if name in _CASTS and args else None
    return isinstance(given, torch.Tensor) and (given.dtype, given.device) != (result.dtype, result.device)


def _lasting(times: list[_Compared], of_first: Collection[int]) -> list[_Compared]:
    """Without calls that repeat only the step before: what ends one step and begins the next may be one computation."""
    if len(times) < 2:
        return times
    last = {call.number for call in times[-1][2] if call.number in of_first}
    return [
        (
            step_ns,
            forward_ns,
            [call for call in calls if call.first is not None or call.number in last or call.values is None],
        )
        for step_ns, forward_ns, calls in times
    ]


def _facts(times: list[_Compared], mixed: Collection[Any]) -> list[SameResultFacts]:
    """By function of the script; `mixed`: those that also compute something else."""
    found = []
    for code, within in {(call.code, call.first is not None) for _, _, calls in times for call in calls}:
        spent, operators = Counter[int](), Counter[str]()
        facts = SameResultFacts("", within_step=within, whole=not within and code not in mixed)
        for step_ns, forward_ns, calls in times:
            own = [call for call in calls if call.code is code and (call.first is not None) is within]
            for call in own:
                spent[call.line] += call.spent_ns
                operators[call.operator] += call.spent_ns
                facts.size = max(facts.size, call.size, key=lambda size: torch.Size(size).numel() if size else 0)
            facts.calls = sum(call.count for call in own)
            facts.results = len({call.number for call in own})
            facts.step_ns.append(step_ns)
            facts.forward_ns.append(forward_ns)
            facts.again_ns.append(sum(call.spent_ns for call in own))
        facts.function = function_at(code, spent.most_common(1)[0][0])
        facts.operators = [name.strip("_") for name, _ in operators.most_common(_NAMED)]
        found.append(facts)
    return sorted(found, key=lambda facts: -sum(facts.again_ns))[:_NAMED]
