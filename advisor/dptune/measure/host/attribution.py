"""Where in the script the compute of a device comes from: modules, functions, and ranges that the script names.

On a GPU the moment and thread of launching decide; on a CPU, which computes on the script's own threads, the time
itself. The innermost module, function or range around it has it. A script waits for the pass of autograd's own thread:
that thread is taken for the script's.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal

import numpy as np

from dptune.measure.device.operations import COLLECTIVE_CALL, ENCLOSING, Operations
from dptune.measure.device.phases import autograd_threads, bounds
from dptune.measure.host.callers import PYTHON_CATEGORIES, is_users
from dptune.measure.host.enclosing import NOWHERE, Ranges
from dptune.measure.host.launches import UNLAUNCHED
from dptune.measure.intervals import Intervals, Ints, first_begun
from dptune.measure.views import DeviceView, RankView
from dptune.measured import AttributionFigures, SourceFigures, SourceTime
from dptune.trace.columns import Columns
from dptune.trace.kernels import COLLECTION_NAME, COLLECTIVE_PREFIXES, STEP_NAME, Work

MOST = 10  # places that are reported
NOTHING_SHOWN = (
    "no window shows Python's stacks, modules or ranges that the script names (torch.profiler.record_function)"
)
_MODULE = "nn.Module: "
_INSTANCE = re.compile(r"_\d+$")
# Ranges of torch's own that a trace has as annotations.
_TORCHS = re.compile(
    r"^(Optimizer\.|torch[.:]|autograd::|FSDP::|record_param_comms|## Call CompiledFxGraph|Torch-Compiled Region"
    r"|TorchDynamo |AOTDispatcher |CompiledFunction|Pregraph |PyTorch Profiler|Iteration$)"
)
_MISSING = {
    "modules": "the trace has no ranges of nn.Module: it was recorded without stacks",
    "functions": "the trace has no function that is the script's own: it was recorded without stacks",
    "annotations": "the script names no ranges (torch.profiler.record_function)",
}


def attribution(detailed: RankView | None, light: RankView | None) -> AttributionFigures | None:
    """From the detailed window, else from the light one; None where neither shows it or has compute in steps."""
    if detailed is not None and (found := _of_window(detailed, "detailed")) is not None:
        return found
    return None if light is None else _of_window(light, "light")


def _of_window(view: RankView, window: Literal["light", "detailed"]) -> AttributionFigures | None:
    columns = view.columns
    sorts: dict[str, tuple[Ints, Callable[[str], str]]] = {
        "modules": (columns.rows(PYTHON_CATEGORIES, lambda name: name.startswith(_MODULE)), _class),
        "functions": (columns.rows(PYTHON_CATEGORIES, is_users), str),
        "annotations": (columns.rows({"user_annotation"}, is_scripts), str),
    }
    steps_ns = sum(step.length_ns for device in view.devices for step in device.windows)
    compute_ns = sum(
        int(device.operations.time[Work.COMPUTE].lengths(*bounds(device.windows)).sum()) for device in view.devices
    )
    if not compute_ns or not any(len(rows) for rows, _ in sorts.values()):
        return None
    figures = {
        name: _sources(view, rows, title, compute_ns, steps_ns) if len(rows) else None
        for name, (rows, title) in sorts.items()
    }
    return AttributionFigures(
        rank=view.rank,
        window=window,
        steps=view.windows,
        compute_ns=compute_ns,
        compute_share=compute_ns / steps_ns,
        **figures,
        missing={name: _MISSING[name] for name, value in figures.items() if value is None},
    )


def is_scripts(name: str) -> bool:
    """Whether a range is one that the script names itself."""
    torch_patterns = (STEP_NAME, ENCLOSING, COLLECTIVE_CALL, COLLECTION_NAME, _TORCHS)
    return not name.startswith(COLLECTIVE_PREFIXES) and not any(pattern.match(name) for pattern in torch_patterns)


def _class(module: str) -> str:
    """`nn.Module: Linear_3` is a Linear."""
    return _INSTANCE.sub("", module.removeprefix(_MODULE))


def _sources(view: RankView, rows: Ints, title: Callable[[str], str], compute_ns: int, steps_ns: int) -> SourceFigures:
    columns = view.columns
    ranges = Ranges.of_rows(columns, rows)
    waiting = np.unique(columns.thread[rows])
    autograd = autograd_threads(columns) if len(waiting) == 1 else waiting[:0]
    time_ns = np.zeros(len(columns.names), dtype=np.int64)
    for device in view.devices:
        thread, moment, lengths = _pieces(columns, device, rows)
        found = ranges.at(np.where(np.isin(thread, autograd), waiting[0], thread), moment)
        inside = found != NOWHERE
        np.add.at(time_ns, columns.name_id[rows[found[inside]]], lengths[inside])
    names: dict[str, list[int]] = {}
    for number in np.unique(columns.name_id[rows]).tolist():
        names.setdefault(title(columns.names[number]), []).append(number)
    total = {name: int(time_ns[numbers].sum()) for name, numbers in names.items()}
    longest = sorted((name for name in total if total[name]), key=lambda name: (-total[name], name))
    return SourceFigures(
        top=[
            SourceTime(name=name, compute_ns=total[name], step_share=total[name] / steps_ns, instances=len(names[name]))
            for name in longest[:MOST]
        ],
        places=len(longest),
        covered_share=sum(total.values()) / compute_ns,
    )


def _pieces(columns: Columns, device: DeviceView, ranges: Ints) -> tuple[Ints, Ints, Ints]:
    """The compute of a device inside its steps in disjoint pieces: thread and moment that decide, and the length.

    Of operations that run at once the moment is the first begun's, on a CPU that of the thread that began first.
    """
    operations = device.operations
    thread, moment, start, end = (_of_threads if operations.on_cpu else _of_launches)(columns, operations, ranges)
    since, until = first_begun(start, end)
    return thread, moment, Intervals.union(*bounds(device.windows)).lengths(since, until)


def _of_launches(columns: Columns, operations: Operations, ranges: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    chosen = (operations.work == Work.COMPUTE) & (operations.launch != UNLAUNCHED)
    rows, launch = operations.rows[chosen], operations.launch[chosen]
    return columns.thread[launch], columns.ts_ns[launch], columns.ts_ns[rows], columns.ends(rows)


def _of_threads(columns: Columns, operations: Operations, ranges: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """The operators of each thread as one set of time, cut where a range of the thread begins or ends."""
    computing = operations.rows[operations.work == Work.COMPUTE]
    threads, starts, ends = [], [], []
    for number in np.unique(columns.thread[computing]).tolist():
        rows, inside = (each[columns.thread[each] == number] for each in (computing, ranges))
        ran = Intervals.union(columns.ts_ns[rows], columns.ends(rows)) & operations.time[Work.COMPUTE]
        cuts = np.unique(np.concatenate((ran.start_ns, ran.end_ns, columns.ts_ns[inside], columns.ends(inside))))
        begin, end = cuts[:-1], cuts[1:]
        kept = ran.lengths(begin, end) > 0
        starts.append(begin[kept])
        ends.append(end[kept])
        threads.append(np.full(int(kept.sum()), number, dtype=np.int64))
    start, end = np.concatenate(starts), np.concatenate(ends)
    return np.concatenate(threads), start, start, end
