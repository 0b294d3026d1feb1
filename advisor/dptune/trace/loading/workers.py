"""Processes that read traces, and end with the one that asks for it: when it is interrupted, and when it is killed."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from pathlib import Path

from dptune.errors import RunError
from dptune.trace.loading import cache

PRELOADED = "dptune.trace.loading.reading"


@contextmanager
def workers(jobs: int, shared: str | None) -> Iterator[ProcessPoolExecutor]:
    """An executor of `jobs` processes, forked from one that has imported what reading takes, never from this one.

    Each waits for the end of a pipe that only this process can write to. It is closed as soon as anything is raised
    here, and by the system where this process is killed: then the workers end at once, and remove `shared`. Raises
    RunError where one of them dies.
    """
    context: BaseContext
    if "forkserver" in multiprocessing.get_all_start_methods():
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([PRELOADED])
    else:
        context = multiprocessing.get_context("spawn")
    theirs, ours = context.Pipe(duplex=False)
    with theirs, ours:
        pool = ProcessPoolExecutor(jobs, context, initializer=_begin, initargs=(theirs, shared))
        try:
            yield pool
        except BrokenExecutor:
            raise _died(pool) from None
        except BaseException:
            ours.close()
            raise
        finally:
            pool.shutdown(cancel_futures=True)


def _died(pool: ProcessPoolExecutor) -> RunError:
    """How a worker ended; the others, which the executor then ends by SIGTERM, say nothing."""
    processes = list(pool._processes.values())  # which are let go of in shutdown
    pool.shutdown(cancel_futures=True)
    statuses = [status for process in processes if (status := process.exitcode)]
    status = next((status for status in statuses if status != -signal.SIGTERM), -signal.SIGTERM)
    alone = "read one at a time: `--jobs 1`, or jobs=1"
    if status == -9:
        return RunError("a process that read traces was killed, most likely because it ran out of memory", alone)
    how = f"died of signal {-status}" if status < 0 else f"ended with exit status {status}"
    script = _unguarded()
    if script is None:
        return RunError(f"a process that read traces {how}", alone)
    return RunError(
        f'a process that read traces {how}: it imports {script}, which has no `if __name__ == "__main__":`',
        "put what the script does under it, or read one at a time: jobs=1",
    )


def _unguarded() -> str | None:
    """The script that runs, where it does not tell being run from being imported by a worker."""
    script = getattr(sys.modules["__main__"], "__file__", None)
    with suppress(OSError, UnicodeError):
        if script is not None and "__main__" not in Path(script).read_text(encoding="utf-8"):
            return str(script)
    return None


def _begin(asked: Connection, shared: str | None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that asked is interrupted too, and ends this one
    threading.Thread(target=_end_with, args=(asked, shared), daemon=True).start()


def _end_with(asked: Connection, shared: str | None) -> None:
    with suppress(OSError):
        asked.poll(None)
    cache.abandon()
    if shared is not None:
        shutil.rmtree(shared, ignore_errors=True)
    os._exit(1)
