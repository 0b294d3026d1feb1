"""What in a file that could be read limits what may be said of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Literal

import numpy as np

from dptune.finding import Finding
from dptune.trace.columns import NONE, Columns
from dptune.trace.kernels import DEVICE_CATEGORIES, LAUNCH_CATEGORIES, OPERATOR_CATEGORIES
from dptune.trace.kineto.builder import Builder
from dptune.trace.marks import step_rows
from dptune.trace.vendors import LAUNCH_NAME, unread

SKIPPED, UNREADABLE, CUT, FAULTY, UNUSABLE = (
    "elements-skipped",
    "events-unreadable",
    "events-cut",
    "fields-unreadable",
    "collectives-unreadable",
)
DAMAGED = frozenset((SKIPPED, UNREADABLE, CUT, FAULTY))  # events that are in the file, and whose content is lost
MOST_WRONG = 0.01  # of events: the share of lost ones above which no figure of a step is trusted either
_ENOUGH = 100  # operators
# On 90 traces, of GPUs and CPUs, a quarter of the operators takes at most 36 us, and half at most 211 us.
_LONG_QUARTER_NS, _LONG_HALF_NS = 200_000, 800_000
FEW_WRONG = 3  # events, in a trace so short that they are more than that share


def doubts(name: str, columns: Columns, builder: Builder, partial: str) -> Iterator[Finding]:
    """Findings about one file, named by the file."""
    if partial:
        yield Finding(code="trace-partial", level="partial", text=f"{name} breaks off {partial}")
    yield from _unreadable(name, len(columns), builder)
    processes = np.unique(columns.pid_id[columns.rows(OPERATOR_CATEGORIES)])
    if len(processes) > 1:
        pids = ", ".join(columns.labels[p] for p in processes)
        text = f"{name} holds operators of {len(processes)} processes ({pids}): several ranks wrote to one file"
        yield Finding(code="several-ranks-in-one-file", level="unjudgeable", text=text)
    _, dropped = step_rows(columns)
    if dropped:
        text = f"{name}: {dropped:,} steps are marked twice or around others; the innermost mark of each is used"
        yield Finding(code="steps-marked-twice", level="partial", text=text)
    yield from _times(name, columns, builder)
    yield from _twice(name, columns)
    yield from _device_events(name, columns)


def _times(name: str, columns: Columns, builder: Builder) -> Iterator[Finding]:
    """Events without durations, and times in another unit than torch.profiler's."""
    if not len(columns) and builder.events > builder.unreadable + builder.skipped:
        text = (
            f"{name}: none of its {builder.events:,} events is a complete event (phase X) or a pair (phases B and E): "
            "operators have no durations"
        )
        yield Finding(code="durations-missing", level="unjudgeable", text=text)
    took_ns = columns.dur_ns[columns.rows(OPERATOR_CATEGORIES)]
    if len(took_ns) < _ENOUGH:
        return
    quarter_ns, half_ns = np.quantile(took_ns, (0.25, 0.5))
    if quarter_ns >= _LONG_QUARTER_NS and half_ns >= _LONG_HALF_NS:
        text = f"{name}: half of its operators take {half_ns / 1e6:.3g} ms or more: its times are probably not in us"
        yield Finding(code="times-scaled", level="unjudgeable", text=text)


def _twice(name: str, columns: Columns) -> Iterator[Finding]:
    """Events that are in the file again: a device does no operation twice at one time on one stream."""
    rows, noun = columns.rows(DEVICE_CATEGORIES), "device operations"
    if not len(rows):
        rows, noun = columns.rows(OPERATOR_CATEGORIES), "operators"
        rows = rows[columns.external_id[rows] != NONE]
    rows = rows[columns.dur_ns[rows] > 0]
    every = len(rows)
    if not every:
        return
    rows = rows[np.argsort(columns.ts_ns[rows], kind="stable")]
    alike = np.append(False, np.diff(columns.ts_ns[rows]) == 0)
    rows = rows[alike | np.append(alike[1:], False)]
    fields = ("ts_ns", "dur_ns", "name_id", "thread", "stream", "device", "correlation", "external_id")
    each = np.stack([getattr(columns, field)[rows].astype(np.int64) for field in fields])
    count = len(rows) - np.unique(each, axis=1).shape[1]
    if _level(count, every) == "unjudgeable":
        text = f"{name}: {count:,} of {every:,} {noun} are in the file twice, so counts and totals are too high"
        yield Finding(code="events-twice", level="unjudgeable", text=text)


def _unreadable(name: str, complete: int, builder: Builder) -> Iterator[Finding]:
    """What was skipped or counts as missing. No verdict rests on a trace that lacks more than a small share."""
    if builder.skipped:
        of = f"{name}: {builder.skipped:,} of {builder.events:,} traceEvents elements"
        plural = f"{of} are not JSON objects and were skipped"
        text = plural if builder.skipped > 1 else f"{of} is not a JSON object and was skipped"
        yield Finding(code=SKIPPED, level="partial", text=text)
    if builder.unreadable:
        text = f"{name}: {builder.unreadable:,} of {builder.events:,} events could not be read and were left out"
        yield Finding(code=UNREADABLE, level=_level(builder.unreadable, builder.events), text=text)
    if builder.cut:
        have = "has" if builder.cut == 1 else "have"
        halves = f"{builder.cut:,} of {builder.events:,} events {have} no matching begin or end (phases B and E)"
        text = f"{name}: {halves}: left out"
        yield Finding(code=CUT, level=_level(builder.cut, builder.events), text=text)
    if builder.faulty:
        have = "has" if builder.faulty == 1 else "have"
        text = (
            f"{name}: {builder.faulty:,} of {complete:,} events {have} unreadable fields ({_listed(builder.fields)}), "
            "treated as missing"
        )
        yield Finding(code=FAULTY, level=_level(builder.faulty, complete), text=text)
    if builder.unusable:
        have = "has" if builder.unusable == 1 else "have"
        text = (
            f"{name}: {builder.unusable:,} of {builder.described:,} collective events {have} invalid or unreadable "
            f"arguments ({_listed(builder.arguments)}), treated as missing"
        )
        yield Finding(code=UNUSABLE, level="partial", text=text)
    if builder.negative:
        have = "event has" if builder.negative == 1 else "events have"
        text = f"{name}: {builder.negative:,} {have} a negative duration, taken as 0"
        yield Finding(code="negative-durations", level=_level(builder.negative, complete), text=text)


def _level(wrong: int, of: int) -> Literal["partial", "unjudgeable"]:
    return "unjudgeable" if wrong > max(MOST_WRONG * of, FEW_WRONG) else "partial"


def _listed(names: Counter[str]) -> str:
    return ", ".join(f"`{name}`" for name, count in names.most_common() if count)


def _device_events(name: str, columns: Columns) -> Iterator[Finding]:
    if len(columns.rows(DEVICE_CATEGORIES)):
        return
    device = unread(columns.categories, columns.names)
    if device is not None:
        text = f"{name} is a trace of {device.title}, which dptune cannot read yet"
        yield Finding(code="device-unknown", level="unjudgeable", text=text)
        return
    launches = len(columns.rows(LAUNCH_CATEGORIES, LAUNCH_NAME.search))
    if launches:
        text = f"{name} launched {launches:,} kernels but holds no GPU event: they were not recorded or were dropped"
        yield Finding(code="gpu-events-missing", level="unjudgeable", text=text)
