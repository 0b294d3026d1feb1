"""One trace, from what was kept of it or from its file; many, one after the other or by an executor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, as_completed
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from dptune.errors import DptuneError, RunError, TraceError
from dptune.trace.columns import NO_OPERATORS
from dptune.trace.events import Trace
from dptune.trace.kineto.decode import decode
from dptune.trace.kineto.text import Tick
from dptune.trace.loading.cache import Entry
from dptune.trace.loading.handover import Parcel, folder, parcel
from dptune.trace.loading.lost import LostError
from dptune.trace.loading.progress import Pace
from dptune.trace.loading.workers import workers
from dptune.trace.places import source
from dptune.trace.places.source import shown
from dptune.trace.run import Progress

Digest = Callable[[Trace], object]

LEAST_BYTES = 4 * 2**20  # of files together: less is read here before another process has started


@dataclass(frozen=True)
class Digested:
    """What was made of a trace where it was read, and the trace without its events."""

    head: Trace
    digest: object


Outcome = Trace | Digested | DptuneError


def read(name: str, cached: bool = True, tick: Tick | None = None, keep_operators: bool = True) -> Trace:
    """Read one trace; `cached` takes and keeps its columns. `tick` gets how many of the file's bytes were read.
    `keep_operators` keeps the arguments of operators, where the file itself is read or they were kept then.

    Raises TraceError where it is not a torch.profiler trace or nothing of it can be read.
    """
    if not cached:
        return decode(name, tick=tick, keep_operators=keep_operators)
    entry = Entry(name)
    known = entry.load()
    if known is not None:
        return known if keep_operators else replace(known, operators=NO_OPERATORS)
    trace = decode(name, tick=tick, keep_operators=keep_operators)
    entry.store(trace)
    return trace


def read_all(
    names: Sequence[str],
    executor: Executor | None,
    jobs: int,
    cached: bool,
    progress: Progress,
    digests: Mapping[str, Digest] | None = None,
) -> dict[str, Outcome]:
    """Each trace, or why it could not be read; here, by `jobs` processes, or each by a call of the executor.

    Where `digests` has a function for a name, it is called where the trace is read, and its result is handed over in
    place of the events; it can be pickled. The arguments of operators are kept of the first trace alone: figures seldom
    take those of others. `progress` is called with what is being read, how many bytes are done, and how many there are.
    Raises RunError where a process that read died.
    """
    sizes = [source.size(name) for name in names]
    calls = [
        partial(_outcome, name, cached, digest=(digests or {}).get(name), keep_operators=not at)
        for at, name in enumerate(names)
    ]
    if executor is not None:
        try:
            return _at_once(names, sizes, calls, executor, progress)
        except BrokenExecutor as error:
            raise RunError(
                f"a process that read traces died: {str(error).rstrip('.')}", "read one at a time: jobs=1"
            ) from None
    if min(jobs, len(names)) < 2 or sum(sizes) < LEAST_BYTES:
        return _one_by_one(names, sizes, calls, progress)
    with ExitStack() as stack:
        shared = stack.enter_context(folder())
        try:
            pool = stack.enter_context(workers(min(jobs, len(names)), shared))
        except (OSError, ImportError, NotImplementedError):  # the system has no semaphores, or none left
            return _one_by_one(names, sizes, calls, progress)
        return _at_once(names, sizes, calls, pool, progress, shared)


def _at_once(
    names: Sequence[str],
    sizes: Sequence[int],
    calls: Sequence[Callable[[], Outcome]],
    executor: Executor,
    progress: Progress,
    shared: str | None = None,
) -> dict[str, Outcome]:
    """By calls of the executor; where it runs on this machine, results are handed over in a shared folder.

    A LostError that a call raises is the outcome of its trace alone.
    """
    waiting: dict[Future[Outcome | Parcel], int] = {}
    found: dict[int, Outcome] = {}
    pace = Pace(len(names))
    done, total = 0, sum(sizes)
    progress(pace.words(""), done, total)
    try:
        for at, call in enumerate(calls):
            waiting[executor.submit(call) if shared is None else executor.submit(_parcel, shared, call)] = at
        for future in as_completed(list(waiting)):
            at = waiting.pop(future)
            found[at] = outcome = _opened(future, names[at])
            done += sizes[at]
            pace.add(failed=isinstance(outcome, DptuneError))
            progress(pace.words(shown(names[at])), done, total)
    finally:
        for future in waiting:
            future.cancel()
    return {name: found[at] for at, name in enumerate(names)}


def _opened(future: Future[Outcome | Parcel], name: str) -> Outcome:
    try:
        outcome = future.result()
    except LostError as error:
        return TraceError(f"{shown(name)} was not read: {error}")
    if isinstance(outcome, Parcel):
        opened: Outcome = outcome.open()
        return opened
    return outcome


def _one_by_one(
    names: Sequence[str], sizes: Sequence[int], calls: Sequence[Callable[..., Outcome]], progress: Progress
) -> dict[str, Outcome]:
    found = {}
    done, total = 0, sum(sizes)
    for name, size, call in zip(names, sizes, calls, strict=True):
        show = partial(_tell, progress, shown(name), done, total)
        show(0)
        found[name] = call(tick=show)
        done += size
    return found


def _tell(progress: Progress, what: str, before: int, total: int, read_bytes: int) -> None:
    progress(what, before + read_bytes, total)


def _parcel(shared: str, call: Callable[[], Outcome]) -> Any:
    return parcel(call(), shared)


def _outcome(
    name: str, cached: bool, tick: Tick | None = None, digest: Digest | None = None, keep_operators: bool = False
) -> Outcome:
    try:
        trace = read(name, cached, tick, keep_operators=keep_operators and digest is None)
    except DptuneError as error:
        return error
    return trace if digest is None else Digested(trace.head(), digest(trace))
