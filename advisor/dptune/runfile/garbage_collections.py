"""Collections of garbage that the script asks for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dptune.runfile.facts import Facts
    from dptune.runfile.window import Window

_MOST_OF_IT = 0.5  # of the collection time


@dataclass
class CollectCallFacts:
    """Calls of `gc.collect` by the training thread in one window.

    `where`: the script's function and line, as `function (file:line)`; None where no function of the script leads to
    the call. `through`: the function of an installed package that the script calls there, as `accelerate.free_memory`.
    """

    where: str | None = None
    through: str = ""
    calls: int = 0
    spent_ns: int = 0


@dataclass(frozen=True)
class CollectingLine:
    """The line whose calls of `gc.collect` take most of the collection time, and how often a rank calls it."""

    where: str
    through: str
    calls: int
    steps: int


def collecting_line(ranks: Sequence[Facts]) -> CollectingLine | None:
    """In untraced steps; None where no line asks for most of the collection time."""
    windows = [window for rank in ranks if (window := rank.window("untraced")) and window.steps]
    spent_ns = defaultdict[tuple[str | None, str], int](int)
    for call in (call for window in windows for call in window.collect_calls):
        spent_ns[call.where, call.through] += call.spent_ns
    where, through = max(spent_ns, key=lambda line: spent_ns[line], default=(None, ""))
    if where is None or spent_ns[where, through] < _MOST_OF_IT * sum(sum(window.gc_ns) for window in windows):
        return None
    calls, steps = max((_calls(window, where, through), window.steps) for window in windows)
    return CollectingLine(where, through, calls, steps)


def _calls(window: Window, where: str, through: str) -> int:
    return sum(
        collect_call.calls
        for collect_call in window.collect_calls
        if (collect_call.where, collect_call.through) == (where, through)
    )
