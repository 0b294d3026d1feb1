"""Workers of dask.distributed, on this machine or on many, as an executor that reads traces.

dask is the extra `cluster`. It is imported when a cluster is asked for, and nowhere else.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError, Executor, Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

from dptune.errors import RunError, UsageError
from dptune.trace.loading.lost import LostError

LOCAL, SLURM = "local", "slurm"
CONNECT_SECONDS = 10.0
_SCHEMES = ("tcp://", "tls://", "ws://", "wss://", "ucx://")
_ALIKE = ("python", "numpy")  # where these differ between client and workers, figures may
_UNWATCHED = {  # what dask watches itself for, and nobody sees here: a sample of each worker's stacks every 10 ms, ...
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "1s",
    "distributed.admin.system-monitor.interval": "10s",
}
# dask has a worker return memory to the system at once: columns that grow then take a third more time, for page faults.
_TRIMS = "MALLOC_TRIM_THRESHOLD_"
_ENVIRONMENT = "distributed.nanny.pre-spawn-environ"
_ANY_PORT = "127.0.0.1:0"  # of the scheduler's HTTP server: its usual port may be another cluster's
_QUIET = 50  # logging.CRITICAL: what dask logs of a killed worker is in the report

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Limits:
    """How long is waited for a worker to come, and for a trace to be read, in seconds; how often a trace is tried.

    `workers` are how many are started, where dptune starts them; `slurm` are arguments of dask-jobqueue's SLURMCluster.
    """

    wait_s: float
    rank_timeout_s: float
    attempts: int
    workers: int
    slurm: Mapping[str, Any] = field(default_factory=dict)


def check(where: str) -> None:
    """Raise UsageError for what names no cluster."""
    if where not in (LOCAL, SLURM) and not where.startswith(_SCHEMES):
        raise UsageError(
            f"--cluster {where:.60}: not a cluster", "give local, slurm or the scheduler's address: tcp://HOST:8786"
        )


@contextmanager
def connected(where: str, limits: Limits, warn: Callable[[str], None]) -> Iterator[Executor]:
    """An executor of the workers of a cluster: `local`, `slurm`, or a scheduler's address.

    On leaving, what waits is cancelled, and what was started here is ended. `warn` is called with what may make figures
    differ. Raises UsageError where dask is not installed, RunError where no worker can be had.
    """
    check(where)
    distributed = _distributed()
    with ExitStack() as stack, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # other versions are reported below
        if where == LOCAL:
            address = stack.enter_context(_local(distributed, limits))
        elif where == SLURM:
            address = stack.enter_context(_slurm(limits))
        else:
            address = where
        client = stack.enter_context(_client(distributed, address, limits))
        _wait(client, where, limits)
        _check_versions(client.get_versions(packages=["dptune"]), warn)
        yield _Workers(client, limits)


def _distributed() -> Any:
    try:
        import distributed
    except ImportError:
        raise _uninstalled("dask.distributed") from None
    return distributed


@contextmanager
def _local(distributed: Any, limits: Limits) -> Iterator[Any]:
    """Workers of this machine, which may be slow to start where much else runs."""
    import dask

    patience = f"{limits.wait_s:g}s"
    waiting = {"distributed.comm.timeouts.connect": patience, "distributed.comm.timeouts.tcp": patience}
    environment = {name: value for name, value in dask.config.get(_ENVIRONMENT).items() if name != _TRIMS}
    with dask.config.set({**waiting, **_UNWATCHED, _ENVIRONMENT: environment}):
        try:
            started = distributed.LocalCluster(
                n_workers=limits.workers,
                threads_per_worker=1,
                processes=True,
                dashboard_address=None,
                silence_logs=_QUIET,
                scheduler_kwargs={"allowed_failures": limits.attempts - 1, "dashboard_address": _ANY_PORT},
            )
        except (OSError, RuntimeError, TimeoutError) as error:
            raise RunError(f"local Dask workers did not start: {error}", "read with --jobs instead") from None
        with started:
            yield started


def _client(distributed: Any, address: Any, limits: Limits) -> Any:
    try:
        return distributed.Client(address, timeout=CONNECT_SECONDS, set_as_default=False)
    except (OSError, TimeoutError, ValueError):
        raise RunError(
            f"no Dask scheduler answers at {address}", "start one with `dask scheduler`, or read with --cluster local"
        ) from None


def _slurm(limits: Limits) -> Any:
    try:
        import dask_jobqueue
    except ImportError:
        raise _uninstalled("dask-jobqueue") from None
    jobqueue: Any = dask_jobqueue
    try:
        started = jobqueue.SLURMCluster(**{"processes": 1, "cores": 1, "memory": "8GiB", **limits.slurm})
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(
            f"SLURM workers cannot be configured: {error}", "set [tool.dptune.cluster.slurm] in pyproject.toml"
        ) from None
    started.scale(limits.workers)
    return started


def _uninstalled(package: str) -> UsageError:
    return UsageError(f"--cluster needs {package}, which is not installed", "pip install 'dptune[cluster]'")


def _wait(client: Any, where: str, limits: Limits) -> None:
    """Wait for a worker."""
    try:
        client.wait_for_workers(1, timeout=limits.wait_s)
    except TimeoutError:
        hint = {
            LOCAL: "read with --jobs instead",
            SLURM: "`squeue` shows the jobs; raise wait_s in [tool.dptune.cluster]",
        }.get(where, "start some: `dask worker ADDRESS --nthreads 1`")
        raise RunError(f"no Dask worker connected within {limits.wait_s:g} s", hint) from None


def _check_versions(found: Mapping[str, Any], warn: Callable[[str], None]) -> None:
    """Raise RunError where workers have another dptune; warn of other versions of what computes."""
    here = found["client"]["packages"]
    for worker, each in found["workers"].items():
        there = (each or {}).get("packages", {})
        if there.get("dptune") != here["dptune"]:
            raise RunError(
                f"worker {worker} has {_version(there.get('dptune'))}, this machine {_version(here['dptune'])}",
                "install the same version on all of them",
            )
        if other := [f"{name} {there.get(name)}, not {here[name]}" for name in _ALIKE if there.get(name) != here[name]]:
            warn(f"worker {worker} has {'; '.join(other)}: figures may differ in the last digit")
            return


def _version(installed: str | None) -> str:
    return f"dptune {installed}" if installed else "no dptune"


class _Workers(Executor):
    """Calls on the workers: a killed worker's calls go to another, those that last too long are tried again."""

    def __init__(self, client: Any, limits: Limits) -> None:
        self._executor = client.get_executor(pure=False, retries=limits.attempts - 1)
        self._limits = limits

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call it on a worker. The future raises LostError where none could finish it."""
        found: Future[T] = Future()
        on_worker = self._executor.submit(_within, self._limits.rank_timeout_s, fn, args, kwargs)
        on_worker.add_done_callback(lambda ended: _settle(ended, found, self._limits))
        found.add_done_callback(lambda ended: on_worker.cancel() if ended.cancelled() else None)
        return found


def _settle(ended: Future[T], found: Future[T], limits: Limits) -> None:
    from distributed.scheduler import KilledWorker

    if found.cancelled() or not found.set_running_or_notify_cancel():
        return
    try:
        found.set_result(ended.result())
    except TimeoutError:
        tried = f"tried {limits.attempts} times" if limits.attempts > 1 else "tried once"
        found.set_exception(LostError(f"it took longer than {limits.rank_timeout_s:g} s to read, {tried}"))
    except KilledWorker:
        found.set_exception(LostError("each worker that read it was killed, most likely because it ran out of memory"))
    except CancelledError:
        found.set_exception(LostError("the scheduler lost it"))
    except Exception as error:
        found.set_exception(error)


def _within(seconds: float, call: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> T:
    """What a call returns, on a worker; raises TimeoutError where it takes longer. A call that hangs is left alone."""
    found: Future[T] = Future()

    def run() -> None:
        try:
            found.set_result(call(*args, **kwargs))
        except BaseException as error:
            found.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return found.result(timeout=seconds)
