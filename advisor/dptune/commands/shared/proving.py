"""What every verb does that runs trials: progress lines while they run, and what came of them."""

from __future__ import annotations

import argparse
import re
import sys
import zlib
from typing import TYPE_CHECKING

from dptune.commands.shared.amounts import count, positive, seconds_or_none
from dptune.present import terminal
from dptune.present.visible import visible

if TYPE_CHECKING:
    from dptune.prove.engine import Show
    from dptune.prove.result import Proof
    from dptune.prove.task import Task

_LONGEST = 80
_ABSOLUTE = re.compile(r"(?:^|=)(?:/|~|[A-Za-z]:\\)")


def trial_arguments(group: argparse._ArgumentGroup) -> None:
    """Declare how long a trial is."""
    group.add_argument("--warmup", type=count, default=5, metavar="N", help="warm-up steps to skip (default: 5)")
    group.add_argument(
        "--steps", type=positive, default=30, metavar="N", help="time at least N steps per trial (default: 30)"
    )
    words = "time steps for at least S seconds per trial (default: 3; shorter trials measure machine noise)"
    group.add_argument("--seconds", type=seconds_or_none, default=3.0, metavar="S", help=words)


def progress(quiet: bool) -> Show:
    """A line on stderr before each trial."""
    from dptune.present.sections.proof import line_of

    def show(proof: Proof, what: str) -> None:
        if not quiet and what:
            print(f"dptune: {visible(line_of(proof, what))}", file=sys.stderr, flush=True)

    return show


def folder_name(name: str) -> str:
    """The name of a folder for what is proven, and for nothing else."""
    plain = re.sub(r"[^A-Za-z0-9.=,+-]+", "_", name).replace(",_", ",").lstrip(".")
    number = zlib.crc32(name.encode(errors="surrogateescape"))
    return plain if plain == name and len(plain) <= _LONGEST else f"{plain[:_LONGEST]}-{number:08x}"


def caution(task: Task, quiet: bool) -> None:
    """Say on stderr how many trials it takes, where they run, and that the script's own files may be written over."""
    if quiet:
        return
    from dptune.prove.sequential import LOOKS

    counts = [count for count in LOOKS if count <= task.most] or [task.most]
    many = f"{', '.join(map(str, counts[:-1]))} or {counts[-1]}" if counts[1:] else str(counts[0])
    print(f"dptune: decides after {many} trials per side, within {task.budget_s:g} s (--time-limit)", file=sys.stderr)
    copied = {side: path for side, path in task.sources.items() if path is not None}
    same = len(set(copied.values())) == 1
    folders = str(*set(copied.values())) if same else " and ".join(task.side(side).name for side in copied)
    if not folders:
        words = f"trials run in {task.a.directory} itself: the script overwrites its checkpoints and outputs"
    else:
        outside = dict.fromkeys(word for side in (task.a, task.b) for word in side.command if _ABSOLUTE.search(word))
        named = f", as to {' and '.join(outside)}" if outside else ""
        words = (
            f"trials run in a copy of {folders}; what the script writes by an absolute path{named}, for example "
            f"a checkpoint, is written there, not in the copy"
        )
    print(f"dptune: {visible(words)}", file=sys.stderr)


def show(proof: Proof, form: str, predicted: str = "") -> int:
    """Print it, with what was predicted; 1 where a side cannot run. Raises KeyboardInterrupt where Ctrl-C ended it."""
    from dptune.present.ink import paint
    from dptune.present.sections.proof import page

    if form == "json":
        sys.stdout.write(proof.model_dump_json(indent=1) + "\n")
    else:
        sys.stdout.write(paint(page(proof, terminal.width(sys.stdout), predicted), terminal.colours(sys.stdout)))
    how_to_go_on(proof)
    return 1 if proof.ended == "cannot run" else 0


def how_to_go_on(proof: Proof) -> None:
    """Say so where trials ended before it was decided. Raises KeyboardInterrupt where Ctrl-C ended them."""
    if proof.ended == "interrupted":
        print("dptune: the same command continues with these trials", file=sys.stderr)
        raise KeyboardInterrupt
    if proof.ended == "out of time":
        words = "out of time: the same command with a longer --time-limit continues with these trials"
        print(f"dptune: {words}", file=sys.stderr)
