"""Performance gate for CI: fail on findings, budgets or regressions.

Without PATH, the latest recording in ./dptune-runs is checked. It fails on findings of a given impact and confidence,
on a budget of [tool.dptune.budget] that is exceeded, and on a slowdown against a baseline. High impact is at least
15 % of a step, medium 5 %, low 2 %.

With --baseline, PATHs and baseline are runs: run folders, reports written by `dptune report --format json`, or names or
commits of recordings in dptune-runs (`dptune history` lists both). A commit means all recordings at it; an existing
path, for example `..`, takes precedence. A verdict needs at least four runs on each side, recorded in random order.
Findings that the baseline has too do not fail the gate. With --script, both sides run here instead, a commit or a
folder each, as in `dptune compare --script`, until a slowdown beyond --max-regression is found or excluded; findings
and budgets apply to recordings only. If the result is inconclusive, --inconclusive decides (default: pass).

Accepted findings are listed by fingerprint in a file: --accept FILE reads it, --update-accepted adds to it whatever
would fail the gate.

The exit status is 0 if the gate passes, 1 if it fails, and 2 if the run cannot be read or is not reliable enough for a
verdict: such a run never passes.

Budgets are upper limits of figures: step_ms, us_per_sample, exposed_communication_share, idle_share,
loader_wait_share, peak_memory_gb.

examples:
  dptune check
  dptune check 2026-11-20T23-31-08-train
  dptune check traces/ --fail-on high --format json
  dptune check b1 b2 b3 b4 --baseline a1 a2 a3 a4 --max-regression time_per_sample=5%
  dptune check b1 b2 b3 b4 --baseline 1f3870be274f
  dptune check --script 'train.py --steps 200' --baseline main --fail-on never
  dptune check dptune-runs/2026-11-20T23-31-08-train --output github=- --output junit=dptune.xml
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from dptune.commands.shared.accepted import accept, accepted_impacts
from dptune.commands.shared.amounts import impact_and_confidence
from dptune.commands.shared.engine import cluster_options, engine_of
from dptune.commands.shared.gate_formats import FORMATS, OUTPUT, outputs, write
from dptune.commands.shared.proving import how_to_go_on
from dptune.commands.shared.reading import (
    gpu_option,
    is_report,
    latest,
    read_run,
    reading_options,
    report_of,
    root_of,
)
from dptune.commands.shared.recordings import RUN_HELP, resolved, resolved_singly
from dptune.commands.shared.repeating import prove_sources, refuse_without_script, repeating_arguments
from dptune.commands.shared.sweeps import links_option
from dptune.errors import RunError, UsageError
from dptune.runfile.paths import RUNS

if TYPE_CHECKING:
    from dptune.advice import Report
    from dptune.check.gate import Terms
    from dptune.check.result import Gate
    from dptune.prove.result import Proof

FAIL_ON = "IMPACT[:CONFIDENCE]"
_SHARE = re.compile(r"(?:time_per_sample=)?(?P<number>\d{1,4}(?:\.\d{1,6})?)(?P<percent> ?%)?")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("paths", nargs="*", metavar="PATH", help=RUN_HELP)
    parser.add_argument(
        "--fail-on",
        type=impact_and_confidence,
        default=("medium", "medium"),
        metavar=FAIL_ON,
        help="fail on findings of this impact or more: low, medium, high, or never; with :CONFIDENCE, of this "
        "confidence or more (default: medium:medium)",
    )
    parser.add_argument("--accept", type=Path, metavar="FILE", help="accepted findings, by fingerprint")
    parser.add_argument(
        "--update-accepted", action="store_true", help="add findings that would fail the gate to the --accept file"
    )
    against = parser.add_argument_group("against a baseline")
    against.add_argument(
        "--baseline",
        nargs="+",
        action="extend",
        metavar="RUN",
        default=[],
        help=f"runs: paths, or names or commits of recordings in {RUNS}; with --script one commit or folder",
    )
    against.add_argument(
        "--max-regression",
        type=_share,
        metavar="time_per_sample=5%",
        help="allowed slowdown per sample, or per step where samples are unknown (default: 5%%)",
    )
    against.add_argument(
        "--inconclusive",
        choices=("pass", "fail"),
        default="pass",
        help="result when the comparison is inconclusive (default: pass)",
    )
    output = parser.add_argument_group("output")
    output.add_argument("--format", choices=FORMATS, default="text", help="what to print (default: text)")
    words = "write the result to a file in that format; - is stdout, instead of --format; repeatable"
    output.add_argument("--output", action="append", default=[], metavar=OUTPUT, help=words)
    reading_options(parser)
    cluster_options(parser)
    links_option(parser)
    gpu_option(parser)
    repeating_arguments(
        parser, "command to run, in the commit or folder of the baseline and in that of PATH (default: .)"
    )


def run(args: argparse.Namespace) -> int:
    """Print the outcome and what tripped the gate; the exit status says it too."""
    from dptune.check.gate import decided
    from dptune.check.result import PassedOver

    if not args.script:
        named = resolved(args.paths) if args.baseline else resolved_singly(args.paths)
        args.paths = named or [str(latest(RUNS))]
    targets = outputs(args)
    terms = _terms(args)
    gate, reports = _gate(args, terms)
    if args.update_accepted:
        accept(args.accept, gate)
        over = [*gate.passed_over, *(PassedOver(advice=advice, why="accepted") for advice in gate.tripped)]
        gate = decided(gate.model_copy(update={"tripped": [], "passed_over": over}))
    started = Path() if args.script else root_of(args.paths)
    for form, target in targets:
        write(form, gate, target, started, reports)
    return {"passed": 0, "inconclusive": 0, "failed": 1, "unjudgeable": 2}[gate.outcome]


def _gate(args: argparse.Namespace, terms: Terms) -> tuple[Gate, list[Report]]:
    """The result, and the reports of the runs that were judged: none for trials."""
    from dptune.check.gate import judge, of_comparison

    if not args.baseline:
        if args.script:
            raise UsageError("--script runs two commits or folders", "name the one before with --baseline")
        report = _one_report(args)
        return judge([report], terms), [report]
    if args.script:
        return _of_trials(args, terms, _trials(args, terms)), []
    from dptune.commands.compare import refuse, sides
    from dptune.commands.shared.parsing import BETWEEN
    from dptune.compare.headline import build_comparison
    from dptune.compare.sides import Sides

    a, b = sides([*resolved(args.baseline, args.paths), BETWEEN, *args.paths])
    with engine_of(args) as engine:
        read = {name: read_run(name, engine, links=args.links, gpu=args.gpu) for name in dict.fromkeys([*a, *b])}
    comparison = build_comparison(Sides([read[name] for name in a], [read[name] for name in b]))
    refuse(comparison, "record the baseline again, in the same way as these runs")
    now, before = ([read[name].report for name in side] for side in (b, a))
    if _know_samples(now) != _know_samples(before):
        words = "samples per step are known for one side only, so steps cannot be compared"
        raise RunError(words, "record the baseline again, in the same way as these runs")
    gate = judge(now, terms, before, of_comparison(comparison, terms.max_regression))
    differing = {fact.name for fact in comparison.compared.known("facts") or ()}
    other = ["the baseline ran another command"] if "command" in differing else []
    return gate.model_copy(update={"reservations": [*gate.reservations, *other]}), now


def _one_report(args: argparse.Namespace) -> Report:
    """Of the traces that are named together, or that was written before."""
    twice = next((name for name in args.paths if args.paths.count(name) > 1), None)
    if twice:
        raise UsageError(f"{twice} is named twice", "name each once")
    with engine_of(args) as engine:
        if len(args.paths) == 1 and is_report(Path(args.paths[0])):
            return read_run(args.paths[0], engine, links=args.links, gpu=args.gpu).report
        return report_of(args.paths, links=args.links, gpu=args.gpu, engine=engine)


def _know_samples(side: list[Report]) -> bool:
    return any(report.measured.known("samples_per_step") is not None for report in side)


def _trials(args: argparse.Namespace, terms: Terms) -> Proof:
    """Both sides, run: the baseline as A, and what is checked, else the folder as it is, as B."""
    if len(args.baseline) != 1 or len(args.paths) > 1 or len(args.script) != 1:
        raise UsageError(
            "--script takes one command, one --baseline and at most one other commit or folder",
            "dptune check --script 'train.py' --baseline main",
        )
    runs = [args.baseline[0], args.paths[0] if args.paths else "."]
    return prove_sources(args, runs, terms.max_regression)


def _of_trials(args: argparse.Namespace, terms: Terms, proof: Proof) -> Gate:
    """Trials have no advice: the baseline alone is judged. Raises KeyboardInterrupt where Ctrl-C ended them."""
    from dptune import __version__
    from dptune.advice import Trust
    from dptune.check.gate import decided, of_proof
    from dptune.check.result import Gate
    from dptune.prove import judging

    how_to_go_on(proof)
    command = shlex.join(proof.b.command)
    gate = Gate(
        dptune=__version__,
        outcome="passed",
        runs=[f"{args.paths[0] if args.paths else '.'} against {args.baseline[0]}: {command}"],
        fail_on="never",
        tripped=[],
        regression=of_proof(proof, terms.max_regression, judging.at_most(proof.trials)),
        inconclusive_fails=terms.inconclusive_fails,
        trust=Trust(level="sound", findings=[]),
        reservations=list(_reservations(terms, proof)),
    )
    return decided(gate)


def _reservations(terms: Terms, proof: Proof) -> Iterator[str]:
    """What trials leave open."""
    if terms.budgets:
        yield "budgets apply to recordings only and were not checked"
    failed = sum(trial.status != "ran" for trial in proof.trials)
    if failed:
        yield f"{failed} of {len(proof.trials)} trials did not run to the end"
    if proof.learning.outcome == "other":
        yield "training results differ"
    for name, why in {
        name: why for recorded_trial in proof.trials for name, why in recorded_trial.without_effect.items()
    }.items():
        yield f"{name} did not take effect ({why})"


def _terms(args: argparse.Namespace) -> Terms:
    from dptune import config
    from dptune.check.gate import BUDGETS, Terms

    settings = config.load()
    settings.check_budgets(BUDGETS)
    if args.update_accepted and args.accept is None:
        raise UsageError("--update-accepted needs a file", "--accept dptune-accepted.json")
    if args.max_regression is not None and not args.baseline:
        raise UsageError("--max-regression needs something to compare with", "name runs with --baseline")
    if args.accept is not None and args.script:
        raise UsageError("--accept cannot be combined with --script: trials produce no findings", "leave it out")
    if not args.script:
        refuse_without_script(args)
    limit = 0.05 if args.max_regression is None else args.max_regression
    impact, confidence = args.fail_on
    return Terms(impact, confidence, accepted_impacts(args), settings.budget, limit, args.inconclusive == "fail")


def _share(text: str) -> float:
    found = _SHARE.fullmatch(text)
    share = float(found["number"]) / (100 if found["percent"] else 1) if found else None
    if found is None or share is None or (not found["percent"] and share >= 1):
        raise argparse.ArgumentTypeError(f"must be like time_per_sample=5%, not '{text:.40}'")
    return share
