"""One trace, from what was kept of it or from its file; many, one after the other or by an executor."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, as_completed
from contextlib import ExitStack
from functools import partial
from typing import Any

from dptune.errors import DptuneError, RunError
from dptune.trace.events import Trace
from dptune.trace.kineto.decode import decode
from dptune.trace.kineto.text import Tick
from dptune.trace.loading.cache import Entry
from dptune.trace.loading.parcel import Parcel, folder, parcel
from dptune.trace.loading.workers import workers
from dptune.trace.places import source
from dptune.trace.places.source import shown
from dptune.trace.run import Progress

LEAST_BYTES = 4 * 2**20  # of files together: less is read here before another process has started


def read(name: str, cached: bool = True, tick: Tick | None = None) -> Trace:
    """Read one trace; `cached` takes and keeps its columns. `tick` gets how many of the file's bytes were read.

    Raises TraceError where it is not a torch.profiler trace or nothing of it can be read.
    """
    if not cached:
        return decode(name, tick=tick)
    entry = Entry(name)
    known = entry.load()
    if known is not None:
        return known
    trace = decode(name, tick=tick)
    entry.store(trace)
    return trace


def read_all(
    names: Sequence[str], executor: Executor | None, jobs: int, cached: bool, progress: Progress
) -> dict[str, Trace | DptuneError]:
    """Each trace, or why it could not be read; here, by `jobs` processes, or each by a call of the executor.

    `progress` is called with what is being read, how many bytes are done, and how many there are. Raises RunError where
    a process that read died.
    """
    sizes = [source.size(name) for name in names]
    if executor is not None:
        try:
            return _at_once(names, sizes, executor, cached, progress)
        except BrokenExecutor as error:
            raise RunError(
                f"a process that read traces died: {str(error).rstrip('.')}", "read one at a time: jobs=1"
            ) from None
    if min(jobs, len(names)) < 2 or sum(sizes) < LEAST_BYTES:
        return _one_by_one(names, sizes, cached, progress)
    with ExitStack() as stack:
        shared = stack.enter_context(folder())
        try:
            pool = stack.enter_context(workers(min(jobs, len(names)), shared))
        except (OSError, ImportError, NotImplementedError):  # the system has no semaphores, or none left
            return _one_by_one(names, sizes, cached, progress)
        return _at_once(names, sizes, pool, cached, progress, shared)


def _at_once(
    names: Sequence[str],
    sizes: Sequence[int],
    executor: Executor,
    cached: bool,
    progress: Progress,
    shared: str | None = None,
) -> dict[str, Trace | DptuneError]:
    """By calls of the executor; where it runs on this machine, results are handed over in a shared folder."""
    read_one = _outcome if shared is None else partial(_parcel, shared)
    waiting: dict[Future[Trace | DptuneError | Parcel], int] = {}
    found: dict[int, Trace | DptuneError] = {}
    done, total = 0, sum(sizes)
    progress(f"0 of {len(names)} traces", done, total)
    try:
        for at, name in enumerate(names):
            waiting[executor.submit(read_one, name, cached)] = at
        for future in as_completed(list(waiting)):
            at = waiting.pop(future)
            outcome = future.result()
            found[at] = outcome.open() if isinstance(outcome, Parcel) else outcome
            done += sizes[at]
            progress(f"{len(found)} of {len(names)} traces: {shown(names[at])}", done, total)
    finally:
        for future in waiting:
            future.cancel()
    return {name: found[at] for at, name in enumerate(names)}


def _one_by_one(
    names: Sequence[str], sizes: Sequence[int], cached: bool, progress: Progress
) -> dict[str, Trace | DptuneError]:
    found = {}
    done, total = 0, sum(sizes)
    for name, size in zip(names, sizes, strict=True):
        show = partial(_tell, progress, shown(name), done, total)
        show(0)
        found[name] = _outcome(name, cached, show)
        done += size
    return found


def _tell(progress: Progress, what: str, before: int, total: int, read_bytes: int) -> None:
    progress(what, before + read_bytes, total)


def _parcel(shared: str, name: str, cached: bool) -> Any:
    return parcel(_outcome(name, cached), shared)


def _outcome(name: str, cached: bool, tick: Tick | None = None) -> Trace | DptuneError:
    try:
        return read(name, cached, tick)
    except DptuneError as error:
        return error
