"""Write chosen ranks to one Perfetto file, on one clock.

RUN is a run folder of `dptune profile`, or traces. The file shows each rank as a process with its threads and streams,
aligned to one clock as in the report; arrows lead from the last rank to arrive at a collective to the ranks that waited
for it. Further tracks show the steps, why each device is idle, and what the recommendations refer to. Names and times
are those of the traces, to the nanosecond. Open it at https://ui.perfetto.dev, or with Perfetto's trace_processor.

--ranks late chooses the ranks that arrive late at collectives and the earliest one, for comparison. `dptune export`
needs the extra `perfetto`.

examples:
  dptune export traces/ -o run.pftrace
  dptune export dptune-runs/latest --ranks 0,1,17 -o run.pftrace
  dptune export traces/ --ranks late -o late.pftrace --force
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dptune.commands.shared.recordings import RUN_HELP, resolved_singly
from dptune.errors import RunError, UsageError

if TYPE_CHECKING:
    from dptune.measured import Measured

CHOSEN_RANKS = "RANKS|late|all"
RANK_CHOICES = ("late", "all")
_MOST_LATE = 8  # ranks that `late` chooses at most: more do not fit on a screen
_LATE_SHARE = 0.5  # of the largest median lag: ranks with less are not called late


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    from dptune.commands.shared.reading import reading_options

    parser.add_argument("paths", nargs="*", metavar="RUN", help=RUN_HELP)
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", required=True, help="the file to write")
    words = "which ranks: numbers and ranges like 0,1,64-71, late, or all (default: all)"
    parser.add_argument("--ranks", default="all", metavar=CHOSEN_RANKS, help=words)
    parser.add_argument("--force", action="store_true", help="replace the file if it exists")
    reading_options(parser)


def run(args: argparse.Namespace) -> int:
    """Write the file."""
    from dptune.capture import ranks
    from dptune.commands.shared.reading import run_and_report
    from dptune.measure.one_timeline import one_timeline
    from dptune.present.perfetto.file import write
    from dptune.present.perfetto.packets import builder
    from dptune.runfile.ranks import spans

    paths = resolved_singly(args.paths)
    wanted = None if args.ranks in RANK_CHOICES else ranks.parse(args.ranks)
    builder()
    _check_output(args.output, args.force)
    found, report = run_and_report(paths, args.jobs, cached=not args.no_cache)
    traced = {rank.rank for rank in found.ranks}
    if not traced:
        raise RunError("the run has no trace to export", "record one with `dptune profile train.py`")
    chosen = traced if args.ranks == "all" else late_ranks(report.measured) if wanted is None else set(wanted)
    if absent := sorted(chosen - traced):
        raise UsageError(f"--ranks: no trace of rank {absent[0]}", f"there are traces of {spans(traced)}")
    timeline = one_timeline(found, report.measured, chosen)
    partial = args.output.with_name(f"{args.output.name}.{os.getpid()}.part")
    try:
        with partial.open("xb") as file:
            events = write(timeline, report.advice, file)
        os.replace(partial, args.output)  # noqa: PTH105 - atomic on every platform
    except OSError as error:
        raise UsageError(f"cannot write to {args.output}: {error.strerror or error}", "name another file") from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
    which = f"rank {spans(chosen)}" if len(chosen) == 1 else f"ranks {spans(chosen)}"
    print(f"dptune: wrote {args.output}: {which}, {events:,} events, {len(timeline.arrows):,} arrows", file=sys.stderr)
    for finding in found.findings:
        if finding.level != "info":
            print(f"dptune: partial data: {finding.text}", file=sys.stderr)
    return 0


def late_ranks(measured: Measured) -> set[int]:
    """The ranks that arrive late, at most eight, and the earliest. Raises RunError where none does.

    Of eight ranks or more those of the outliers, else those with half of the largest median lag or more.
    """
    outliers = measured.known("outliers")
    if outliers is not None and outliers.late:
        late = [rank for place in outliers.late for rank in place.ranks][:_MOST_LATE]
        return {*late, min(outliers.ranks, key=lambda found: (found.lag_ns, found.rank)).rank}
    lags = {
        rank.rank: arrival.lag_ns for rank in measured.ranks if (arrival := rank.known("arrival")) and arrival.steps
    }
    latest = sorted(lags, key=lambda rank: (-lags[rank], rank))
    if len(lags) < 2 or not lags[latest[0]]:
        raise RunError("no rank is known to arrive late", "name ranks: --ranks 0,1")
    late = [rank for rank in latest if lags[rank] >= _LATE_SHARE * lags[latest[0]]][:_MOST_LATE]
    return {*late, min(lags, key=lambda rank: (lags[rank], rank))}


def _check_output(output: Path, force: bool) -> None:
    """Fail before the minutes of reading, not after."""
    if output.is_dir():
        raise UsageError(f"cannot write to {output}: it is a folder", "name a file in it")
    if not output.parent.is_dir():
        raise UsageError(f"cannot write to {output}: the folder {output.parent} does not exist", "create it first")
    if output.exists() and not force:
        raise UsageError(f"{output} exists", "replace it with --force, or name another file")
