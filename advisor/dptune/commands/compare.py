"""Show what changed between two runs, or two sets of runs, and why.

A and B are run folders of `dptune profile`, a trace, a folder or a quoted glob of the traces of one run, a report
written by `dptune report --format json`, or a recording in dptune-runs by its name (`dptune history` lists them). A
commit means all recordings at it. A is before, B is after: a positive difference means that B takes longer.

Two runs of the same script differ by chance, on a busy machine by 5 % and more. With one run per side the difference
is shown and the verdict is inconclusive. A verdict needs at least four runs per side, separated by --, recorded in
random order: if all of A came before all of B, no verdict is given. The test compares one time per run (exact
Wilcoxon-Mann-Whitney, two-sided, at most 5 % false positives).

If a class of time is known in some runs only, for example waiting for input where a DataLoader was recorded, it is
merged with the class that contains it in the others, and the report says why. Untraced step times can be compared
without traced steps.

Runs on different devices, numbers of ranks, torch versions or batch sizes are not comparable: that is an error, unless
--anyway asks for the difference without a verdict.

With --script, both sides run here, in separate processes and random order, until the verdict is clear: two commits,
two folders, or two commands. Each runs in a copy of its folder. Trials are kept in dptune-runs/compared/; after Ctrl-C
the same command continues there.

The exit status is 0 whatever the verdict, and 2 if the runs are not comparable or cannot be read.

examples:
  dptune compare before after
  dptune compare a1 a2 a3 a4 -- b1 b2 b3 b4
  dptune compare 1f3870be274f 8a51c3d07e92
  dptune compare --script 'train.py --epochs 1' main HEAD --nproc-per-node 2
  dptune compare --script 'train.py --workers 0' --script 'train.py --workers 4'
  dptune compare baseline.json 2026-11-20T23-31-08-train --format json
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from dptune.commands.shared.engine import cluster_options, engine_of
from dptune.commands.shared.parsing import BETWEEN, Parser
from dptune.commands.shared.reading import reading_options
from dptune.commands.shared.recordings import resolved
from dptune.commands.shared.repeating import refuse_without_script, repeated, repeating_arguments
from dptune.errors import RunError, UsageError
from dptune.present import terminal

if TYPE_CHECKING:
    from dptune.compare.result import Comparison, Condition
    from dptune.knobs import Value


def arguments(parser: Parser) -> None:
    """Declare the options."""
    parser.keeps_between = True
    parser.usage = f"{parser.prog} [options] A B\n       {parser.prog} [options] A1 A2 ... -- B1 B2 ..."
    parser.add_argument(
        "runs",
        nargs="*",
        metavar="RUN",
        help="run folder, traces of one run, JSON report, or a recording by name or commit",
    )
    parser.add_argument("--anyway", action="store_true", help="show the difference even if the runs are not comparable")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="what to print (default: text)")
    reading_options(parser)
    cluster_options(parser)
    words = "command to run in A and in B (two commits or folders); given twice, without A and B: two commands"
    repeating_arguments(parser, words)


def run(args: argparse.Namespace) -> int:
    """Print the comparison."""
    if args.script:
        return repeated(args)
    refuse_without_script(args)
    from dptune.commands.shared.reading import read_run
    from dptune.compare.headline import build_comparison
    from dptune.compare.sides import Sides

    a, b = sides(args.runs)
    named = dict.fromkeys([*a, *b])
    with engine_of(args) as engine:
        read = {name: read_run(name, engine, advised=False) for name in named}
    found = Sides([read[name] for name in a], [read[name] for name in b])
    comparison = build_comparison(found)
    if not args.anyway:
        refuse(comparison)
    sys.stdout.write(_text(comparison) if args.format == "text" else _json(comparison))
    return 0


def sides(names: list[str]) -> tuple[list[str], list[str]]:
    """The paths of the runs of A and of B. Raises UsageError if it is not clear which run is on which side."""
    if names.count(BETWEEN) > 1:
        raise UsageError("more than two sides: -- is given more than once", "compare two sides at a time")
    if BETWEEN in names:
        at = names.index(BETWEEN)
        a, b = names[:at], names[at + 1 :]
        if not a or not b:
            raise UsageError(f"no run {'before' if not a else 'after'} the --", "name runs before and after it")
    elif len(names) == 2:
        a, b = names[:1], names[1:]
    else:
        raise UsageError(
            f"give two runs, or two sides separated by --; got {len(names)}",
            "dptune compare A B, or: dptune compare A1 A2 ... -- B1 B2 ...",
        )
    a, b = resolved(a), resolved(b)
    for side in (a, b):
        twice = next((name for name in side if side.count(name) > 1), None)
        if twice:
            raise UsageError(f"{twice} is named twice on one side", "name each run once per side")
    both = next((name for name in a if name in b), None)
    if both:
        raise UsageError(f"{both} is named on both sides", "name each run once")
    return a, b


def refuse(comparison: Comparison, hint: str = "--anyway shows the difference without a verdict") -> None:
    """Raise RunError where the runs are not comparable."""
    apart = [condition for condition in comparison.compared.conditions if condition.differs]
    if apart:
        what = "; ".join(map(_apart, apart))
        raise RunError(f"the runs are not comparable: {what}", hint)


def _apart(condition: Condition) -> str:
    def words(values: list[Value]) -> str:
        return " and ".join(map(str, values)) or "not known"

    return f"{condition.name} {words(condition.a)} in A, {words(condition.b)} in B"


def _json(comparison: Comparison) -> str:
    from dptune.present.machine import json

    return json.text(comparison)


def _text(comparison: Comparison) -> str:
    from dptune.present.ink import paint
    from dptune.present.sections.comparison import page

    return paint(page(comparison, terminal.width(sys.stdout)), terminal.colours(sys.stdout))
