"""What in a file that could be read limits what may be said of it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dptune.finding import Finding
from dptune.trace.builder import Builder
from dptune.trace.columns import Columns
from dptune.trace.kernels import DEVICE_CATEGORIES, LAUNCH_CATEGORIES, OPERATOR_CATEGORIES
from dptune.trace.marks import step_rows
from dptune.trace.vendors import LAUNCH_NAME, unread


def doubts(name: str, columns: Columns, builder: Builder, partial: str) -> Iterator[Finding]:
    """Findings about one file, named by the file."""
    if partial:
        yield Finding(code="trace-partial", level="partial", text=f"{name} breaks off {partial}")
    if builder.unreadable:
        text = f"{name}: {builder.unreadable:,} of {builder.events:,} events could not be read and were left out"
        yield Finding(code="events-unreadable", level="partial", text=text)
    if builder.negative:
        have = "event has" if builder.negative == 1 else "events have"
        text = f"{name}: {builder.negative:,} {have} a negative duration, taken as 0"
        yield Finding(code="negative-durations", level="partial", text=text)
    processes = np.unique(columns.pid_id[columns.rows(OPERATOR_CATEGORIES)])
    if len(processes) > 1:
        pids = ", ".join(columns.labels[p] for p in processes)
        text = f"{name} holds operators of {len(processes)} processes ({pids}): several ranks wrote to one file"
        yield Finding(code="several-ranks-in-one-file", level="unjudgeable", text=text)
    _, dropped = step_rows(columns)
    if dropped:
        text = f"{name}: {dropped:,} steps are marked twice or around others; the innermost mark of each is used"
        yield Finding(code="steps-marked-twice", level="partial", text=text)
    yield from _device_events(name, columns)


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
