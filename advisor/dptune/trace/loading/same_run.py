"""Whether traces can be of one run: whether they were recorded at one time."""

from __future__ import annotations

from collections.abc import Iterable

from dptune.trace.events import Trace
from dptune.trace.places.source import shown

# Ranks of one run record at the same time: the traces of 10 public runs of several ranks overlap. Those of unrelated
# ones lie at least 318 s apart; clocks of one cluster differ by far less than a minute.
APART_NS = 60 * 10**9
# From here on it is said: a clock that is off by so much is rarer than two runs in one folder.
DOUBTFUL_NS = 10**9
_EPOCH_NS = 10**18  # a time since the epoch, in 2001; smaller ones count from something else and cannot be compared


def one_after_another(first: Trace, second: Trace) -> bool:
    """Whether two traces were not recorded at one time; also where their times cannot be compared."""
    spans = [
        (trace.base_ns + trace.span_ns[0], trace.base_ns + trace.span_ns[1])
        for trace in (first, second)
        if trace.span_ns
    ]
    if len(spans) < 2 or any(start_ns <= _EPOCH_NS for start_ns, _ in spans):
        return True
    return min(end_ns for _, end_ns in spans) <= max(start_ns for start_ns, _ in spans)


def apart(traces: Iterable[Trace], least_ns: int = APART_NS) -> str:
    """Why the traces are not of one run, as a part of a sentence; "" where nothing says so.

    `least_ns`: between the end of one and the begin of the next.
    """
    spans = sorted(
        (trace.base_ns + span_ns[0], trace.base_ns + span_ns[1], trace.path)
        for trace in traces
        if (span_ns := trace.span_ns) is not None
    )
    spans = [span for span in spans if span[0] > _EPOCH_NS]
    latest_ns, before = spans[0][1:] if spans else (0, "")
    for start_ns, end_ns, path in spans:
        if start_ns - latest_ns > least_ns:
            return f"{shown(path)} starts {_long(start_ns - latest_ns)} after {shown(before)} ended"
        latest_ns, before = max((latest_ns, before), (end_ns, path))
    return ""


def _long(gap_ns: int) -> str:
    seconds = gap_ns / 1e9
    for unit, size in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds:.0f} seconds"
