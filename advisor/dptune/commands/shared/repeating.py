"""`dptune compare --script`: two commits, folders or commands, run in turn by the engine that proves changes."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dptune.commands.shared.amounts import positive, seconds
from dptune.commands.shared.proving import caution, folder_name, progress, show, trial_arguments
from dptune.commands.shared.setting import parsed
from dptune.commands.shared.torchrun_options import torchrun_arguments, torchrun_of
from dptune.errors import CaptureError, RunError, UsageError
from dptune.present.visible import visible

if TYPE_CHECKING:
    from dptune.capture.launch import Launch, Script
    from dptune.prove.identity import Files
    from dptune.prove.result import Proof, Side
    from dptune.prove.task import Task

_CHECKOUT = "dptune-commit-"
_OWNED = re.compile(rf"{_CHECKOUT}(?P<pid>\d{{1,9}})@(?P<host>.+)-\w+")
_MOST_NAMES = 500
_MOST_NAMED = 3
# Where Python takes packages from, and which of them are installed as a copy, so that they belong to neither side.
_ASK = """
import importlib.util, json, os, sys, sysconfig
first, names = json.loads(sys.argv[1])
if sys.path[:1] == [""]:
    sys.path[0] = first
own = [os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib")]
found = {}
for name in names:
    try:
        spec = importlib.util.find_spec(name)
        place = os.path.realpath(spec.origin if spec.has_location else list(spec.submodule_search_locations)[0])
    except Exception:
        continue
    installed = bool({"site-packages", "dist-packages"} & set(place.split(os.sep)))
    if installed or not place.startswith(tuple(own)):
        found[name] = os.path.dirname(place) if os.path.basename(place) == "__init__.py" else place, installed
print(json.dumps(found))
"""


def repeating_arguments(parser: argparse.ArgumentParser, script: str) -> None:
    """Declare the options; `script` is the help of --script."""
    group = parser.add_argument_group("run both sides in random order instead of reading recordings")
    group.add_argument("--script", action="append", default=[], metavar="'train.py ...'", help=script)
    group.add_argument(
        "--repeat",
        type=positive,
        default=35,
        metavar="N",
        help="maximum number of trials per side, 6 to 35 (default: 35)",
    )
    trial_arguments(group)
    group.add_argument(
        "--time-limit",
        type=seconds,
        default=3600.0,
        metavar="S",
        help="time limit for all trials in seconds (default: 3600)",
    )
    group.add_argument(
        "--set", dest="settings", action="append", default=[], metavar="KNOB=VALUE", help="on both sides"
    )
    group.add_argument("--python", metavar="PATH", help="Python with torch (default: that of the active environment)")
    group.add_argument("-q", "--quiet", action="store_true", help="do not print progress")
    torchrun_arguments(parser)


def repeated(args: argparse.Namespace) -> int:
    """Run both sides, and print what came of it."""
    return show(prove_sources(args, args.runs), args.format)


def refuse_without_script(args: argparse.Namespace) -> None:
    """Raise UsageError where an option of trials is given, of which there are none."""
    alone = argparse.ArgumentParser(add_help=False)
    repeating_arguments(alone, "")
    usual = {name: value for name, value in vars(alone.parse_args([])).items() if name != "quiet"}
    other = [name for name, value in usual.items() if getattr(args, name) != value]
    if other:
        option = "set" if other[0] == "settings" else other[0].replace("_", "-")
        raise UsageError(f"--{option} is only valid with --script", "name it: --script 'train.py'")


def prove_sources(args: argparse.Namespace, runs: Sequence[str], limit: float | None = None) -> Proof:
    """Run both sides, which `runs` names, or two commands; what was made is kept, and gone on with.

    With a `limit` they are run until it is clear whether B takes longer by a larger share.
    """
    from dptune.prove import engine
    from dptune.runfile import json_files
    from dptune.runfile.paths import COMPARED, RUNS

    most = _most(args)
    with _sources(args, runs) as (a, b):
        task = replace(_task(args, a, b), most=most, limit=limit)
        caution(task, args.quiet)
        kept = RUNS / COMPARED
        if not (kept / ".gitignore").exists():
            with contextlib.suppress(OSError):  # which is said where trials are written
                kept.mkdir(parents=True, exist_ok=True)
                json_files.leave_out_of_git(kept)
        folder = kept / folder_name(f"{task.a.name}-{task.b.name}-{' '.join(task.a.command)}")
        return engine.prove(task, folder, progress(args.quiet))


def _most(args: argparse.Namespace) -> int:
    """Trials a side: those after the last look would tell nothing."""
    from dptune.prove.sequential import LOOKS

    asked, looks = args.repeat, f"{', '.join(map(str, LOOKS[:-1]))} and {LOOKS[-1]}"
    if not LOOKS[0] <= asked <= LOOKS[-1]:
        raise UsageError(
            f"--repeat {asked}: verdicts are possible after {looks} trials per side", "leave it out for up to 35"
        )
    most = max(look for look in LOOKS if look <= asked)
    if most < asked and not args.quiet:
        print(f"dptune: verdicts are possible after {looks} trials per side: at most {most} will run", file=sys.stderr)
    return most


@dataclass(frozen=True)
class _Source:
    """One side: what the user calls it, the folder it runs in, and what it is for certain: that folder, or a commit.

    `top` is the folder above which nothing belongs to it.
    """

    name: str
    folder: Path
    identity: str
    top: Path


@contextlib.contextmanager
def _sources(args: argparse.Namespace, runs: Sequence[str]) -> Iterator[tuple[_Source, _Source]]:
    """Both sides; commits are checked out beside the repository's own files, and removed again."""
    here = Path.cwd()
    if len(args.script) == 2 and not runs:
        a, b = (_Source(script, here, str(here), here) for script in args.script)
        yield a, b
        return
    if len(args.script) != 1 or len(runs) != 2:
        raise UsageError(
            "--script needs two commits or folders and one command, or two commands",
            "dptune compare --script 'train.py' main HEAD, or: dptune compare --script 'train.py' --script 'train2.py'",
        )
    with contextlib.ExitStack() as opened:
        a, b = (opened.enter_context(_source(name)) for name in runs)
        yield a, b


@contextlib.contextmanager
def _source(name: str) -> Iterator[_Source]:
    if os.path.isdir(name):  # noqa: PTH112 - a commit's name may be longer than a path can be
        folder = Path(name)
        yield _Source(name, folder, str(folder.resolve()), folder.resolve())
        return
    found = _git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
    if found.returncode:
        raise RunError(f"{name} is neither a folder nor a commit in this repository", "see `git log`")
    commit, prefix = found.stdout.strip(), _git("rev-parse", "--show-prefix").stdout.strip()
    _clear_left()
    with tempfile.TemporaryDirectory(prefix=f"{_CHECKOUT}{os.getpid()}@{platform.node()}-") as made:
        tree = Path(made).resolve() / "tree"
        try:
            added = _git("worktree", "add", "--detach", "--quiet", str(tree), commit)
            if added.returncode:
                raise RunError(f"{name} cannot be checked out: {added.stderr.strip()}")
            if not (tree / prefix).is_dir():
                raise RunError(f"{name} has no folder {prefix}", "run it in a folder that both commits have")
            yield _Source(name, tree / prefix, commit, tree)
        finally:
            _remove(tree)


def _clear_left() -> None:
    """Remove the checkouts of dptune's processes on this machine that were killed."""
    listed = _git("worktree", "list", "--porcelain").stdout.splitlines()
    for tree in (Path(line.removeprefix("worktree ")) for line in listed if line.startswith("worktree ")):
        if _is_left(tree.parent):  # its folder may be gone already
            _remove(tree)
    for folder in Path(tempfile.gettempdir()).glob(f"{_CHECKOUT}*"):
        with contextlib.suppress(OSError):
            if _is_left(folder) and (not hasattr(os, "geteuid") or folder.lstat().st_uid == os.geteuid()):
                shutil.rmtree(folder, ignore_errors=True)


def _is_left(checkout: Path) -> bool:
    named = _OWNED.fullmatch(checkout.name)
    if named is None or named["host"] != platform.node() or os.name != "posix":
        return False
    try:
        os.kill(int(named["pid"]), 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        return False
    return False


def _remove(tree: Path) -> None:
    """Remove a checkout, also one that was not finished."""
    _git("worktree", "remove", "--force", "--force", str(tree))


def _git(*words: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(["git", *words], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise RunError("comparing commits needs git", "name two folders instead") from None


def _task(args: argparse.Namespace, a: _Source, b: _Source) -> Task:
    from dptune.prove.task import Task
    from dptune.prove.trial import Bounds

    scripts = args.script if len(args.script) == 2 else args.script * 2
    settings = parsed(args.settings)
    sides = [_side(args, source, script) for source, script in zip((a, b), scripts, strict=True)]
    if a.top != b.top:
        _warn_of_shared((a, b), [_script(script) for script in scripts], sides[0][1])
    return Task(
        a=sides[0][0],
        b=sides[1][0],
        launches={"A": sides[0][1], "B": sides[1][1]},
        code={"A": sides[0][2], "B": sides[1][2]},
        settings={"A": settings, "B": settings},
        sources={"A": a.folder, "B": b.folder},
        numerics="changes",
        bounds=Bounds(args.warmup, args.steps, args.seconds),
        budget_s=args.time_limit,
    )


def _side(args: argparse.Namespace, source: _Source, script: str) -> tuple[Side, Launch, Files]:
    from dptune.capture import interpreter, launch
    from dptune.prove import identity
    from dptune.prove.result import Side
    from dptune.runfile.paths import RUNS
    from dptune.runfile.redaction import redacted_command, redacted_settings

    what = _script(script)
    chosen = interpreter.choose(args.python)
    with contextlib.chdir(source.folder):
        try:
            what.check()
        except CaptureError as error:
            raise CaptureError(
                f"{source.name}: {error.message}", "--script is run in the folder of each side"
            ) from None
        asked = torchrun_of(args)
        started = launch.under_torchrun(what, chosen, asked) if asked.asked else launch.alone(what, chosen)
    shown, files = redacted_command(started.typed), identity.files(source.folder, started, RUNS)
    side = Side(
        name=source.name,
        settings=redacted_settings(parsed(args.settings)),
        command=shown,
        directory=source.identity,
        code=identity.digest(source.folder, started, files),
    )
    return side, started, files


def _script(text: str) -> Script:
    from dptune.capture.launch import Script

    try:
        words = shlex.split(text)
    except ValueError as error:
        why = str(error).lower()
        raise UsageError(f"--script {text} cannot be split into words: {why}", "close all quotes") from None
    if not words:
        raise UsageError("--script is empty", "like --script 'train.py --epochs 1'")
    return Script.of(words)


def _warn_of_shared(sides: tuple[_Source, _Source], scripts: list[Script], started: Launch) -> None:
    """Say on stderr which packages of a side Python takes from elsewhere, so that both sides may run the same."""
    python = started.interpreter.path if started.interpreter else sys.executable
    found: dict[str, list[str]] = {}
    for side, script in zip(sides, scripts, strict=True):
        first = side.folder.resolve() if script.module else (side.folder.resolve() / script.target).parent
        for name, (place, installed) in _places(python, first, _importable(side, first)).items():
            sources = (side.folder.resolve() / "src", side.top / "src")
            meant = not installed or any((source / name).is_dir() for source in sources)  # else another's of that name
            if meant and not Path(place).is_relative_to(side.top):
                found.setdefault(f"{name} from {place}", []).append(side.name)
    if found:
        names = list(dict.fromkeys(name for each in found.values() for name in each))
        more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
        words = (
            f"{' and '.join(names)} would import {', '.join(list(found)[:_MOST_NAMED])}{more}, not from the compared "
            f"code: it is installed (pip install) or on PYTHONPATH"
        )
        print(f"dptune: warning: {visible(words)}", file=sys.stderr)


def _importable(side: _Source, first: Path) -> list[str]:
    """Names of the packages and modules of a side."""
    folders = dict.fromkeys((first, side.folder.resolve(), side.top, side.folder.resolve() / "src", side.top / "src"))
    found = []
    for folder in folders:
        with contextlib.suppress(OSError):
            for path in folder.iterdir():
                package = folder.name == "src" and path.is_dir()
                if path.stem.isidentifier() and (package or path.suffix == ".py" or (path / "__init__.py").is_file()):
                    found.append(path.stem)
    return sorted(set(found))[:_MOST_NAMES]


def _places(python: str, first: Path, names: list[str]) -> dict[str, tuple[str, bool]]:
    """Where that Python takes them from, with the script's folder first, and whether they are installed as a copy."""
    words = [python, "-c", _ASK, json.dumps([str(first), names])]
    try:
        done = subprocess.run(words, cwd=os.sep, capture_output=True, text=True, timeout=60, check=True)
        return {
            name: (place, installed) for name, (place, installed) in json.loads(done.stdout.splitlines()[-1]).items()
        }
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return {}
