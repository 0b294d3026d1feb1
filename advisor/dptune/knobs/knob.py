"""What a setting is: its type, the call and argument it belongs to, and how its values are written."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from dptune.errors import UsageError

Value = bool | int | float | str | None
Numerics = Literal["same", "changes"]
Predicted = Literal["step", "bound", "no"]

_TRUE = ("true", "on", "yes", "1")
_FALSE = ("false", "off", "no", "0")
_NUMBERS = re.compile(r"\d+(\.\d+)?(,\d+(\.\d+)?)*")
_MOST = 1e9  # of anything: torch computes bytes from some of them, which have to fit 64 bits


@dataclass(frozen=True)
class Call:
    """A call in a script that creates an object with settings.

    `classes`: torch's, by name. `facts`: the list in a rank's facts that describes such objects, and the name under
    which it is listed where it could not be read. `absent`: said where the script creates none. `paste`: the call as
    text, `{}` for the argument.
    """

    name: str
    classes: tuple[str, ...]
    facts: str
    absent: str
    paste: str


@dataclass(frozen=True)
class Knob:
    """One setting of a training run.

    `default` is torch's; where it is None, None may be given: `default` on the command line. `choices` are the words
    that a knob of words takes, none for any. Numbers are at least `least` and less than `below`; `list_of_numbers` is
    text like `1,8,25`; `or_number`: true or false, or a whole number from `least` on. `numerics`: whether changing it
    can change results. `paste` is the text a user puts into the script, with `{then}` for the value proposed,
    `paste_off` what it is for False where that differs; `pasted`: by word, what replaces `{then}` where the script
    writes it otherwise.

    `argument` is the keyword of `call` that sets it; `classes` are those of the call's that take it, where not all do;
    `positions` its possible positions from 0, several if versions of torch or classes differ, none if keyword-only;
    `excludes` another argument that torch rejects beside it. `switch` is the global of torch that sets it, by its path.
    A knob with an argument or a switch needs no more: it is applied, patched and read back by these, unless
    `capture.injected.applying` or `capture.effect` list it because it takes more than that.

    `predicted`: `dptune whatif` predicts the step time, only bounds it, or has no model of the change.
    `takes_no_time`: no value of it changes how long a step takes.
    """

    name: str
    kind: type
    unit: str
    default: Value
    numerics: Numerics
    summary: str
    paste: str
    choices: tuple[str, ...] = ()
    least: float | None = None
    below: float | None = None
    list_of_numbers: bool = False
    or_number: bool = False
    paste_off: str = ""
    pasted: Mapping[str, str] = field(default_factory=dict, hash=False)
    call: Call | None = None
    argument: str = ""
    classes: tuple[str, ...] = ()
    positions: tuple[int, ...] = ()
    excludes: str = ""
    switch: str = ""
    predicted: Predicted = "no"
    takes_no_time: bool = False

    def parse(self, text: str) -> Value:
        """The value that a word of the command line stands for; raises UsageError where it stands for none."""
        if not _can_be_passed(text):
            raise UsageError(f"{self.name} cannot be '{text}'", "NUL bytes and incomplete characters are not allowed")
        if text == "default" and self.default is None and not self.list_of_numbers:
            return None
        value = self._read(text)
        if any(number > _MOST for number in self._numbers(value)):
            raise UsageError(f"{self.name} cannot be '{text:.40}'", f"it is more than {_MOST:,.0f}")
        if value is None or (self.choices and value not in self.choices) or not self._is_enough(value):
            raise UsageError(f"{self.name} cannot be '{text:.40}'", f"{self.name} is {self.takes}: {self.summary}")
        return value

    @property
    def takes(self) -> str:
        """What it can be, in words."""
        if self.choices:
            return "one of " + ", ".join((*self.choices, *(["default"] if self.default is None else [])))
        words = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}[self.kind]
        words = "numbers with commas between" if self.list_of_numbers else words
        words += ", or a whole number" if self.or_number else ""
        words += f" of {self.unit}" if self.unit else ""
        words += f", at least {self.least:g}" if self.least is not None else ""
        words += f", less than {self.below:g}" if self.below is not None else ""
        return words + (" or `default`" if self.default is None and self.kind is not str else "")

    def _read(self, text: str) -> Value:
        if self.or_number and text.isdecimal():
            return int(text)
        if self.kind is bool:
            word = text.lower()
            return True if word in _TRUE else False if word in _FALSE else None
        if self.list_of_numbers and not _NUMBERS.fullmatch(text):
            return None
        if self.kind is not str and "_" in text:  # Python reads 1_0 as 10
            return None
        try:
            return self.kind(text)  # type: ignore[no-any-return]
        except ValueError:
            return None

    def _numbers(self, value: Value) -> list[float]:
        if self.list_of_numbers and isinstance(value, str):
            return [float(part) for part in value.split(",")]
        return [value] if isinstance(value, (int, float)) and value != float("inf") else []

    def _is_enough(self, value: Value) -> bool:
        if self.least is None or isinstance(value, bool):
            return True
        numbers = self._numbers(value)
        below = float("inf") if self.below is None else self.below
        return bool(numbers) and all(self.least <= number < below for number in numbers)


def _can_be_passed(text: str) -> bool:
    """Whether a variable of the environment can hold it."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def in_call(
    call: Call,
    argument: str,
    kind: type,
    default: Value,
    summary: str,
    *,
    unit: str = "",
    numerics: Numerics = "same",
    least: float | None = None,
    below: float | None = None,
    list_of_numbers: bool = False,
    or_number: bool = False,
    classes: tuple[str, ...] = (),
    positions: tuple[int, ...] = (),
    excludes: str = "",
    paste: str = "",
    predicted: Predicted = "no",
    takes_no_time: bool = False,
) -> Knob:
    """The knob of an argument of a call: `ddp.static_graph`. See Knob for the parameters."""
    return Knob(
        f"{call.name}.{argument}",
        kind,
        unit,
        default,
        numerics,
        summary,
        paste or call.paste.format(f"{argument}={{then}}"),
        least=least,
        below=below,
        list_of_numbers=list_of_numbers,
        or_number=or_number,
        call=call,
        argument=argument,
        classes=classes or call.classes,
        positions=positions,
        excludes=excludes,
        predicted=predicted,
        takes_no_time=takes_no_time,
    )


def written(value: Value) -> str:
    """A value as `Knob.parse` reads it."""
    if value is None:
        return "default"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value).removesuffix(".0") if isinstance(value, float) else str(value)
