"""Which function of the user each piece of the script's time is in, by the functions around it on Python's stack."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dptune.measure.device.phases import bounds
from dptune.measure.host.callers import PYTHON_CATEGORIES
from dptune.measure.host.enclosing import NOWHERE, Ranges
from dptune.measure.host.frames import FRAME, is_scripts, library_named
from dptune.measure.host.function_names import FunctionNames, function_names
from dptune.measure.host.nesting import Nesting
from dptune.measure.host.pieces import Pieces
from dptune.measure.host.training import training
from dptune.measure.intervals import Intervals, Ints, Mask
from dptune.measure.views import RankView
from dptune.measured import CodePhase
from dptune.trace.columns import Columns
from dptune.trace.kernels import LAUNCH_CATEGORIES, OPERATOR_CATEGORIES, RANGE_CATEGORIES, STEP_NAME

_BUILT_IN = re.compile(r"^<built-in (?:function|method) (?P<name>[^ >]+)")
_OF_TORCH = re.compile(r"^(torch|dptune)/|^nn\.Module: |^<built-in method .* of (type|PyCapsule|pybind11)")
_OF_RECORDER = "dptune/"
# Observers that stand in place of a function that the script calls, and pass the call on to it: its time is the
# script's. Those around the data loader and the backward pass do not count, as phases of their own.
_WRAPPERS = (
    *("again", "announced", "collecting", "constructed", "made", "metered", "noted", "saving", "stepped", "switched"),
    *("taken", "watched", "wrapped"),
)
_OF_PHASES = "meters|batch_preparation|iterators"
_PASSING = re.compile(rf"^dptune/capture/injected/observe/(?!({_OF_PHASES})\.py).*\(\d+\): ({'|'.join(_WRAPPERS)})$")
_OF_TEXT = "torch/_tensor_str.py"  # which makes text of a tensor, element by element
_MODULE = "nn.Module: "
# Part of the function around it, as from Python 3.12 on.
_COMPREHENSION = re.compile(r"\): <(?:list|set|dict)comp>$")
_DECORATOR = re.compile(r"\): \w*(wrap|decorate)\w*$")  # of a function, which says what is called
TRAINING: tuple[CodePhase, ...] = ("forward", "backward", "optimizer")
_BETWEEN = ("operator", "torchs", "recorders", "module", "text")
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
class _Around:
    """What each row of the script's stacks lies in; the last entry is of a row outside all of them.

    `user` is the user's innermost function around it, `whole` the outermost that is counted as a whole, `below` the row
    right below the former: places among the rows, NOWHERE for none. Where `below` is a loop of a library, it is the row
    right below the loop, and `library` the number of that library. `operator` and the others: what is between.
    `library_call`: the outermost function of a library between.
    """

    user: Ints
    whole: Ints
    below: Ints
    library: Ints
    library_call: Ints
    operator: Mask
    torchs: Mask
    recorders: Mask
    module: Mask
    text: Mask

    @classmethod
    def of(cls, nesting: Nesting, kinds: Mapping[str, Mask], alone: Mask, names_what: Mask, library: Ints) -> _Around:
        """By what each row is: `alone` are functions that are counted as a whole, where no other around is.

        What a row outside all would be is the last entry of `names_what` and of `library`, the number of its library.
        """
        length = len(nesting.above) + 1
        places = tuple(np.full(length, NOWHERE, dtype=np.int64) for _ in range(3))
        masks = {name: np.zeros(length, dtype=np.bool_) for name in _BETWEEN}
        user, whole, below = places
        libraries, library_call = np.zeros(length, dtype=np.int64), np.full(length, NOWHERE, dtype=np.int64)
        for level in nesting.levels:
            above = nesting.above[level]
            for inherited in (*places, libraries, library_call, *masks.values()):
                inherited[level] = inherited[above]
            functions = level[kinds["user"][level]]
            around = whole[nesting.above[functions]]
            user[functions] = functions
            whole[functions] = np.where((around == NOWHERE) & alone[functions], functions, around)
            below[functions] = library_call[functions] = NOWHERE
            libraries[functions] = 0
            for mask in masks.values():
                mask[functions] = False
            others = level[~kinds["user"][level] & ~kinds["plain"][level]]
            before = below[nesting.above[others]]
            called = names_what[before]
            below[others] = np.where(called, before, others)  # of a library's loop what that calls
            libraries[others] = np.where(called | (library[before] == 0), libraries[others], library[before])
            first = (library_call[others] == NOWHERE) & (library[others] != 0)
            library_call[others] = np.where(first, others, library_call[others])
            for name, mask in masks.items():
                mask[others] |= kinds[name][others]
        return cls(user, whole, below, libraries, library_call, **masks)


class Stacks:
    """The functions around each row of the script's time."""

    def __init__(self, view: RankView, found: Pieces, phases: Mapping[CodePhase, Intervals]) -> None:
        self._columns = columns = view.columns
        threads = np.unique(columns.thread[found.row[found.row != NOWHERE]])
        rows = columns.rows(PYTHON_CATEGORIES | RANGE_CATEGORIES | LAUNCH_CATEGORIES)
        rows = rows[np.isin(columns.thread[rows], threads)]
        rows = rows[~_crossing_marks(columns, rows)]
        rows = rows[np.lexsort((-columns.ends(rows), columns.ts_ns[rows]))]  # what encloses comes first
        nesting = Nesting.of(Ranges.of_rows(columns, rows).parents())
        within_functions = columns.named(lambda name: _COMPREHENSION.search(name) is not None, rows)
        kinds = {
            "user": columns.of_category(PYTHON_CATEGORIES, rows) & columns.named(is_scripts, rows) & ~within_functions,
            # Annotations, calls, comprehensions.
            "plain": ~columns.of_category(PYTHON_CATEGORIES | OPERATOR_CATEGORIES, rows) | within_functions,
            "operator": columns.of_category(OPERATOR_CATEGORIES, rows),
            "torchs": columns.named(lambda name: _OF_TORCH.match(name) is not None, rows),
            "recorders": columns.named(lambda name: name.startswith(_OF_RECORDER) and not _PASSING.match(name), rows),
            "module": columns.named(lambda name: name.startswith(_MODULE), rows),
            "text": columns.named(lambda name: name.startswith(_OF_TEXT), rows),
            "decorators": columns.named(_passes_on, rows),
        }
        starts = np.array([step.start_ns for step in view.steps], dtype=np.int64)
        first, last = (
            np.searchsorted(starts, ns, side="right") for ns in (columns.ts_ns[rows], columns.ends(rows) - 1)
        )
        trains = sum(time.lengths(columns.ts_ns[rows], columns.ends(rows)) for time in phases.values())
        within = (first == last) & (first > 0)
        whole = kinds["user"] & within & (trains == 0)
        users, names = kinds["user"], columns.names_of(rows)
        self.function_names = function_names(view)
        frames = (columns.names[name] for name in dict.fromkeys(columns.name_id[rows[users]].tolist()))
        self.lines = _lines(frames, self.function_names)
        self.functions = rows[users & within]
        self.crossing = frozenset(rows[users & ~within].tolist())  # functions that last longer than a step
        library_names, library = _libraries(columns, rows)
        around = _Around.of(
            nesting, kinds, whole, np.append(within & ~kinds["decorators"], False), np.append(library, 0)
        )
        of_user = around.user[nesting.above] != NOWHERE
        other = of_user & ~users & ~kinds["plain"] & ~around.operator[nesting.above]
        outermost, modules = other & kinds["operator"], other & kinds["module"] & ~around.module[nesting.above]
        direct = outermost & ~(around.module | around.recorders | around.text)[nesting.above]
        placed = np.append(rows, NOWHERE)
        user, library_call = (placed[each[nesting.above]] for each in (around.user, around.library_call))
        # Operators that the user's functions call, directly or through a library.
        self.outermost: list[int] = rows[outermost].tolist()
        # Modules that the user's functions call, with the function's row.
        self.modules: list[tuple[int, int]] = [*zip(rows[modules].tolist(), user[modules].tolist(), strict=True)]
        # Of the operators those that no module calls, with the function's row and that of the library call below it.
        self.direct: list[tuple[int, int, int]] = [
            *zip(*(each[direct].tolist() for each in (rows, user, library_call)), strict=True)
        ]
        self._order = np.argsort(rows)
        self._rows = rows
        self._name_id = np.append(columns.name_id[rows], NOWHERE)
        self._names, self._libraries, self._around = names, library_names, around

    def calls(self, view: RankView) -> dict[Site, list[str]]:
        """The operators that are called outside of the training computation, by site, in all steps, in their order."""
        columns, rows = self._columns, np.array(self.outermost, dtype=np.int64)
        whole = Intervals.union(*bounds(view.steps))
        for time in (*training(view).values(), view.host.loading):
            whole -= time
        rows = rows[whole.hold(columns.ts_ns[rows])]
        found: dict[Site, list[str]] = defaultdict(list)
        rows = rows[np.argsort(columns.ts_ns[rows], kind="stable")]
        sites, numbers = self.sites(rows, ["loop"] * len(rows))
        for row, number in zip(rows.tolist(), numbers.tolist(), strict=True):
            if (counted := sites[number]) is not None:
                found[counted[0]].append(columns.name(row))
        return found

    def in_operators(self, rows: Ints) -> Mask:
        """Which rows are tensor operators or inside one."""
        found: Mask = self._around.operator[self._places(rows)]
        return found

    def sites(self, rows: Ints, phases: Sequence[CodePhase]) -> tuple[list[tuple[Site, str] | None], Ints]:
        """What time in each row is counted for, and in which part of that; None where it is not counted.

        First all that differ, in the order of the first row of each, then by row the number of its own. What is around
        thousands of rows has the same names: such are looked at once.
        """
        around, places = self._around, self._places(rows)
        user, whole, below = around.user[places], around.whole[places], around.below[places]
        masks = (each[places] for each in (around.operator, around.torchs, around.recorders))
        named = (self._name_id[each] for each in (user, whole, below))
        keys = zip(
            phases, *(each.tolist() for each in (*named, *masks, around.library[places], user == whole)), strict=True
        )
        by_names: dict[tuple[object, ...], int] = {}
        found: dict[tuple[Site, str] | None, int] = {}
        numbers = []
        for place, phase, key in zip(places.tolist(), phases, keys, strict=True):
            number = by_names.get(key)
            if number is None:
                by_names[key] = number = found.setdefault(self._site(place, phase), len(found))
            numbers.append(number)
        return list(found), np.array(numbers, dtype=np.int64)

    def _places(self, rows: Ints) -> Ints:
        """Where rows are among those of the stacks, NOWHERE for one that is not."""
        at = np.minimum(np.searchsorted(self._rows, rows, sorter=self._order), len(self._rows) - 1)
        places = self._order[at]
        return np.where(self._rows[places] == rows, places, NOWHERE).astype(np.int64)

    def _site(self, place: int, phase: CodePhase) -> tuple[Site, str] | None:
        around = self._around
        user, whole = int(around.user[place]), int(around.whole[place])
        if user == NOWHERE or around.recorders[place]:
            return None
        part = self._part(int(around.below[place]), in_operator=bool(around.operator[place]))
        name = self.function_names.of(self._names[user])
        if phase in TRAINING:
            return None if around.operator[place] or around.torchs[place] else (Site(name, "", phase), part)
        if whole == NOWHERE:
            return Site(name, part, phase, self._libraries[around.library[place]]), part
        return Site(self.function_names.of(self._names[whole]), "", phase), part if whole == user else name

    def _part(self, below: int, *, in_operator: bool) -> str:
        """What a function of the user spends the time in: a function that it calls, operators, or Python itself."""
        if below == NOWHERE:
            return PYTHON
        name = self._names[below]
        built_in, frame = _BUILT_IN.match(name), FRAME.match(name)
        if built_in and not in_operator:
            return built_in["name"]
        return frame["name"] if frame else OPERATORS


def _libraries(columns: Columns, rows: Ints) -> tuple[list[str], Ints]:
    """The libraries of functions, the first of them none, and by row its number."""
    named, at = np.unique(columns.name_id[rows], return_inverse=True)
    by_name = [library_named(columns.names[name]) for name in named.tolist()]
    found = list(dict.fromkeys(["", *by_name]))
    return found, np.array([found.index(library) for library in by_name], dtype=np.int64)[at.reshape(-1)]


def _crossing_marks(columns: Columns, rows: Ints) -> Mask:
    """Marks of steps that begin inside a function of the script, and end after it: it ends the step before.

    What the function does next would seem to be inside the mark alone.
    """
    functions = rows[columns.of_category(PYTHON_CATEGORIES, rows) & columns.named(is_scripts, rows)]
    begins, ends = columns.ts_ns[functions], columns.ends(functions)
    found = columns.named(lambda name: STEP_NAME.match(name) is not None, rows)
    for at in np.flatnonzero(found).tolist():
        mark = rows[at : at + 1]
        begin, end = columns.ts_ns[mark], columns.ends(mark)
        found[at] = bool(((begins < begin) & (begin < ends) & (ends < end)).any())
    return found


def _passes_on(frame: str) -> bool:
    """Whether a frame only calls another function: what counts is what it calls."""
    return _DECORATOR.search(frame) is not None or _PASSING.match(frame) is not None


def _lines(frames: Iterable[str], names: FunctionNames) -> dict[str, int]:
    """By function the line that it begins at: the first, for what ran as recording began has the one it stood at."""
    found: dict[str, int] = {}
    for frame in frames:
        match = FRAME.match(frame)
        if match:
            name = names.of(frame)
            found[name] = min(int(match["line"]), found.get(name, int(match["line"])))
    return found
