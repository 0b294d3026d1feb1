"""Which functions of the user take host time in a step that nothing hides and that is not the training computation.

Read from Python's stacks. The training computation is what modules, backward passes and optimizers run, and what lies
between a forward pass and its backward pass, as the loss does. Of that only Python counts: the time of a function of
the user outside of operators and of torch's own functions. Outside of it everything counts: operators, file IO, Python.
Time in which a device computes, or the script waits for a device or another rank, counts nowhere.

The profiler slows each event that it records. What a step is longer than without it is taken off, in equal parts for
each event, so that a figure is one of the step without the profiler.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median, median_low

import numpy as np
from numpy.typing import NDArray

from dptune.measure.device.phases import bounds
from dptune.measure.host.broadcast_reductions import broadcast_reductions
from dptune.measure.host.callers import PYTHON_CATEGORIES, is_users
from dptune.measure.host.convolutions import long_convolutions
from dptune.measure.host.decompositions import decompositions
from dptune.measure.host.enclosing import NOWHERE, Ranges
from dptune.measure.host.full_sorts import full_sorts
from dptune.measure.host.loops import Loop, loops
from dptune.measure.host.norms import norm_use
from dptune.measure.host.one_hot_products import one_hot_products
from dptune.measure.host.output_losses import output_losses
from dptune.measure.host.pieces import Pieces, alike, pieces
from dptune.measure.host.training import training
from dptune.measure.intervals import NOTHING, Intervals, Ints
from dptune.measure.views import RankView
from dptune.measured import CodePhase, CodeSite, OperatorLoop, UserCodeFigures
from dptune.trace.columns import Columns
from dptune.trace.kernels import LAUNCH_CATEGORIES, OPERATOR_CATEGORIES, RANGE_CATEGORIES, Work

NO_STACKS = "no detailed window with Python's stacks was recorded"
LEAST_SHARE = 0.01  # of a step, from which on a function is listed
MOST = 10  # functions that are listed
MOST_EVENT_NS = 5_000  # what recording one event costs at most: 0.5 to 3 us on idle machines
_FRAME = re.compile(r"^(?P<file>.+\.py)\((?P<line>\d+)\): (?P<name>.+)$")
_BUILT_IN = re.compile(r"^<built-in (?:function|method) (?P<name>[^ >]+)")
_OF_TORCH = re.compile(r"^(torch|dptune)/|^nn\.Module: |^<built-in method .* of (type|PyCapsule|pybind11)")
_OF_RECORDER = "dptune/"
_PASSING = re.compile(r"^dptune/.*\bcollectives\.py\(\d+\): metered$")  # times the call of the script that it passes on
_OF_TEXT = "torch/_tensor_str.py"  # which makes text of a tensor, element by element
_CLIPPING = re.compile(r"torch/nn/utils/clip_grad\.py\(\d+\): clip_grad_(norm|value)_$")
_PACKING = "aten::_pack_padded_sequence"
MODULE = "nn.Module: "
_DECORATOR = re.compile(r"\): \w*(wrap|decorate)\w*$")  # of a function, which says what is called
_PACKAGES = frozenset(
    (
        *("PIL", "accelerate", "albumentations", "apex", "bitsandbytes", "cv2", "datasets", "deepspeed", "dill"),
        *("einops", "evaluate", "filelock", "flash_attn", "fsspec", "gymnasium", "huggingface_hub", "hydra"),
        *("librosa", "lightning", "lightning_fabric", "lightning_utilities", "matplotlib", "mlflow", "monai", "nltk"),
        *("numpy", "omegaconf", "pandas", "peft", "pyarrow", "pydantic", "pytorch_lightning", "ray", "requests"),
        *("safetensors", "scipy", "sentencepiece", "sklearn", "soundfile", "spacy", "tensorboard", "tensorboardX"),
        *("timm", "tokenizers", "torchaudio", "torchdata", "torchmetrics", "torchtext", "torchvision", "tqdm"),
        *("transformers", "triton", "wandb", "xformers", "yaml"),
    )
)
TRAINING: tuple[CodePhase, ...] = ("forward", "backward", "optimizer")
OPERATORS, PYTHON = "tensor operators", "Python code"


@dataclass(frozen=True)
class _Site:
    """What time is counted for: a function, alike on all ranks; of one that the loop is in, what it calls.

    `library` is the package that calls that part, where the package runs the loop.
    """

    function: str
    part: str
    phase: CodePhase
    library: str = ""


def user_code(views: Sequence[RankView], untraced_ns: Mapping[int, float]) -> UserCodeFigures | None:
    """The functions that take most, of these ranks; None where no trace has stacks.

    `untraced_ns` is the step time of ranks without the profiler, where it is known.
    """
    having_stacks = [view for view in views if _has_stacks(view)]
    ranks = {view.rank: _Rank.of(view, untraced_ns.get(view.rank)) for view in having_stacks}
    if not ranks:
        return None
    sites = {site for rank in ranks.values() for site in rank.cost_ns}
    found = [_figures(site, ranks) for site in sites]
    found = sorted(
        (code_site for code_site in found if code_site.share >= LEAST_SHARE), key=lambda one: (-one.share, one.name)
    )
    return UserCodeFigures(
        ranks=sorted(ranks),
        steps=min(rank.steps for rank in ranks.values()),
        basis="untraced" if all(rank in untraced_ns for rank in ranks) else "traced",
        sites=found[:MOST],
        loops=_loops(ranks),
        decompositions=decompositions(having_stacks, untraced_ns),
        long_convolutions=long_convolutions(having_stacks, untraced_ns),
        output_losses=output_losses(having_stacks, untraced_ns),
        one_hot_products=one_hot_products(having_stacks, untraced_ns),
        full_sorts=full_sorts(having_stacks, untraced_ns),
        broadcast_reductions=broadcast_reductions(having_stacks, untraced_ns),
        clips=any(_clips(view.columns) for view in having_stacks),
        packs=any(len(view.columns.rows(OPERATOR_CATEGORIES, _PACKING.__eq__)) for view in having_stacks),
    )


def _clips(columns: Columns) -> bool:
    return len(columns.rows(PYTHON_CATEGORIES, lambda name: _CLIPPING.search(name) is not None)) > 0


def _passes_on(frame: str) -> bool:
    """Whether a frame only calls another function: what counts is what it calls."""
    return _DECORATOR.search(frame) is not None or _PASSING.match(frame) is not None


def _has_stacks(view: RankView) -> bool:
    return bool(view.steps) and len(view.columns.rows(PYTHON_CATEGORIES)) > 0


@dataclass(frozen=True, eq=False)
class _Rank:
    """One rank: by site its cost in the median step, ns, and what takes most of it; `operator_shares` the part inside
    operators; `lines` the first line of each function; `calls` the operators that a site calls, in all steps and
    in their order; `loops` the functions that call operators in a loop.
    """

    steps: int
    step_ns: float
    cost_ns: dict[_Site, int]
    mostly: dict[_Site, str]
    operator_shares: dict[_Site, float]
    lines: dict[str, int]
    calls: dict[_Site, list[str]]
    loops: dict[str, Loop]

    @classmethod
    def of(cls, view: RankView, untraced_ns: float | None) -> _Rank:
        columns = view.columns
        found = pieces(view, _hidden(view))
        phases = training(view)
        stacks = _Stacks(view, found, {name: phases[name] for name in TRAINING})
        events = _events(columns, found)
        traced_ns = median(step.length_ns for step in view.steps)
        step_ns = traced_ns if untraced_ns is None else untraced_ns
        each_ns = min(MOST_EVENT_NS, max(0.0, traced_ns - step_ns) * len(view.steps) / max(1, int(events.sum())))
        spent = np.maximum(0.0, found.work_ns - each_ns * events)
        by_step: dict[_Site, NDArray[np.float64]] = {}
        parts: dict[_Site, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        in_operators: dict[_Site, float] = defaultdict(float)
        for (row, phase), steps_ns in _by_row(view, found, spent, phases).items():
            counted = stacks.site(row, phase)
            if counted is not None:
                site, part = counted
                by_step[site] = by_step.get(site, 0) + steps_ns
                parts[site][part] += float(steps_ns.sum())
                in_operators[site] += float(steps_ns.sum()) * stacks.is_operator(row)
        cost_ns = {site: round(median_low(steps.tolist())) for site, steps in by_step.items()}
        mostly = {site: max(part_ns, key=lambda part: part_ns[part]) for site, part_ns in parts.items()}
        shares = {site: in_operators[site] / sum(by_part.values()) for site, by_part in parts.items()}
        looping = loops(view, stacks.direct, stacks.functions, stacks.crossing, found, spent, phases)
        return cls(len(view.steps), step_ns, cost_ns, mostly, shares, stacks.lines, stacks.calls(view), looping)


def _by_row(
    view: RankView, found: Pieces, spent: NDArray[np.float64], phases: Mapping[CodePhase, Intervals]
) -> dict[tuple[int, CodePhase], NDArray[np.float64]]:
    """The time in each row and phase, by step; without collections of garbage."""
    names: list[CodePhase] = ["loop", "input", *phases]
    phase = view.host.loading.hold(found.start_ns).astype(np.int64)
    for number, time in enumerate(phases.values(), 2):
        phase[time.hold(found.start_ns)] = number
    kept = (found.row != NOWHERE) & ~view.host.collecting.hold(found.start_ns) & (spent > 0)
    keys, place = np.unique(np.stack((found.row[kept], phase[kept]), axis=1), axis=0, return_inverse=True)
    by_step = np.zeros((len(keys), len(view.steps)))
    np.add.at(by_step, (place.reshape(-1), found.step[kept]), spent[kept])
    return {(row, names[number]): steps for (row, number), steps in zip(keys.tolist(), by_step, strict=True)}


def _hidden(view: RankView) -> Intervals:
    """When a device computes beside the host, or the script waits for other ranks."""
    hidden = NOTHING
    for device in view.devices:
        time = device.operations.time
        if device.operations.on_cpu:
            hidden |= time[Work.COMMUNICATION] - time[Work.COMPUTE]
        else:
            for work in Work:
                hidden |= time[work]
    return hidden


def _events(columns: Columns, found: Pieces) -> Ints:
    """How many events begin in each piece."""
    rows = columns.rows(PYTHON_CATEGORIES | OPERATOR_CATEGORIES)
    threads = np.unique(columns.thread[found.row[found.row != NOWHERE]])
    at = np.searchsorted(found.start_ns, columns.ts_ns[rows[np.isin(columns.thread[rows], threads)]], side="right") - 1
    return np.bincount(at[at >= 0], minlength=len(found.start_ns)).astype(np.int64)


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


class _Stacks:
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
            "modules": columns.named(lambda name: name.startswith(MODULE), rows),
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
        self._outermost: list[int] = []  # operators that the user's functions call, directly or through a library
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
                    self._outermost.append(row)
                    if not (around.module or around.recorders or around.text):
                        self.direct.append((row, around.user, around.library_call))
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

    def calls(self, view: RankView) -> dict[_Site, list[str]]:
        """The operators that are called outside of the training computation, by site, in all steps, in their order."""
        columns, rows = self._columns, np.array(self._outermost, dtype=np.int64)
        whole = Intervals.union(*bounds(view.steps))
        for time in (*training(view).values(), view.host.loading):
            whole -= time
        rows = rows[whole.hold(columns.ts_ns[rows])]
        found: dict[_Site, list[str]] = defaultdict(list)
        for row in rows[np.argsort(columns.ts_ns[rows], kind="stable")].tolist():
            if (counted := self.site(row, "loop")) is not None:
                found[counted[0]].append(columns.name(row))
        return found

    def is_operator(self, row: int) -> bool:
        """Whether a row is a tensor operator or inside one."""
        return self._rows.get(row, self._rows[NOWHERE]).operator

    def site(self, row: int, phase: CodePhase) -> tuple[_Site, str] | None:
        """What time in a row is counted for, and in which part of that; None where it is not counted."""
        around = self._rows.get(row, self._rows[NOWHERE])
        if around.user == NOWHERE or around.recorders:
            return None
        part = self._part(around)
        name = alike(self._columns.name(around.user))
        if phase in TRAINING:
            return None if around.operator or around.torchs else (_Site(name, "", phase), part)
        if around.whole == NOWHERE:
            return _Site(name, part, phase, around.library), part
        whole = alike(self._columns.name(around.whole))
        return _Site(whole, "", phase), part if around.whole == around.user else name

    def _part(self, around: _Row) -> str:
        """What a function of the user spends the time in: a function that it calls, operators, or Python itself."""
        if around.below == NOWHERE:
            return PYTHON
        name = self._columns.name(around.below)
        built_in, frame = _BUILT_IN.match(name), _FRAME.match(name)
        if built_in and not around.operator:
            return built_in["name"]
        return frame["name"] if frame else OPERATORS


def _loops(ranks: Mapping[int, _Rank]) -> list[OperatorLoop]:
    """The loops that take most, each on the rank where it does."""
    found = []
    for function in {function for rank in ranks.values() for function in rank.loops}:
        having = {at: rank for at, rank in ranks.items() if function in rank.loops}
        shares = {at: rank.loops[function].cost_ns / rank.step_ns for at, rank in having.items()}
        most = max(shares, key=lambda at: shares[at])
        loop, line = ranks[most].loops[function], ranks[most].lines.get(function)
        file, _, name = function.partition(": ")
        if shares[most] >= LEAST_SHARE:
            found.append(
                OperatorLoop(
                    name=name,
                    at=f"{file}:{line}" if line else file,
                    phase=loop.phase,
                    operator=loop.operator,
                    repeats=loop.repeats,
                    crossing=loop.crossing,
                    backward=loop.backward,
                    rank=most,
                    cost_ns=loop.cost_ns,
                    share=min(1.0, shares[most]),
                    computed_share=loop.computed_share,
                    backward_share=loop.backward_share,
                    least_computed_ns=loop.least_computed_ns,
                    least_computed_share=loop.least_computed_share,
                    checks=loop.checks,
                )
            )
    return sorted(found, key=lambda operator_loop: (-operator_loop.share, operator_loop.name))[:MOST]


def is_scripts(frame: str) -> bool:
    """Whether a frame is the script's own: a trace does not tell where packages are installed, so by their names."""
    return is_users(frame) and frame.split("/")[0].split("(")[0].removesuffix(".py") not in _PACKAGES


def library_of(columns: Columns, row: int) -> str:
    """The installed package of a function; empty for those of torch and Python, and what is no function."""
    name = "" if row == NOWHERE else columns.name(row)
    return name.split("/")[0] if "/" in name and is_users(name) and not is_scripts(name) else ""


def _lines(frames: Iterable[str]) -> dict[str, int]:
    """By function the line that it begins at: the first, for what ran as recording began has the one it stood at."""
    found: dict[str, int] = {}
    for frame in frames:
        match = _FRAME.match(frame)
        if match:
            name = alike(frame)
            found[name] = min(int(match["line"]), found.get(name, int(match["line"])))
    return found


def _figures(site: _Site, ranks: Mapping[int, _Rank]) -> CodeSite:
    shares = {number: rank.cost_ns[site] / rank.step_ns for number, rank in ranks.items() if site in rank.cost_ns}
    most = max(shares, key=lambda number: shares[number])
    file, _, name = site.function.partition(": ")
    line = ranks[most].lines.get(site.function)
    mostly = site.part or ranks[most].mostly[site]
    called = ranks[most].calls.get(site, [])
    counts = Counter(called)
    operator = max(counts, key=lambda name: counts[name], default=None)
    norms = norm_use(called)
    return CodeSite(
        name=name,
        at=f"{file}:{line}" if line else file,
        phase=site.phase,
        part=bool(site.part),
        mostly=mostly.partition(": ")[2] or mostly,
        library=site.library,
        rank=most,
        ranks=[number for number, share in sorted(shares.items()) if share >= shares[most] / 2],
        cost_ns=ranks[most].cost_ns[site],
        share=min(1.0, shares[most]),
        operator_share=ranks[most].operator_shares[site],
        operator=operator,
        operator_calls=counts[operator] / ranks[most].steps if operator else 0.0,
        combined_norms=norms.combined,
        scales=norms.scaled,
    )
