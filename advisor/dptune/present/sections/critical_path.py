"""The critical path: what a step waits for, by kind, and the operations that take most of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from dptune.advice import Report
from dptune.measured import PATH, Account, CriticalPath, Measured, OnPath, short_name
from dptune.present.amounts import percent, step_milliseconds, times
from dptune.present.lines import Line, heading, wrapped
from dptune.present.table import Cell, Column, table

_AT_MOST = 5
_OF_HOST = ("malloc_ns", "launching_ns", "host_ns", "input_ns", "gc_ns", "sync_ns")
_MOST_OF_HOST = 0.2  # of the path, from which on it matters whether the host is there without the profiler, too
_LEAST_WAITS = 0.1  # of a step: a device that idles or waits for less sets the pace without the profiler
_LONGEST_NAME = 60
_LEAST_SHARE = 0.0005
_WORDS = {
    "compute_ns": "on the device",
    "communication_ns": "collectives, including waiting for other ranks",
    "copy_ns": "copies and memsets",
    "queued_ns": "gaps before launched operations",
    "latency_ns": "from a launch to its start on the device",
    "sync_ns": "return from a call that waits for the device",
    "input_ns": "the script waits for the data loader",
    "gc_ns": "Python garbage collection",
    "malloc_ns": "the driver allocates or frees device memory",
    "launching_ns": "operators on the host before a launch",
    "host_ns": "outside operators: Python, file I/O, sleep",
    "unexplained_ns": "not recorded",
}
_LABELS = {"malloc_ns": "memory calls"}
_COLUMNS = (Column("ms"), Column("share"), Column("on the critical path", right=False))
_NAMED = (Column("ms"), Column("calls"), Column("most time on the path", right=False, least=20))


def path(report: Report, width: int) -> Iterator[Line]:
    """Nothing where there is none: a CPU has no device beside it."""
    measured = report.measured
    found = measured.known("path")
    if found is None or not found.path_ns:
        return
    title = f"Critical path of a step of rank {found.rank}"
    yield from heading(title, width)
    of_host = sum(getattr(found, name) for name in _OF_HOST) / found.path_ns
    account = measured.device_step_account(found.rank, found.device)
    waits_share = account.share("idle_ns") + account.share("exposed_waiting_ns")
    untraced = measured.step.basis == "untraced"
    if untraced and of_host > _MOST_OF_HOST and waits_share < min(_LEAST_WAITS, of_host / 2):
        words = (
            f"The device is the critical path: untraced, it idles or waits for {percent(waits_share)} of "
            f"a step. In traced steps the host is {percent(of_host)} of the path, because the profiler slows it."
        )
        yield from wrapped(words, width, "  ")
        return
    shares = {name: getattr(found, name) / found.path_ns for name in PATH}
    rows = [
        [
            step_milliseconds(measured, share),
            percent(share),
            f"{_LABELS.get(name, name.removesuffix('_ns'))}: {_WORDS[name]}",
        ]
        for name, share in sorted(shares.items(), key=lambda pair: -pair[1])
        if share >= _LEAST_SHARE
    ]
    yield from table(_COLUMNS, rows, width)
    yield from wrapped(f"{_bound(measured, found, account)}{_memory_calls(measured, found, account)}", width, "  ")
    longest = found.longest[:_AT_MOST]
    short = Counter(short_name(operation.name) for operation in longest)
    named = [
        _named(operation, found.path_ns, found.steps, report, short[short_name(operation.name)] == 1)
        for operation in longest
    ]
    yield from table(_NAMED, named, width)


def _bound(measured: Measured, found: CriticalPath, account: Account) -> str:
    """What faster host code saves at most: of the rank of the path, and of others that it waits for."""
    computes_not = 1 - account.share("compute_ns")
    idle_share = min(found.idle_share, computes_not)
    waiting, unsplit = account.share("exposed_waiting_ns"), account.share("exposed_unsplit_ns")
    idle = step_milliseconds(measured, idle_share)
    if not isinstance(idle, str):
        return str(idle)
    if waiting + unsplit < _LEAST_SHARE:
        idles = f"the time that rank {found.rank}'s device does not compute while the host is on the critical path"
        return f"Faster host code, data loading and driver calls save up to {idle}: {idles}."
    waits = step_milliseconds(measured, waiting + unsplit)
    most = step_milliseconds(measured, min(idle_share + waiting + unsplit, computes_not))
    up_to = "up to " if unsplit >= waiting else ""
    if idle_share < _LEAST_SHARE:
        return f"Faster hosts of the other ranks save up to {most}: rank {found.rank} waits about that long for them."
    return (
        f"Faster host code, data loading and driver calls save up to {most}: rank {found.rank}'s device does not "
        f"compute for {idle} while the host is on the critical path, and rank {found.rank} waits {up_to}{waits} for "
        "other ranks."
    )


def _memory_calls(measured: Measured, found: CriticalPath, account: Account) -> str:
    """How long memory calls keep the device idle, where that is most: faster Python code does not shorten them."""
    share = account.share("malloc_idle_ns")
    if 2 * share <= found.idle_share:
        return ""
    return f" Memory calls keep the device idle for {step_milliseconds(measured, share)}."


def _named(operation: OnPath, path_ns: int, steps: int, report: Report, distinct: bool) -> list[Cell]:
    """A row of its time and name; `distinct`: whether no other row has the same short name."""
    whole = operation.name if len(operation.name) <= _LONGEST_NAME else f"{operation.name[: _LONGEST_NAME - 3]}..."
    name = short_name(operation.name) if distinct else whole
    return [step_milliseconds(report.measured, operation.total_ns / path_ns), times(operation.count / steps), name]
