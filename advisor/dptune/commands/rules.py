"""List rules, knobs and figures, or explain a rule.

A rule looks for one problem in a run. `list` shows every installed rule from every rule pack; `explain` shows what a
rule measures, why it costs time, what to change, and its thresholds; `knobs` lists settings that recommendations name
and `dptune profile --set` changes; `figures` lists what rules can read.

examples:
  dptune rules list
  dptune rules list --format json
  dptune rules explain DP102
  dptune rules knobs
  dptune rules figures wait
"""

from __future__ import annotations

import argparse
import json
import sys

from dptune.present import terminal


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="list|explain|knobs|figures")
    listing = actions.add_parser("list", help="list installed rules", description="List installed rules.")
    listing.add_argument("--format", choices=("text", "json"), default="text", help="what to print (default: text)")
    explain = actions.add_parser("explain", help="one rule", description="Explain what a rule measures and what to do.")
    explain.add_argument("code", metavar="CODE", help="the rule's code or name, for example DP102")
    knobs = "list knobs: settings that can be changed from outside"
    actions.add_parser("knobs", help=knobs, description=f"{knobs.capitalize()}.")
    figures = "list figures that rules can read"
    shown = actions.add_parser("figures", help=figures, description=f"{figures.capitalize()}.")
    shown.add_argument(
        "word", nargs="?", default="", metavar="WORD", help="only those with this text in name or description"
    )


def run(args: argparse.Namespace) -> int:
    """Print the list or the explanation."""
    from dptune import config
    from dptune.advise import packs
    from dptune.present.ink import paint
    from dptune.present.sections import rulebook

    width, colour = terminal.width(sys.stdout), terminal.colours(sys.stdout)
    if args.action == "knobs":
        sys.stdout.write(paint(rulebook.knobs(width), colour))
        return 0
    if args.action == "figures":
        sys.stdout.write(paint(rulebook.figures(args.word, width), colour))
        return 0
    if args.action == "explain":
        sys.stdout.write(paint(rulebook.page_of(args.code)(width), colour))
        return 0
    settings, survey = config.load(), packs.survey()
    rules = [(loaded.rule, loaded.pack) for loaded in survey.rules]
    if args.format == "json":
        sys.stdout.write(json.dumps([rulebook.record(*rule_and_pack) for rule_and_pack in rules], indent=2) + "\n")
    else:
        running = {rule.code for rule, _ in rules if settings.runs(rule)}
        sys.stdout.write(paint(rulebook.listed(rules, running, width), colour))
    if survey.problems:
        from dptune.present.visible import visible

        for problem in survey.problems:
            print(f"dptune: warning: {visible(problem)}", file=sys.stderr)
    return 0
