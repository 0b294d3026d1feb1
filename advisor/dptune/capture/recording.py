"""A recording from start to end: check that it can be made, make the folder, run the script there."""

from __future__ import annotations

import datetime
import os
import socket
from pathlib import Path

from dptune import __version__
from dptune.capture import disk, folder, job, ranks, session
from dptune.capture.injected.record.plan import VARIABLE
from dptune.capture.launch import Launch
from dptune.capture.options import Options
from dptune.capture.session import Recording
from dptune.capture.signals import Signals
from dptune.errors import CaptureError, UsageError
from dptune.runfile import origin
from dptune.runfile.commit import checked_out
from dptune.runfile.record import RunRecord
from dptune.runfile.redaction import redacted_command, redacted_settings


def begin(started: Launch, options: Options) -> RunRecord:
    """run.json as it stands at the beginning. Raises where what is asked for cannot be, before anything is made."""
    _check(options)
    ranks.check(options.ranks, started.world_size)
    torchrun = started.torchrun
    return RunRecord(
        dptune=__version__,
        recorded=datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        command=redacted_command(started.shown),
        python=started.interpreter.path if started.interpreter else "",
        torch=(started.interpreter.torch if started.interpreter else None) or "",
        working_directory=str(Path.cwd()),
        commit=checked_out(),
        origin=origin.here(),
        launched_by=started.by,
        world_size=started.world_size,
        nproc_per_node=(torchrun.nproc_per_node or 1) if torchrun else 1,
        nnodes=(torchrun.nnodes or 1) if torchrun else 1,
        ranks=None if options.ranks is None else list(options.ranks),
        hosts=[socket.gethostname()],
        schedule=options.schedule,
        settings=redacted_settings(options.settings),
        tokens_per_step=options.tokens,
        samples_per_step=options.samples,
        cpu_peak=options.cpu_peak,
    )


def record(started: Launch, options: Options) -> Recording:
    """Record. Raises CaptureError where it cannot be started."""
    run = begin(started, options)
    seat, key = seating(started, options)
    disk.check(folder.intended(options.run_dir, started.name, key), options.schedule, local_ranks(started, options))
    if seat is None:
        run_folder = folder.own(options.run_dir, started.name)
    else:
        run_folder = folder.shared(options.run_dir, started.name, run, seat, key)
    with Signals() as signals:
        return session.Session(started, options, run_folder, run).record(signals)


def _check(options: Options) -> None:
    if os.environ.get(VARIABLE):
        hint = (
            f"after `dptune profile --env`: `unset {VARIABLE}`; in a script that dptune records: remove the dptune call"
        )
        raise CaptureError("this process is already being recorded", hint)
    schedule = options.schedule
    if not (schedule.untraced or schedule.light or schedule.detailed):
        what = "nothing would be recorded: all windows have 0 steps"
        raise UsageError(what, "set their numbers of steps with --untraced, --light and --detailed")


def seating(started: Launch, options: Options) -> tuple[str | None, str | None]:
    """This launcher's seat in a folder that several share, and what all of them call the job; None, None alone.

    Raises CaptureError where several nodes have nothing to call it by.
    """
    if started.job is not None:
        return f"rank-{started.job.rank:05d}", started.job.name
    torchrun = started.torchrun
    if torchrun is None or not torchrun.several_nodes:
        return None, None
    named = torchrun.rdzv_id if torchrun.rdzv_id != "none" else None
    key = job.named(named) if named else job.slurm_name(os.environ)
    if key is None and options.run_dir is None:
        raise CaptureError(
            "several nodes need the same run folder name",
            "give each the same --run-dir, or the same --rdzv-id (a Slurm job sets it)",
        )
    return torchrun.node or f"node-{os.environ.get('SLURM_NODEID') or job.hostname()}", key


def local_ranks(started: Launch, options: Options) -> int:
    """How many ranks this launcher is expected to record."""
    if options.ranks is None:
        return started.local_ranks
    if started.ranks:
        return len(set(options.ranks) & set(started.ranks))
    return min(len(options.ranks), started.local_ranks)
