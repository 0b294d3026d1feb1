"""Calls of the script that set up a library, which then makes what the advice is about: DDP, loaders, checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class LibraryCallFacts:
    """A call of a class that sets a library up: `TrainingArguments`, `DDPStrategy`, `Trainer`, `Accelerator`, ...

    `name` is that class, or the one that it derives from; `where` the line of the call, as `file:line`; `arguments`
    the line of each argument that the call passes by keyword.
    """

    name: str
    where: str
    arguments: dict[str, str] = field(default_factory=dict)


def line_of_argument(
    calls: Sequence[LibraryCallFacts], name: str, argument: str, within: tuple[str, str] | None = None
) -> str | None:
    """Where the last call of that class passes the argument, or where it is made without; None where none is.

    `within`: the class, and its argument, that takes such an object, and makes a plain one if the script makes none.
    """
    calls_of = [call for call in calls if call.name == name]
    passed = [call.arguments[argument] for call in calls_of if argument in call.arguments]
    if passed or calls_of or within is None:
        return passed[-1] if passed else calls_of[-1].where if calls_of else None
    return line_of_argument(calls, *within)


def passed_at(calls: Sequence[LibraryCallFacts], arguments: Sequence[str]) -> list[str]:
    """The lines that pass any of these arguments, each once."""
    return list(dict.fromkeys(call.arguments[name] for call in calls for name in arguments if name in call.arguments))
