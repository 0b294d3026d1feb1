"""Record a few steps of an unmodified training script.

Instead of `python train.py ARGS`, run `dptune profile train.py ARGS`; everything after the script is the script's own.
dptune counts optimizer steps: it times some without the profiler, records some lightly and some in detail, then ends
the script. Nothing in the script changes, and its exit status is returned.

examples:
  dptune profile train.py --epochs 1
  dptune profile --nproc-per-node 2 train.py
  dptune profile -m my_package.train --config small.yaml
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    where = parser.add_argument_group("where it runs")
    where.add_argument(
        "--nproc-per-node", type=_positive, default=1, metavar="N", help="start N ranks through torchrun (default: 1)"
    )
    where.add_argument("--python", metavar="PATH", help="a Python that has torch (default: the active environment's)")
    where.add_argument(
        "--run-dir", type=Path, metavar="DIR", help="new folder for the recording (default: dptune-runs/)"
    )
    steps = parser.add_argument_group("how much is recorded, in optimizer steps")
    for name, default, text in (
        ("warmup", 5, "steps let pass first"),
        ("unprofiled", 20, "steps timed without the profiler"),
        ("lean", 5, "steps traced with names and times"),
        ("rich", 3, "steps traced with shapes, stacks and memory"),
    ):
        steps.add_argument(f"--{name}", type=_count, default=default, metavar="N", help=f"{text} (default: {default})")
    end = parser.add_argument_group("when it ends")
    end.add_argument("--continue", dest="keep_going", action="store_true", help="let the script run on to its own end")
    end.add_argument(
        "--first-step-timeout",
        type=_seconds,
        default=600.0,
        metavar="S",
        help="give up when no optimizer step came within S seconds (default: 600)",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress line")
    parser.add_argument("-m", dest="module", action="store_true", help="run a module, as `python -m` does")
    parser.add_argument("script", metavar="train.py", help="the script, or with -m the module")
    parser.add_argument("script_arguments", nargs=argparse.REMAINDER, metavar="...", help="its own arguments")


def run(args: argparse.Namespace) -> int:
    """Record, say where the recording is and what to do next; the script's own exit status."""
    from dptune.capture import interpreter, launch, recording
    from dptune.runfile.record import Schedule

    script = launch.Script(args.script, tuple(args.script_arguments), args.module)
    options = recording.Options(
        processes=args.nproc_per_node,
        schedule=Schedule(args.warmup, args.unprofiled, args.lean, args.rich),
        run_dir=args.run_dir,
        end_when_full=not args.keep_going,
        first_step_limit_s=args.first_step_timeout,
        quiet=args.quiet,
    )
    recording.check_script(script)
    made = recording.record(script, interpreter.choose(args.python), options)
    for line in recording.epilogue(made):
        print(f"dptune: {line}", file=sys.stderr)
    return made.exit_status


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {number}")
    return number


def _count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"cannot be negative: {number}")
    return number


def _seconds(text: str) -> float:
    number = float(text)
    if not number > 0:
        raise argparse.ArgumentTypeError(f"must be above 0, not {text}")
    return number
