"""Fail when a run has advice of a given severity: for CI.

The exit status is 0 when nothing is that severe, 1 when something is, and 2 when the run cannot be judged or read:
a run that cannot be judged never passes.

A severity is what the problem costs: an error costs at least 15 % of a step, a warning 5 %, a note 2 %.

examples:
  dptune check dptune-runs/2026-11-20T23-31-08-train
  dptune check traces/ --fail-on error --format json
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from dptune.commands.reading import reading_options, report_of
from dptune.commands.sweeps import links_option
from dptune.present import terminal

if TYPE_CHECKING:
    from dptune.advice import Advice, Report

STATUS = {"passed": 0, "failed": 1, "unjudgeable": 2}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("paths", nargs="+", metavar="PATH", help="run folder or traces")
    parser.add_argument(
        "--fail-on",
        choices=("note", "warning", "error"),
        default="warning",
        help="the least severity (default: warning)",
    )
    parser.add_argument("--format", choices=("text", "json"), default="text", help="what to print (default: text)")
    reading_options(parser)
    links_option(parser)


def run(args: argparse.Namespace) -> int:
    """Print the outcome and what tripped the gate; the exit status says it too."""
    from dptune.advice import SEVERITIES

    report = report_of(args.paths, args.jobs, cached=not args.no_cache, links=args.links)
    least = SEVERITIES.index(args.fail_on)
    tripped = [one for one in report.advice if SEVERITIES.index(one.severity) >= least]
    outcome = "unjudgeable" if report.trust.level == "unjudgeable" else "failed" if tripped else "passed"
    if args.format == "json":
        sys.stdout.write(_json(outcome, args.fail_on, tripped, report))
    else:
        sys.stdout.write(_text(outcome, args.fail_on, tripped, report))
    return STATUS[outcome]


def _json(outcome: str, fail_on: str, tripped: list[Advice], report: Report) -> str:
    said = {
        "schema_version": report.schema_version,
        "outcome": outcome,
        "fail_on": fail_on,
        "tripped": [one.model_dump(mode="json") for one in tripped],
        "trust": report.trust.model_dump(mode="json"),
    }
    return json.dumps(said, indent=2, allow_nan=False) + "\n"


def _text(outcome: str, fail_on: str, tripped: list[Advice], report: Report) -> str:
    from dptune.present import gate
    from dptune.present.ink import paint

    lines = gate.page(outcome, fail_on, tripped, report, terminal.width(sys.stdout))
    return paint(lines, terminal.colours(sys.stdout))
