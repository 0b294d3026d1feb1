"""Processes that read traces, and end with the one that asks for it: when it is interrupted, and when it is killed."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext

from dptune.trace import cache

PRELOADED = "dptune.trace.reading"


@contextmanager
def workers(jobs: int, shared: str | None) -> Iterator[ProcessPoolExecutor]:
    """An executor of `jobs` processes, forked from one that has imported what reading takes, never from this one.

    Each waits for the end of a pipe that only this process can write to. It is closed as soon as anything is raised
    here, and by the system where this process is killed: then the workers end at once, and remove `shared`.
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
        except BaseException:
            ours.close()
            raise
        finally:
            pool.shutdown(cancel_futures=True)


def _begin(asked: Connection, shared: str | None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that asked is interrupted too, and tells this one
    threading.Thread(target=_end_with, args=(asked, shared), daemon=True).start()


def _end_with(asked: Connection, shared: str | None) -> None:
    with suppress(OSError):
        asked.poll(None)
    cache.abandon()
    if shared is not None:
        shutil.rmtree(shared, ignore_errors=True)
    os._exit(1)
