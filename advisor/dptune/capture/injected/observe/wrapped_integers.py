"""Finds differences, sums and products of narrow integer tensors that wrap around: of two images in uint8, for example.

And numbers that wrap as they are converted to a narrow integer dtype.

In warm-up steps, through the mode of `same_results`. The operator is computed a second time, on some of the values in
int64, and the results are compared. Values that wrapped count once something reads them as numbers (`integer_uses`).
Operators with a number wrap on purpose at times, as `labels - 1` does where 255 is ignored, and are not looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch

from dptune.capture.injected.observe.integer_uses import IntegerUses, Wrapped
from dptune.capture.injected.observe.places import function_name, script_frame, users_place
from dptune.runfile.wrapped_integers import WrappedIntegerFacts

_NARROW = frozenset(getattr(torch, name, None) for name in ("uint8", "int8", "int16", "uint16")) - {None}
_WRAPPING = frozenset(("add", "sub", "mul", "subtract", "multiply", "rsub", "iadd", "isub", "imul", "diff"))
_NAMES = {
    "subtract": "sub",
    "rsub": "sub",
    "isub": "sub",
    "diff": "sub",
    "iadd": "add",
    "multiply": "mul",
    "imul": "mul",
}
_CONVERTING = ("byte", "char", "short")  # and `to` and `type` with such a dtype
_MOST = 2**20  # values that are compared
_LARGEST = 2.0**62  # of a number that is compared
_OF_LINE, _LINES = 8, 64


@dataclass
class _Line:
    facts: WrappedIntegerFacts
    looks: int = 0

    def count(self, wrapped: int) -> None:
        """Values that wrapped were read."""
        self.facts.wrapped += wrapped


class WrappedIntegers:
    """The lines of the script that compute with such tensors, and how many values wrapped."""

    def __init__(self) -> None:
        self._lines: dict[tuple[Any, int, str], _Line] = {}
        self._uses = IntegerUses(_NARROW)

    def before(self, func: Any, name: str, args: Any, kwargs: Any) -> torch.Tensor | None:
        """The exact values, of what may wrap."""
        tensors = [each for each in args if isinstance(each, torch.Tensor)]
        if not tensors or any(not each.dim() or each.device.type != "cpu" for each in tensors):
            return None
        if name in _CONVERTING or (name in ("to", "type") and _NARROW.intersection((*args[1:], *kwargs.values()))):
            return None if self._uses.has_bits(tensors[0]) else _whole(tensors[0])
        if name.strip("_") not in _WRAPPING or kwargs.get("out") is not None:
            return None
        if any(each.dtype not in _NARROW for each in tensors) or (name != "diff" and len(tensors) < 2):
            return None
        if sum(each.numel() for each in tensors) > 2 * _MOST:
            if len({each.shape for each in tensors}) > 1 or name == "diff":
                return None
            rows = max(1, _MOST * len(tensors[0]) // tensors[0].numel())
            args = [each[:rows] if isinstance(each, torch.Tensor) else each for each in args]
        wide = [each.to(torch.int64, copy=True) if isinstance(each, torch.Tensor) else each for each in args]
        exact: torch.Tensor = func(*wide, **kwargs)
        return exact

    def after(
        self, exact: torch.Tensor | None, call: tuple[str, Any, Any, Any], spent_ns: int, frame: FrameType | None
    ) -> None:
        """Compare a result with the exact values."""
        name, _, _, result = call
        self._uses.used(call)
        caller = script_frame(frame) if exact is not None else None
        if exact is None or caller is None or result.dtype not in _NARROW:
            return
        operator = _NAMES.get(name.strip("_"), name.strip("_"))
        operator = operator if operator in ("add", "sub", "mul") else "convert"
        at = (caller.f_code, caller.f_lineno, operator)
        if at not in self._lines:
            if len(self._lines) >= _LINES:
                return
            place = users_place(caller.f_code.co_filename, caller.f_lineno) or ""
            function = "" if caller.f_code.co_name == "<module>" else function_name(caller.f_code)
            self._lines[at] = _Line(
                WrappedIntegerFacts(place, function, operator, str(result.dtype).rpartition(".")[2])
            )
        line = self._lines[at]
        if line.looks < _OF_LINE:
            line.looks += 1
            line.facts.values += exact.numel()
            bad = result[: len(exact)].to(torch.int64) != exact
            if wrapped := int(bad.sum()):
                self._uses.hold(result, Wrapped(bad, operator == "sub", lambda: line.count(wrapped)))

    def ticked(self, step_ns: int, forward_ns: int) -> None:
        """Forget the tensors of the step."""
        self._uses.forget_dead()

    def end(self) -> None:
        """What was found stays."""

    def facts(self) -> list[WrappedIntegerFacts]:
        """The lines where values wrapped, those with most first."""
        found = [line.facts for line in self._lines.values() if line.facts.wrapped]
        return sorted(found, key=lambda facts: -facts.wrapped)


def _whole(tensor: torch.Tensor) -> torch.Tensor | None:
    """Some rows of numbers that are to be converted, without fractions; None where they have none, as NaN."""
    if tensor.dtype is torch.bool or tensor.is_complex() or not tensor.numel():
        return None
    rows = tensor.detach()[: max(1, _MOST * len(tensor) // tensor.numel())]
    if rows.is_floating_point():
        if not bool(torch.isfinite(rows).all()):
            return None
        rows = rows.double().trunc().clamp(-_LARGEST, _LARGEST)
    return rows.to(torch.int64)
