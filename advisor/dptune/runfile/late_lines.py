"""The line of the script at which a rank spends longer than the others, from stack samples of untraced steps."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from dptune.runfile.facts import Facts
from dptune.runfile.window import Window

_LEAST_LOOKS = 5  # on the rank, at the line
_OF_LINE = 0.8  # of what a line takes longer: from here it is the line that it calls
_FRAME = re.compile(r"(?P<function>.+) \((?P<place>.+:\d+)\)")
_WAITING = ("backward", "collective")  # where a rank waits for the others


@dataclass(frozen=True)
class LateLine:
    """`function` and `where` (`file:line`); `extra_ns`: per step, beyond the median of the other ranks."""

    function: str
    where: str
    extra_ns: float


def late_line(facts: Sequence[Facts], rank: int, least_ns: float) -> LateLine | None:
    """The innermost line that takes the rank at least so much longer per step than the others; None without one.

    Time in backward passes and collectives is left out: there the others wait for the rank.
    """
    windows = {each.rank: window for each in facts if (window := each.window("untraced")) and window.steps}
    if rank not in windows or len(windows) < 2:
        return None
    spent = {number: _by_line(window) for number, window in windows.items()}
    looks: Counter[str] = Counter()
    depths: dict[str, int] = {}
    for sample in windows[rank].sampled:
        for depth, line in enumerate(sample.path):
            looks[line] += sample.looks
            depths[line] = max(depth, depths.get(line, 0))
    others = [number for number in windows if number != rank]
    extra = {line: ns - median(spent[number][line] for number in others) for line, ns in spent[rank].items()}
    worth = {line: ns for line, ns in extra.items() if ns >= least_ns and looks[line] >= _LEAST_LOOKS}
    most = max(worth.values(), default=0.0)
    inner = [line for line, ns in worth.items() if ns >= _OF_LINE * most]
    line = max(inner, key=lambda each: depths[each], default="")
    match = _FRAME.fullmatch(line)
    return LateLine(match["function"], match["place"], worth[line]) if match else None


def _by_line(window: Window) -> Counter[str]:
    """Time per step with each line of the script on the stack, ns."""
    found: Counter[str] = Counter()
    for sample in window.sampled:
        if sample.phase not in _WAITING:
            for line in set(sample.path):
                found[line] += round(sum(sample.spent_ns) / window.steps)
    return found
