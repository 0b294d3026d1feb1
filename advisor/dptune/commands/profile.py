"""Record a few steps of an unmodified training script.

Instead of `python train.py ARGS`, run `dptune profile train.py ARGS`; everything after the script belongs to the
script. dptune counts optimizer steps: it times some untraced, traces some lightly and some in detail, then ends the
script. The script is not modified, and its exit status is returned.

examples:
  dptune profile train.py --epochs 1
  dptune profile --nproc-per-node 2 train.py
  dptune profile -m my_package.train --config small.yaml

with your own launcher, before or after dptune:
  dptune profile torchrun --nproc-per-node 2 train.py
  srun dptune profile --ranks 0,7 train.py

with a setting changed from outside:
  dptune profile --set ddp.bucket_cap_mb=1 --nproc-per-node 2 train.py

on several nodes, each with its own i; DIR may be shared or local:
  dptune profile --nnodes 2 --node-rank i --master-addr HOST --nproc-per-node 8 --run-dir DIR train.py

if dptune can neither start the launcher nor be started by it:
  eval "$(dptune profile --env)"; ./run_training.sh
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dptune.commands.shared.amounts import count, per_step, seconds, seconds_or_none
from dptune.commands.shared.launching import launch_of, script_arguments
from dptune.commands.shared.setting import setting_arguments, settings_of
from dptune.commands.shared.torchrun_options import torchrun_arguments, torchrun_of
from dptune.errors import UsageError

LIGHT, MOST_LIGHT = 5, 20  # traced steps, and how many where those vary too much for predictions
_NOT_ALL_RANKS = "--repeat restarts the script, which requires that dptune starts all ranks"

if TYPE_CHECKING:
    from dptune.capture.launch import Launch
    from dptune.capture.options import Options
    from dptune.capture.session import Recording
    from dptune.runfile.record import Schedule


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    where = parser.add_argument_group("where to run and record")
    where.add_argument("--python", metavar="PATH", help="Python with torch (default: that of the active environment)")
    where.add_argument(
        "-o", "--run-dir", type=Path, metavar="DIR", help="new folder for the recording (default: dptune-runs/)"
    )
    where.add_argument("--ranks", metavar="LIST", help="record only these ranks, e.g. 0,7,64-71 (default: all)")
    torchrun_arguments(parser)
    steps = parser.add_argument_group("what to record, in optimizer steps")
    for name, default, text in (
        ("warmup", 5, "warm-up steps to skip"),
        ("untraced", 20, "steps timed, not traced"),
        ("light", None, "steps traced with names and times"),
        ("detailed", 3, "steps traced with shapes, stacks, memory"),
    ):
        usual = str(default) if default is not None else f"{LIGHT}, up to {MOST_LIGHT} where ranks or GPUs vary"
        steps.add_argument(f"--{name}", type=count, default=default, metavar="N", help=f"{text} (default: {usual})")
    noise = "extra steps to measure the gradient noise scale, for the best batch size (40 without N)"
    steps.add_argument("--noise-scale", type=count, nargs="?", const=40, default=0, metavar="N", help=noise)
    words = "tokens per optimizer step over all ranks, kept in the recording for tokens per second in reports"
    steps.add_argument("--tokens-per-step", type=per_step, metavar="N", help=words)
    words = "samples per optimizer step over all ranks, kept in the recording: used where no DataLoader shows them"
    steps.add_argument("--samples-per-step", type=per_step, metavar="N", help=words)
    again = "run N more times and time untraced steps: predictions need the variation between processes"
    steps.add_argument("--repeat", type=count, default=0, metavar="N", help=again)
    off = "do not measure links between ranks after recording (default: measured if unknown, 10 s at most)"
    steps.add_argument("--no-links", dest="links", action="store_false", help=off)
    peak = "do not measure the peak of a CPU after the detailed window (0.3 s per dtype), which MFU refers to"
    steps.add_argument("--no-cpu-peak", dest="cpu_peak", action="store_false", help=peak)
    log = "have NCCL log how ranks are connected, into the run folder"
    steps.add_argument("--nccl-log", action="store_true", help=log)
    sync = "also record CUDA synchronization events in the light window: exact dependencies between streams"
    steps.add_argument("--sync-events", action="store_true", help=sync)
    window = "time limit of each window in seconds; 0: none (default: 60)"
    steps.add_argument("--window-time", type=seconds_or_none, default=60.0, metavar="S", help=window)
    end = parser.add_argument_group("when to stop")
    end.add_argument("--continue", dest="keep_going", action="store_true", help="let the script run to its end")
    first = "give up after S seconds without a first optimizer step, and show where each rank waits (default: 600)"
    end.add_argument("--first-step-timeout", type=seconds, default=600.0, metavar="S", help=first)
    stall = "the same for later steps (default: 1800)"
    end.add_argument("--stall-timeout", type=seconds, default=1800.0, metavar="S", help=stall)
    change = parser.add_argument_group("settings to change from outside")
    setting_arguments(change)
    instead = parser.add_argument_group("instead of recording")
    instead.add_argument("--dry-run", action="store_true", help="print what would be recorded; start nothing")
    instead.add_argument("--env", action="store_true", help="print environment variables that make any launcher record")
    parser.add_argument("-q", "--quiet", action="store_true", help="do not print progress")
    script_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Record, say where the recording is and what to do next; the script's own exit status."""
    from dptune.capture import dry_run, epilogue, recording
    from dptune.commands.shared import run_links

    options = _options(args)
    _doubt(options.schedule)
    if args.env:
        if args.repeat:
            raise UsageError(_NOT_ALL_RANKS, "record it several times, and use dptune compare")
        return _export(args, options)
    started = launch_of(args, "profile")
    if args.repeat:
        _refuse_to_repeat(started, options)
    if args.dry_run:
        print("\n".join([*dry_run.lines(started, options), *_outlined(args.repeat)]))
        return 0
    made = recording.record(started, options)
    outcome, cut = None, None
    try:
        if args.links and made.leads and not (made.interrupted or made.hung):
            outcome = run_links.find(made, started, quiet=args.quiet)
        if outcome is None or not outcome.interrupted:
            cut = _repeat(args, started, options, made)
    finally:
        if made.leads:
            with contextlib.suppress(OSError, ValueError):  # nobody reads it: the script's status stands
                for line in epilogue.lines(made, None if outcome is None else outcome.lines):
                    print(f"dptune: {line}", file=sys.stderr)
    if outcome is not None and outcome.interrupted:
        return made.own_status or run_links.INTERRUPTED
    if cut is not None and cut.interrupted:
        return cut.own_status or run_links.INTERRUPTED
    return made.exit_status


def _outlined(repeat: int) -> list[str]:
    return [f"{'repeats':12}{repeat} times, without the profiler: into repeats/ in the folder"] if repeat else []


def _refuse_to_repeat(started: Launch, options: Options) -> None:
    if started.job is not None or (started.torchrun is not None and started.torchrun.several_nodes):
        raise UsageError(_NOT_ALL_RANKS, "record it several times, and use dptune compare")
    if not options.schedule.untraced:
        raise UsageError("--repeat times untraced steps, and --untraced 0 asks for none")
    if not options.end_when_full:
        raise UsageError("--repeat restarts the script, and --continue would run it to its end each time")


def _repeat(args: argparse.Namespace, started: Launch, options: Options, made: Recording) -> Recording | None:
    """Run it again, if that was asked for and the recording is whole; the run that was cut short, if one was."""
    from dptune.capture import repeats
    from dptune.errors import CaptureError

    if not args.repeat or not made.complete or made.interrupted or made.hung:
        return None

    def show(line: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # nobody reads it
            print(f"dptune: {line}", file=sys.stderr, flush=True)

    if options.ranks is None and not repeats.whole(made):
        show(f"not repeated: {_NOT_ALL_RANKS}")
        return None
    try:
        cut = repeats.repeat(started, options, made.folder, args.repeat, (lambda line: None) if args.quiet else show)
    except CaptureError as error:
        show(f"not repeated: {error.message}")
        return None
    if cut is not None:
        what = "was interrupted" if cut.interrupted else f"ended differently ({cut.ending.how})"
        printed = f"{cut.folder}.txt has its output"
        counts = "its times still count" if cut.complete else "not counted"
        show(f"untraced repeat: the script {what}: {counts}; {printed}")
    return cut


def _doubt(schedule: Schedule) -> None:
    from dptune.runfile.record import LEAST_JUDGED_STEPS

    name, steps = ("--light", schedule.light) if schedule.light else ("--detailed", schedule.detailed)
    if 0 < steps < LEAST_JUDGED_STEPS:
        warning = f"{name} {steps}: a verdict needs {LEAST_JUDGED_STEPS} traced steps"
        with contextlib.suppress(OSError, ValueError):  # nobody reads it
            print(f"dptune: {warning}", file=sys.stderr)


def _options(args: argparse.Namespace) -> Options:
    from dptune.capture import ranks
    from dptune.capture.options import Options
    from dptune.capture.watch import Limits
    from dptune.runfile.record import Schedule

    return Options(
        schedule=Schedule(
            args.warmup,
            args.untraced,
            LIGHT if args.light is None else args.light,
            args.detailed,
            args.window_time,
            noise=args.noise_scale,
            sync_events=args.sync_events,
            light_most=MOST_LIGHT if args.light is None else 0,
        ),
        ranks=None if args.ranks is None else ranks.parse(args.ranks),
        run_dir=args.run_dir,
        end_when_full=not args.keep_going,
        limits=Limits(args.first_step_timeout, args.stall_timeout),
        quiet=args.quiet,
        settings=settings_of(args),
        nccl_log=args.nccl_log,
        cpu_peak=args.cpu_peak,
        tokens=args.tokens_per_step,
        samples=args.samples_per_step,
    )


def _export(args: argparse.Namespace, options: Options) -> int:
    from dptune.capture import dry_run, exports, interpreter, launch
    from dptune.errors import CaptureError

    if args.script is not None or torchrun_of(args).asked:
        given = args.script or torchrun_of(args).asked[0]
        raise UsageError(
            f"--env takes no script and no launcher's options: '{given}'",
            'eval "$(dptune profile --env)", then start the script as usual',
        )
    try:
        chosen = interpreter.choose(args.python)
    except CaptureError:
        if args.python is not None:
            raise
        chosen = None  # it may be found where the ranks run
    if args.dry_run:
        print("\n".join(dry_run.lines(launch.Launch("environment", (), (), "environment", chosen), options)))
        return 0
    folder, lines = exports.make(options, chosen)
    print("\n".join(lines))
    notice = f"torch scripts started from this shell are recorded in {folder.path} until `unset DPTUNE_CAPTURE`"
    print(f"dptune: {notice}", file=sys.stderr)
    return 0
