"""`dptune compare --script`: two commits, folders or commands, run in turn by the engine that proves changes."""

from __future__ import annotations

import argparse
import contextlib
import shlex
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dptune.commands.amounts import positive, seconds
from dptune.commands.launching import torchrun_arguments, torchrun_of
from dptune.commands.proving import caution, folder_name, progress, show, trial_arguments
from dptune.commands.setting import parsed
from dptune.errors import RunError, UsageError

if TYPE_CHECKING:
    from dptune.capture.launch import Launch
    from dptune.proof import Side
    from dptune.prove.engine import Task

COMPARED = "compared"


def repeating_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    group = parser.add_argument_group("run both sides, in turn and shuffled, instead of reading recordings")
    words = (
        "what to run in A and in B, which are then two commits or two folders; twice, and without A and B: two commands"
    )
    group.add_argument("--script", action="append", default=[], metavar="'train.py ...'", help=words)
    group.add_argument("--repeat", type=positive, default=18, metavar="N", help="trials a side at most (default: 18)")
    trial_arguments(group)
    group.add_argument("--time-limit", type=seconds, default=3600.0, metavar="S", help="for all trials (default: 3600)")
    group.add_argument(
        "--set", dest="settings", action="append", default=[], metavar="KNOB=VALUE", help="on both sides"
    )
    group.add_argument("--python", metavar="PATH", help="a Python that has torch (default: the active environment's)")
    group.add_argument("-q", "--quiet", action="store_true", help="no progress lines")
    torchrun_arguments(parser)


def repeated(args: argparse.Namespace) -> int:
    """Run both sides, and print what came of it."""
    from dptune.prove import engine
    from dptune.runfile.paths import RUNS

    with _sources(args) as (a, b):
        task = _task(args, a, b)
        caution(task, args.quiet)
        folder = RUNS / COMPARED / folder_name(f"{task.a.name}-{task.b.name}-{' '.join(task.a.command)}")
        proof = engine.prove(task, folder, progress(args.quiet))
    return show(proof, args.format)


@dataclass(frozen=True)
class _Source:
    """One side: what the user calls it, the folder it runs in, and what it is for certain: that folder, or a commit."""

    name: str
    folder: Path
    identity: str


@contextlib.contextmanager
def _sources(args: argparse.Namespace) -> Iterator[tuple[_Source, _Source]]:
    """Both sides; commits are checked out beside the repository's own files, and removed again."""
    here = Path.cwd()
    if len(args.script) == 2 and not args.runs:
        a, b = (_Source(script, here, str(here)) for script in args.script)
        yield a, b
        return
    if len(args.script) != 1 or len(args.runs) != 2:
        raise UsageError(
            "--script takes two commits or folders and one command, or two commands",
            "dptune compare --script 'train.py' main HEAD, or: dptune compare --script 'train.py' --script 'train2.py'",
        )
    with contextlib.ExitStack() as opened:
        a, b = (opened.enter_context(_source(name)) for name in args.runs)
        yield a, b


@contextlib.contextmanager
def _source(name: str) -> Iterator[_Source]:
    if Path(name).is_dir():
        yield _Source(name, Path(name), str(Path(name).resolve()))
        return
    found = _git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
    if found.returncode:
        raise RunError(f"{name} is neither a folder nor a commit of this repository", "see `git log`")
    commit, prefix = found.stdout.strip(), _git("rev-parse", "--show-prefix").stdout.strip()
    with tempfile.TemporaryDirectory(prefix="dptune-commit-") as made:
        tree = Path(made) / "tree"
        added = _git("worktree", "add", "--detach", "--quiet", str(tree), commit)
        if added.returncode:
            raise RunError(f"{name} cannot be checked out: {added.stderr.strip()}")
        try:
            yield _Source(name, tree / prefix, commit)
        finally:
            _git("worktree", "remove", "--force", str(tree))


def _git(*words: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(["git", *words], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise RunError("comparing commits needs git", "name two folders instead") from None


def _task(args: argparse.Namespace, a: _Source, b: _Source) -> Task:
    from dptune.prove.engine import Task
    from dptune.prove.trial import Bounds

    scripts = args.script if len(args.script) == 2 else args.script * 2
    settings = parsed(args.settings)
    sides: list[tuple[Side, Launch]] = [_side(args, own, script) for own, script in zip((a, b), scripts, strict=True)]
    return Task(
        a=sides[0][0],
        b=sides[1][0],
        launches={"A": sides[0][1], "B": sides[1][1]},
        settings={"A": settings, "B": settings},
        sources={"A": a.folder, "B": b.folder},
        numerics="changes",
        bounds=Bounds(args.warmup, args.steps, args.seconds),
        budget_s=args.time_limit,
        most=args.repeat,
    )


def _side(args: argparse.Namespace, own: _Source, script: str) -> tuple[Side, Launch]:
    from dptune.capture import interpreter, launch
    from dptune.proof import Side
    from dptune.runfile.redaction import redacted_command, redacted_settings

    words = shlex.split(script)
    if not words:
        raise UsageError("--script names nothing to run", "like --script 'train.py --epochs 1'")
    chosen = interpreter.choose(args.python)
    with contextlib.chdir(own.folder):
        what = launch.Script.of(words)
        what.check()
        asked = torchrun_of(args)
        started = launch.under_torchrun(what, chosen, asked) if asked.asked else launch.alone(what, chosen)
    shown = redacted_command(started.shown)
    side = Side(name=own.name, settings=redacted_settings(parsed(args.settings)), command=shown, directory=own.identity)
    return side, started
