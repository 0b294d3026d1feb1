"""One name for each function of the script, the same in all steps and on all ranks.

A frame has the first line of its function, but that of a function that ran as recording began has the line where it
stood. So names have no line, unless a file has several functions of one name, as methods called `forward`: those have
their first line. A frame that begins after the first step has it.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict

from dptune.measure.host.callers import PYTHON_CATEGORIES
from dptune.measure.host.frames import FRAME, is_scripts
from dptune.measure.host.pieces import alike
from dptune.measure.once import once_for_each
from dptune.measure.views import RankView

_NAMED = re.compile(r"^(?P<file>.+?)(?:\((?P<line>\d+)\))?: (?P<name>.+)$")


class FunctionNames:
    """The names of the functions of one rank: `file: name`, or `file(first line): name`."""

    def __init__(self, firsts: dict[tuple[str, str], list[int]]) -> None:
        self._firsts = firsts  # in order, of names that several functions of a file have

    def of(self, frame: str) -> str:
        """The name of a frame's function."""
        match = FRAME.match(frame)
        firsts = self._firsts.get((match["file"], match["name"])) if match else None
        if match is None or firsts is None:
            return alike(frame)
        at = bisect_right(firsts, int(match["line"]))
        return f"{match['file']}({firsts[max(0, at - 1)]}): {match['name']}"


@once_for_each
def function_names(view: RankView) -> FunctionNames:
    """The names of the script's functions on a rank."""
    columns = view.columns
    rows = columns.rows(PYTHON_CATEGORIES, is_scripts)
    begun = rows[columns.ts_ns[rows] > view.steps[0].start_ns] if view.steps else rows[:0]
    lines: dict[tuple[str, str], set[int]] = defaultdict(set)
    for name in dict.fromkeys(columns.name_id[begun].tolist()):
        match = FRAME.match(columns.names[name])
        if match:
            lines[match["file"], match["name"]].add(int(match["line"]))
    return FunctionNames({function: sorted(of_it) for function, of_it in lines.items() if len(of_it) > 1})


def file_and_name(function: str) -> tuple[str, str]:
    """The file of a function and its name, without the line."""
    match = _NAMED.match(function)
    return (match["file"], match["name"]) if match else (function, "")
