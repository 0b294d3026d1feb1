"""Which function of the user each piece of the script's time is in, by the functions around it on Python's stack."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from dptune.measure.device.phases import bounds
from dptune.measure.host.callers import PYTHON_CATEGORIES
from dptune.measure.host.enclosing import NOWHERE, Ranges
from dptune.measure.host.frames import is_scripts, library_of
from dptune.measure.host.pieces import Pieces, alike
from dptune.measure.host.training import training
from dptune.measure.intervals import Intervals
from dptune.measure.views import RankView
from dptune.measured import CodePhase
from dptune.trace.kernels import LAUNCH_CATEGORIES, OPERATOR_CATEGORIES, RANGE_CATEGORIES

_FRAME = re.compile(r"^(?P<file>.+\.py)\((?P<line>\d+)\): (?P<name>.+)$")
_BUILT_IN = re.compile(r"^<built-in (?:function|method) (?P<name>[^ >]+)")
_OF_TORCH = re.compile(r"^(torch|dptune)/|^nn\.Module: |^<built-in method .* of (type|PyCapsule|pybind11)")
_OF_RECORDER = "dptune/"
_PASSING = re.compile(r"^dptune/.*\bcollectives\.py\(\d+\): metered$")  # times the call of the script that it passes on
_OF_TEXT = "torch/_tensor_str.py"  # which makes text of a tensor, element by element
_MODULE = "nn.Module: "
_DECORATOR = re.compile(r"\): \w*(wrap|decorate)\w*$")  # of a function, which says what is called
TRAINING: tuple[CodePhase, ...] = ("forward", "backward", "optimizer")
OPERATORS, PYTHON = "tensor operators", "Python code"


@dataclass(frozen=True)
class Site:
    """What time is counted for: a function, alike on all ranks; of one that the loop is in, what it calls.

    `library` is the package that calls that part, where the package runs the loop.
    """

    function: str
    part: str
    phase: CodePhase
    library: str = ""


@dataclass(frozen=True, eq=False)
class _Row:
    """What a row of the columns lies in: the user's innermost function around it and the outermost that is counted as a
    whole (NOWHERE for none), and the row right below the former; where that is a loop of a library, the row right below
    the loop, and the `library`. `operator` and the others: what is between. `library_call`: the outermost function of a
    library between.
    """

    user: int = NOWHERE
    whole: int = NOWHERE
    below: int = NOWHERE
    operator: bool = False
    torchs: bool = False
    recorders: bool = False
    module: bool = False
    text: bool = False
    library: str = ""
    library_call: int = NOWHERE


class Stacks:
    """The functions around each row of the script's time."""

    def __init__(self, view: RankView, found: Pieces, phases: Mapping[CodePhase, Intervals]) -> None:
        self._columns = columns = view.columns
        threads = np.unique(columns.thread[found.row[found.row != NOWHERE]])
        rows = columns.rows(PYTHON_CATEGORIES | RANGE_CATEGORIES | LAUNCH_CATEGORIES)
        rows = rows[np.isin(columns.thread[rows], threads)]
        rows = rows[np.lexsort((-columns.ends(rows), columns.ts_ns[rows]))]  # what encloses comes first
        parents = np.append(rows, NOWHERE)[Ranges.of_rows(columns, rows).parents()]
        kinds = {
            "user": columns.of_category(PYTHON_CATEGORIES, rows) & columns.named(is_scripts, rows),
            "plain": ~columns.of_category(PYTHON_CATEGORIES | OPERATOR_CATEGORIES, rows),  # annotations, calls
            "operator": columns.of_category(OPERATOR_CATEGORIES, rows),
            "torchs": columns.named(lambda name: _OF_TORCH.match(name) is not None, rows),
            "recorders": columns.named(lambda name: name.startswith(_OF_RECORDER) and not _PASSING.match(name), rows),
            "modules": columns.named(lambda name: name.startswith(_MODULE), rows),
            "texts": columns.named(lambda name: name.startswith(_OF_TEXT), rows),
            "decorators": columns.named(_passes_on, rows),
        }
        starts = np.array([step.start_ns for step in view.steps], dtype=np.int64)
        first, last = (
            np.searchsorted(starts, ns, side="right") for ns in (columns.ts_ns[rows], columns.ends(rows) - 1)
        )
        trains = sum(time.lengths(columns.ts_ns[rows], columns.ends(rows)) for time in phases.values())
        within = (first == last) & (first > 0)
        whole = kinds["user"] & within & (trains == 0)
        names_what = dict(zip(rows.tolist(), (within & ~kinds.pop("decorators")).tolist(), strict=True))
        self.lines = _lines(columns.name(row) for row in rows[kinds["user"]].tolist())
        self.functions = rows[kinds["user"] & within]
        self.crossing = frozenset(rows[kinds["user"] & ~within].tolist())  # functions that last longer than a step
        self.outermost: list[int] = []  # operators that the user's functions call, directly or through a library
        self.modules: list[tuple[int, int]] = []  # modules that the user's functions call, with the function's row
        # Of those the ones that no module calls, with the function's row and that of the library call below it.
        self.direct: list[tuple[int, int, int]] = []
        self._rows: dict[int, _Row] = {NOWHERE: _Row()}
        flags = zip(
            rows.tolist(), parents.tolist(), *(kind.tolist() for kind in kinds.values()), whole.tolist(), strict=True
        )
        for row, parent, user, plain, operator, torchs, recorders, module, text, alone in flags:
            around = self._rows[parent]
            if user:
                outer = around.whole if around.whole != NOWHERE else row if alone else NOWHERE
                self._rows[row] = _Row(row, outer)
            elif plain:
                self._rows[row] = around
            else:
                if operator and not around.operator and around.user != NOWHERE:
                    self.outermost.append(row)
                    if not (around.module or around.recorders or around.text):
                        self.direct.append((row, around.user, around.library_call))
                if module and not (around.module or around.operator) and around.user != NOWHERE:
                    self.modules.append((row, around.user))
                called = names_what.get(around.below)
                self._rows[row] = _Row(
                    around.user,
                    around.whole,
                    around.below if called else row,  # of a library's loop what that calls
                    around.operator or operator,
                    around.torchs or torchs,
                    around.recorders or recorders,
                    around.module or module,
                    around.text or text,
                    around.library if called else library_of(columns, around.below) or around.library,
                    around.library_call if around.library_call != NOWHERE or not library_of(columns, row) else row,
                )

    def calls(self, view: RankView) -> dict[Site, list[str]]:
        """The operators that are called outside of the training computation, by site, in all steps, in their order."""
        columns, rows = self._columns, np.array(self.outermost, dtype=np.int64)
        whole = Intervals.union(*bounds(view.steps))
        for time in (*training(view).values(), view.host.loading):
            whole -= time
        rows = rows[whole.hold(columns.ts_ns[rows])]
        found: dict[Site, list[str]] = defaultdict(list)
        for row in rows[np.argsort(columns.ts_ns[rows], kind="stable")].tolist():
            if (counted := self.site(row, "loop")) is not None:
                found[counted[0]].append(columns.name(row))
        return found

    def is_operator(self, row: int) -> bool:
        """Whether a row is a tensor operator or inside one."""
        return self._rows.get(row, self._rows[NOWHERE]).operator

    def site(self, row: int, phase: CodePhase) -> tuple[Site, str] | None:
        """What time in a row is counted for, and in which part of that; None where it is not counted."""
        around = self._rows.get(row, self._rows[NOWHERE])
        if around.user == NOWHERE or around.recorders:
            return None
        part = self._part(around)
        name = alike(self._columns.name(around.user))
        if phase in TRAINING:
            return None if around.operator or around.torchs else (Site(name, "", phase), part)
        if around.whole == NOWHERE:
            return Site(name, part, phase, around.library), part
        whole = alike(self._columns.name(around.whole))
        return Site(whole, "", phase), part if around.whole == around.user else name

    def _part(self, around: _Row) -> str:
        """What a function of the user spends the time in: a function that it calls, operators, or Python itself."""
        if around.below == NOWHERE:
            return PYTHON
        name = self._columns.name(around.below)
        built_in, frame = _BUILT_IN.match(name), _FRAME.match(name)
        if built_in and not around.operator:
            return built_in["name"]
        return frame["name"] if frame else OPERATORS


def _passes_on(frame: str) -> bool:
    """Whether a frame only calls another function: what counts is what it calls."""
    return _DECORATOR.search(frame) is not None or _PASSING.match(frame) is not None


def _lines(frames: Iterable[str]) -> dict[str, int]:
    """By function the line that it begins at: the first, for what ran as recording began has the one it stood at."""
    found: dict[str, int] = {}
    for frame in frames:
        match = _FRAME.match(frame)
        if match:
            name = alike(frame)
            found[name] = min(int(match["line"]), found.get(name, int(match["line"])))
    return found
