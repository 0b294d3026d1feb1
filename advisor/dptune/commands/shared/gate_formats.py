"""Formats of the result of `dptune check`, and the files they are written to.

Each format but text is a module of present/machine with a function `text`, from a Gate to a string; Markdown also has
the first screen of the report on each run.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from dptune.commands.shared.patchable import can_patch
from dptune.errors import UsageError
from dptune.present import terminal

if TYPE_CHECKING:
    from dptune.advice import Change, Report
    from dptune.check.result import Gate

FORMATS = ("text", "json", "github", "junit", "markdown")
OUTPUT = "FORMAT=FILE"
_IN_REPOSITORY = ("github", "junit")  # lines are named by their path from the top of the repository


def outputs(args: argparse.Namespace) -> list[tuple[str, Path | None]]:
    """Formats and the files they go to, None for stdout."""
    found: list[tuple[str, Path | None]] = []
    for output in args.output:
        form, _, name = output.partition("=")
        if form not in FORMATS or not name:
            raise UsageError(f"--output {output} is not {OUTPUT}", f"a format is one of {', '.join(FORMATS)}")
        target = None if name == "-" else Path(name)
        if target is not None and (target.is_dir() or not target.parent.is_dir()):
            raise UsageError(f"cannot write to {target}", "name a file in an existing folder")
        place = target and target.resolve()
        if any(place == (other and other.resolve()) for _, other in found):
            raise UsageError(f"two outputs go to {name}", "name another file for one of them")
        read = [*args.paths, *args.baseline, *([args.accept] if args.accept else [])]
        if any(place == Path(other).resolve() for other in read):
            raise UsageError(f"{target} is also an input", "name another file to write to")
        found.append((form, target))
    if not any(target is None for _, target in found):
        found.insert(0, (args.format, None))
    elif args.format != "text":
        raise UsageError("--format and an --output to - both go to stdout", "leave one of them out")
    return found


def write(form: str, gate: Gate, target: Path | None, started: Path, reports: Sequence[Report] = ()) -> None:
    """Write the result to a file, or to stdout without one.

    `started` is the folder that lines of the script are relative to; `reports` are those on the runs that were judged.
    """
    text = _formatted(form, gate, target, started, reports)
    if target is None:
        sys.stdout.write(text)
        return
    try:
        target.write_text(text, encoding="utf-8", errors="backslashreplace", newline="")
    except OSError as error:
        raise UsageError(f"cannot write to {target}: {error.strerror or error}", "name another file") from error
    print(f"dptune: wrote {target}", file=sys.stderr)


def _formatted(form: str, gate: Gate, target: Path | None, started: Path, reports: Sequence[Report]) -> str:
    if form == "text":
        from dptune.present.ink import paint
        from dptune.present.sections import gate as page

        width = terminal.width(sys.stdout) if target is None else 80
        return paint(page.page(gate, width), terminal.colours(sys.stdout) if target is None else False)
    if form == "markdown":
        from dptune.present.machine import markdown

        shown = reports[: markdown.MOST_SCREENS]
        return markdown.text(gate, [(report, can_patch(report, started)) for report in shown])
    if form in _IN_REPOSITORY:
        gate = _from_the_top(gate, started)
    text: str = import_module(f"dptune.present.machine.{form}").text(gate)
    return text


def _from_the_top(gate: Gate, started: Path) -> Gate:
    """The user's lines as a job of GitHub looks them up: by their path from the top of the repository.

    `started` is the folder that they are relative to, where the script ran; else they may be in the one that we are in.
    """
    workspace = os.environ.get("GITHUB_WORKSPACE")
    if not workspace:
        return gate
    top = Path(workspace).resolve()

    def moved(change: Change) -> Change:
        if change.at is None:
            return change
        places = [(folder / change.at.file).resolve() for folder in (started, Path())]
        there = [place for place in places if place.is_relative_to(top)]
        found = next((path for path in there if path.is_file()), there[-1] if there else None)
        if found is None:
            return change
        file = found.relative_to(top).as_posix()
        return change.model_copy(update={"at": change.at.model_copy(update={"file": file})})

    tripped = [
        advice.model_copy(update={"changes": [moved(change) for change in advice.changes]}) for advice in gate.tripped
    ]
    return gate.model_copy(update={"tripped": tripped})
