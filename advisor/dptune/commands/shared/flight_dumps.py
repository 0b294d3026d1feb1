"""Dumps of the flight recorder among the paths of a command line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dptune.errors import TraceError, UsageError

if TYPE_CHECKING:
    from dptune.measured.flight import FlightFigures
    from dptune.measured.inspector import InspectorFigures
    from dptune.trace.run import Run


def split(paths: Sequence[str]) -> tuple[list[Path], list[str]]:
    """The dumps, and the other paths. A folder of dumps alone is no other path."""
    from dptune.trace.flight.dump import is_dump

    dumps: list[Path] = []
    others: list[str] = []
    for given in paths:
        path = Path(given)
        if "://" in given or not path.exists():
            others.append(given)
            continue
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        found = [file for file in files if is_dump(file)]
        dumps += found
        if not found or any(file.suffix in (".json", ".gz") for file in files if file not in found):
            others.append(given)
    return dumps, others


def figures(dumps: Sequence[Path], run: Run | None = None) -> FlightFigures:
    """Of dumps of different ranks of one job; unreadable ones are named. `run`: traces of the same job."""
    from dptune.measure.flight import flight_figures, traced_durations
    from dptune.trace.flight.dump import Dump, read_dump

    read: dict[int, Dump] = {}
    failed: list[TraceError] = []
    for path in dumps:
        try:
            dump = read_dump(path)
        except TraceError as error:
            failed.append(error)
            continue
        if dump.rank in read:
            first = read[dump.rank].source
            raise UsageError(f"two dumps of rank {dump.rank}: {first} and {path}", "name the dumps of one moment")
        read[dump.rank] = dump
    if not read:
        raise failed[0]
    found = flight_figures([read[rank] for rank in sorted(read)], None if run is None else traced_durations(run))
    return found.model_copy(update={"findings": [*(error.message for error in failed), *found.findings]})


def show(found: FlightFigures | InspectorFigures, args: argparse.Namespace, alone: bool) -> None:
    """Print them, as text or as JSON; `alone`: nothing is printed before."""
    from dptune.measured.flight import FlightFigures
    from dptune.present import terminal
    from dptune.present.ink import paint
    from dptune.present.sections.flight import flight
    from dptune.present.sections.inspector import inspector

    if args.format == "json":
        text = found.model_dump_json(indent=1) + "\n"
    else:
        width = terminal.width(sys.stdout, args.width or 80 if args.output else args.width)
        lines = list(flight(found, width) if isinstance(found, FlightFigures) else inspector(found, width))
        lines = lines[1:] if alone and not lines[0] else lines
        text = paint(lines, not args.output and terminal.colours(sys.stdout))
    if args.output is None:
        sys.stdout.write(text)
    else:
        args.output.write_text(text, encoding="utf-8", errors="backslashreplace")


def with_report(report_json: str, found: FlightFigures) -> str:
    """One JSON object of the report of traces, `report`, and the figures of dumps, `flight`."""
    return f'{{\n"report": {report_json.rstrip()},\n"flight": {found.model_dump_json(indent=1)}\n}}\n'


def check_format(args: argparse.Namespace) -> None:
    """Raises UsageError for a format that dumps are not shown in."""
    if args.format in ("html", "tui"):
        raise UsageError(f"dumps and logs of collectives cannot be shown as {args.format}", "use --format text or json")
