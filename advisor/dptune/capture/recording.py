"""A recording from start to end: run the script, watch it, and say in run.json how it ended."""

from __future__ import annotations

import contextlib
import datetime
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from dptune import __version__
from dptune.capture import launch, processes
from dptune.capture.injected.plan import Plan
from dptune.capture.interpreter import Interpreter
from dptune.capture.progress import ProgressLine, Said, listen
from dptune.errors import CaptureError
from dptune.runfile import form, paths
from dptune.runfile.facts import Facts
from dptune.runfile.record import Ending, RunRecord, Schedule
from dptune.runfile.redaction import redacted_command

_LOOK_EVERY_S = 0.2


@dataclass(frozen=True)
class Options:
    """What the user asked of a recording. `first_step_limit_s`: how long the first optimizer step may take to come."""

    processes: int = 1
    schedule: Schedule = field(default_factory=Schedule)
    run_dir: Path | None = None
    end_when_full: bool = True
    first_step_limit_s: float = 600.0
    quiet: bool = False


@dataclass(frozen=True)
class Recording:
    """What came of it: the folder, how it ended, the ranks that were recorded, and the status to end with."""

    folder: Path
    ending: Ending
    ranks: list[int]
    complete: bool = False
    steps: int = 0
    ended_by_us: bool = False

    @property
    def exit_status(self) -> int:
        """The script's own status; 2 where it ended well but left nothing to read."""
        status = self.ending.exit_status or 0
        return status if status or self.ranks else 2


def check_script(script: launch.Script) -> None:
    """Raise CaptureError where the script is not there."""
    if not script.module and not Path(script.target).is_file():
        raise CaptureError(f"no such script: {script.target}", "dptune profile [options] train.py [its arguments]")


def record(script: launch.Script, interpreter: Interpreter, options: Options) -> Recording:
    """Record the script. Raises CaptureError where it cannot be started or never makes an optimizer step."""
    folder = _new_folder(options.run_dir, script.name)
    run = RunRecord(
        dptune=__version__,
        recorded=datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        command=redacted_command(["python", *script.words]),
        python=interpreter.path,
        working_directory=str(Path.cwd()),
        nproc_per_node=options.processes,
        schedule=options.schedule,
    )
    form.write(folder / paths.RUN_JSON, run)
    plan = Plan(str(folder.resolve()), os.getpid(), options.schedule, options.end_when_full)
    try:
        run.ending = _run_and_watch(launch.command(interpreter.path, script, options.processes), plan, options)
    finally:
        shutil.rmtree(folder / paths.LIVE, ignore_errors=True)
        facts = _conclude(run, folder)
    if run.ending.how == "timed-out":
        raise CaptureError(run.ending.note, "raise --first-step-timeout if the script needs longer to start")
    complete = bool(facts) and all(one.ended == "complete" for one in facts)
    steps = max((one.steps for one in facts), default=0)
    return Recording(folder, run.ending, [one.rank for one in facts], complete, steps, options.end_when_full)


def epilogue(made: Recording) -> list[str]:
    """What to tell the user at the end: what happened, where it is, what to do next.

    Raises CaptureError, with the script's own status, where nothing was recorded.
    """
    ending, ranks = made.ending, len(made.ranks)
    status = f"exit status {ending.exit_status}"
    if not ranks:
        if ending.how == "no-steps":
            what = "the script ended without a step of a torch optimizer: nothing was recorded"
            raise CaptureError(what, "dptune counts calls of an optimizer's step(); does this script train?")
        what = "was interrupted" if ending.how == "interrupted" else f"ended with {status}"
        hint = "what the script itself said stands above; run.json in " + str(made.folder) + " keeps how it ended"
        raise CaptureError(f"the script {what} before its first optimizer step", hint, made.exit_status)
    if made.complete:
        told = [f"the script ended with {status} after the recording was complete"] if ending.how == "failed" else []
        if made.ended_by_us and ending.how == "complete":
            steps = f"after {made.steps} optimizer steps"
            told = [f"the script was ended there, {steps}; with --continue it runs to its own end"]
    else:
        told = [
            {
                "script-ended": "the script ended before every window was full: the recording is partial",
                "interrupted": "the script was interrupted: the recording is partial",
            }.get(ending.how, f"the script failed ({status}): the recording is partial")
        ]
    counted = f"{ranks} {'rank' if ranks == 1 else 'ranks'} recorded in {made.folder}"
    return [*told, counted, f"next: dptune report {made.folder}"]


def _new_folder(asked: Path | None, name: str) -> Path:
    if asked is not None:
        if asked.exists() and (not asked.is_dir() or any(asked.iterdir())):
            raise CaptureError(
                f"--run-dir: {asked} is not empty", "name a new folder: a recording is never overwritten"
            )
        folder = asked
    else:
        stamp = datetime.datetime.now().strftime("%Y-%m-%dT%H-%M-%S")
        folder = Path("dptune-runs") / f"{stamp}-{name}"
        if folder.exists():
            folder = folder.with_name(f"{folder.name}-{os.getpid()}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CaptureError(
            f"cannot make the run folder {folder}: {error.strerror}", "--run-dir names another"
        ) from None
    return folder


class _Stopped(Exception):  # noqa: N818 - not an error: somebody asked
    """SIGTERM or SIGHUP reached dptune itself."""


def _run_and_watch(command: list[str], plan: Plan, options: Options) -> Ending:
    progress = ProgressLine(plan.schedule.total_steps, options.quiet)
    with _heeding_signals():
        try:
            process = subprocess.Popen(command, env=launch.environment(plan))
        except OSError as error:
            raise CaptureError(f"cannot start {command[0]}: {error.strerror}") from None
        try:
            interrupted, timed_out = _watch(process, plan, options, progress)
        except _Stopped as stopped:
            progress.clear()
            processes.end(process)
            return Ending("interrupted", 128 + int(stopped.args[0]), note=f"signal {stopped.args[0]} to dptune")
    progress.clear()
    if timed_out:
        return Ending("timed-out", note=timed_out)
    status = process.returncode
    status = 128 - status if status < 0 else status
    if interrupted and status:
        return Ending("interrupted", 130)
    return Ending("script-ended" if status == 0 else "failed", status)


def _watch(process: subprocess.Popen[bytes], plan: Plan, options: Options, progress: ProgressLine) -> tuple[bool, str]:
    """Until the script has ended: whether it was interrupted, and who was where if no first step came in time."""
    begun, interrupted, stepped = time.monotonic(), False, False
    while True:
        try:
            process.wait(_LOOK_EVERY_S)
            return interrupted, ""
        except subprocess.TimeoutExpired:
            said = listen(plan.path)
            progress.show(said)
            stepped = stepped or any(one.step for one in said)
            if not stepped and time.monotonic() - begun > options.first_step_limit_s:
                where = _nobody_stepped(said, options)
                processes.end(process)
                return interrupted, where
        except KeyboardInterrupt:
            # A terminal sends it to the script as well, which ends in its own way; a second one is for us to enforce.
            if interrupted:
                processes.end(process)
            else:
                print("dptune: interrupted; waiting for the script to end (once more ends it)", file=sys.stderr)
            interrupted = True


@contextlib.contextmanager
def _heeding_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end the script too: a recording never leaves training behind."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise _Stopped(number)

    heeded = [number for name in ("SIGTERM", "SIGHUP") if (number := getattr(signal, name, None)) is not None]
    if threading.current_thread() is not threading.main_thread():
        heeded = []
    before = {number: signal.signal(number, stop) for number in heeded}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _nobody_stepped(said: list[Said], options: Options) -> str:
    known = {one.rank: one.where for one in said}
    places = [
        f"rank {rank}: {(known[rank] or 'outside the script') if rank in known else 'torch is not imported yet'}"
        for rank in range(options.processes)
    ]
    return f"no optimizer step within {options.first_step_limit_s:g} s ({'; '.join(places)})"


def _conclude(run: RunRecord, folder: Path) -> list[Facts]:
    """Complete run.json from what the ranks left, and point `latest` at the folder; their facts."""
    facts = []
    for path in sorted(folder.glob("rank-*.facts.json")):
        with contextlib.suppress(ValueError, OSError):
            facts.append(form.read(path, Facts))
    if run.ending.how == "recording":
        run.ending = Ending("failed", note="the launcher ended before the script did")
    if facts:
        run.world_size = facts[0].world_size
        if all(one.ended == "complete" for one in facts) and run.ending.how == "script-ended":
            run.ending.how = "complete"
    elif run.ending.how == "script-ended":
        run.ending.how = "no-steps"
    form.write(folder / paths.RUN_JSON, run)
    if facts:
        (folder.parent / paths.LATEST).write_text(folder.name + "\n", encoding="utf-8")
    return facts
