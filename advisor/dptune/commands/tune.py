"""Find the changes that make a script faster, by running them.

dptune records the script, or starts from a recording (--run). It tries recommended changes, the best predicted ones,
and settings that cannot be predicted. They race: each trial starts the script again in new processes, in random order,
with the changes kept so far. A change is kept if it is significantly faster; those unlikely to be faster are dropped
early. At the end the kept changes run against the original in new trials, and only that saving is reported. The chance
that any kept change has no effect is at most 5 % over the whole search.

Changes that may alter training results are tried with --numerics may-change only. Losses of the first steps are
compared: a change is dropped if the losses differ by more than its settings can explain.

Your files are not edited. Results are kept in RUN/tuned/ (or -o DIR): tuned.patch, report.html, report.txt and
tuning.json, with the command that applies the patch. Trials run in a copy of the script's directory, as in `dptune
verify`; a script that writes to an absolute path still writes there.

Ctrl-C keeps the results so far; --resume continues that search with its options. Put dptune's options before the
script.

The exit status is 0 whatever was found, and 1 if the script does not run.

examples:
  dptune tune train.py --epochs 1
  dptune tune --nproc-per-node 2 --time-limit 40m train.py
  dptune tune --run 2026-11-20T23-31-08-train --dry-run
  dptune tune --numerics may-change --skip loader.batch_size train.py
  dptune tune --resume --time-limit 1h
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dptune.commands.shared.amounts import seconds
from dptune.commands.shared.launching import launch_of, script_arguments
from dptune.commands.shared.torchrun_options import torchrun_arguments, torchrun_of
from dptune.errors import UsageError
from dptune.present import terminal
from dptune.present.visible import visible

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from dptune.advice import Report
    from dptune.capture.launch import Launch
    from dptune.knobs import Value
    from dptune.predicted import WhatIf
    from dptune.present.lines import Line
    from dptune.present.progress import Show as Bar
    from dptune.prove.result import Proof
    from dptune.runfile.facts import Facts
    from dptune.runfile.record import RunRecord
    from dptune.tune.candidate import Candidate
    from dptune.tune.candidates import Left
    from dptune.tune.options import Options
    from dptune.tune.result import Plan, Tuning
    from dptune.tune.search import Moment
    from dptune.tune.session import Request, Shows

_ONE_HOST = "trials run on this host only: start dptune tune once, and let it start the ranks"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    from dptune.commands.shared.proving import trial_arguments

    where = parser.add_argument_group("what to tune")
    words = "start from this recording, a run folder or its name in dptune-runs, instead of recording"
    where.add_argument("--run", dest="recording", metavar="RUN", help=words)
    words = "continue the latest search of RUN (default: of the latest recording)"
    where.add_argument("--resume", action="store_true", help=words)
    words = "new folder for the results (default: RUN/tuned)"
    where.add_argument("-o", "--output", type=Path, metavar="DIR", help=words)
    where.add_argument("--python", metavar="PATH", help="Python with torch (default: that of the active environment)")
    words = "run a recording from another user or machine without asking"
    where.add_argument("-y", "--yes", action="store_true", help=words)
    torchrun_arguments(parser)
    tried = parser.add_argument_group("what to try")
    words = "same (default): only changes that keep training results; may-change: all changes"
    tried.add_argument("--numerics", choices=("same", "may-change"), help=words)
    for name, text in (("only", "try only these rules and knobs, separated by commas"), ("skip", "do not try these")):
        tried.add_argument(f"--{name}", action="append", metavar="CODE|KNOB,...", help=text)
    words = "record, print the plan with predicted savings and durations, and run no trials"
    tried.add_argument("--dry-run", action="store_true", help=words)
    amount = parser.add_argument_group("how much")
    words = "time limit for all trials, the final comparison included (default: 20m)"
    amount.add_argument("--time-limit", type=seconds, metavar="S", help=words)
    trial_arguments(amount)
    words = "treat a trial as hung after S seconds without a step (default: 120)"
    amount.add_argument("--stall-timeout", type=seconds, metavar="S", help=words)
    parser.set_defaults(warmup=None, steps=None, seconds=None)  # None: not given, so that of the search to resume
    parser.add_argument("--format", choices=("text", "json"), default="text", help="what to print (default: text)")
    parser.add_argument("-q", "--quiet", action="store_true", help="do not print progress")
    script_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Record, search, and print what came of it; the files are in the folder of the results."""
    from dptune.commands.shared.proving import caution
    from dptune.present.amounts import several
    from dptune.present.progress import progress
    from dptune.prove import rerun
    from dptune.tune.candidates import candidates, patchable
    from dptune.tune.error_budget import LOOKS
    from dptune.tune.plan import plan, trial_s
    from dptune.tune.session import Request, original_of, tune

    given = _given(args)
    folder = _recording(args)
    record = _record_of(folder)
    place = _results_folder(args, folder)
    options = _options(args, given, place)
    report, predicted, facts = _read(folder)
    source = rerun.directory_of(
        record, "record it again in the folder of the script: dptune tune train.py ITS ARGUMENTS"
    )
    tried, left = patchable(*candidates(report, predicted, facts, options.choice), source)
    if args.dry_run:
        _print_plan(args, plan(tried, trial_s(report.measured.step.known("time_ns"), options.bounds)), left)
        return 0
    request = Request(folder, record, source, place, options, args.resume)
    _ask(args, request, tried)
    original = original_of(request)
    limit_s = options.time_limit_s
    caution(replace(original, budget_s=limit_s, most=LOOKS[-1]), args.quiet)
    _say(args, f"{several(len(tried), 'candidate')}, {limit_s / 60:.0f} min; results go to {place}")
    with contextlib.nullcontext() if args.quiet else progress() as bar:
        tuning = tune(request, original, tried, left, _shows(args, bar, limit_s))
    _finish(args, request, tuning)
    if tuning.ended == "interrupted":
        raise KeyboardInterrupt
    return 1 if tuning.ended == "cannot run" else 0


def _given(args: argparse.Namespace) -> dict[str, Any]:
    """The options of the search that the user gave, by their names in `tune.options`."""
    from dptune.commands.shared.selection import codes
    from dptune.knobs import knob

    def named(lists: Sequence[str]) -> list[str]:
        words = [word for text in lists for word in text.split(",") if word]
        knobs = {knob(word).name for word in words if "." in word}  # no rule has a dot in its name
        return sorted({*knobs, *codes([word for word in words if word not in knobs])})

    of_recording, module = args.recording or args.resume, ["-m"] if args.module else []
    values = {
        "numerics": args.numerics,
        "only": None if args.only is None else named(args.only),
        "skip": None if args.skip is None else named(args.skip),
        "warmup": args.warmup,
        "steps": args.steps,
        "seconds": args.seconds,
        "stall_timeout_s": args.stall_timeout,
        "time_limit_s": args.time_limit,
        "command": [*module, args.script, *args.script_arguments] if of_recording and args.script else None,
    }
    return {name: value for name, value in values.items() if value is not None}


def _options(args: argparse.Namespace, given: dict[str, Any], place: Path) -> Options:
    from dptune.tune import options

    return options.read(place).continued(given) if args.resume else options.Options(**given)


def _recording(args: argparse.Namespace) -> Path:
    """The run folder to start from: the one that was named, the latest to resume, or a new one."""
    from dptune.commands.shared.reading import latest, recorded
    from dptune.commands.shared.recordings import resolved_singly
    from dptune.errors import RunError
    from dptune.runfile.paths import RUN_JSON, RUNS

    if args.recording is None and not args.resume:
        return _record(args, launch_of(args, "tune"))
    for option in [*torchrun_of(args).asked, *(["--python"] if args.python else [])]:
        raise UsageError(
            f"{option} is for recording: trials start the script as it was recorded", f"leave out {option}"
        )
    folder = Path(recorded(resolved_singly([args.recording])[0])) if args.recording else latest(RUNS)
    if not (folder / RUN_JSON).is_file():
        raise RunError(f"{folder} is not a dptune run folder", "record one with: dptune profile train.py")
    return folder


def _record(args: argparse.Namespace, started: Launch) -> Path:
    from dptune.capture import epilogue, recording
    from dptune.capture.options import Options
    from dptune.capture.watch import Limits
    from dptune.commands.profile import LIGHT, MOST_LIGHT
    from dptune.commands.shared import run_links
    from dptune.errors import RunError
    from dptune.runfile.record import Schedule
    from dptune.runfile.redaction import redacted_command

    if started.job is not None or (started.torchrun is not None and started.torchrun.several_nodes):
        raise UsageError(_ONE_HOST, "dptune tune --nproc-per-node 2 train.py")
    schedule = Schedule(5, 20, LIGHT, 3, 60.0, light_most=MOST_LIGHT)
    _say(args, f"recording: {' '.join(redacted_command(started.typed))}")
    made = recording.record(started, Options(schedule=schedule, limits=Limits(), quiet=args.quiet))
    if made.interrupted:
        raise KeyboardInterrupt
    if made.hung or not made.ranks:
        epilogue.lines(made)  # raises what it says where nothing was recorded
        raise RunError(f"the script could not be recorded: {made.ending.note or made.ending.how}", f"see {made.folder}")
    outcome = run_links.find(made, started, quiet=args.quiet)
    if outcome.interrupted:
        raise KeyboardInterrupt
    _say(args, f"recorded in {made.folder}")
    return made.folder


def _record_of(folder: Path) -> RunRecord:
    from dptune.errors import RunError
    from dptune.runfile.recognition import record_of

    try:
        return record_of(folder)
    except (OSError, ValueError) as error:
        raise RunError(f"{folder} cannot be restarted: {error}", "record it again") from None


def _read(folder: Path) -> tuple[Report, WhatIf, list[Facts]]:
    """The report on the recording, what the predicted search found, and the facts of its ranks."""
    from dptune.advise.trust import NO_VERDICT
    from dptune.commands.shared.reading import run_and_report
    from dptune.whatif.predicting import nothing, search

    found, report = run_and_report([str(folder)])
    judged = report.trust.level != "unjudgeable"
    predicted = search(found, report.measured) if judged else nothing(NO_VERDICT)
    return report, predicted, [found.facts[rank] for rank in sorted(found.facts)]


def _results_folder(args: argparse.Namespace, run: Path) -> Path:
    """A new folder, or with --resume the latest one. Raises UsageError where files of others lie there."""
    from dptune.runfile.paths import TUNED
    from dptune.tune.options import OPTIONS

    earlier = sorted(
        (path.parent for path in run.glob(f"{TUNED}*/{OPTIONS}")), key=lambda path: (len(path.name), path.name)
    )
    if args.resume:
        if args.output is None and not earlier:
            raise UsageError(f"{run} has no search to continue", "leave out --resume")
        return args.output or earlier[-1]
    if args.output is not None:
        if args.output.exists() and not args.output.is_dir():
            raise UsageError(f"{args.output} is not a folder", "name a new folder")
        if args.output.exists() and any(args.output.iterdir()):
            raise UsageError(f"{args.output} is not empty", "name a new folder, or continue its search with --resume")
        return Path(args.output)
    number = 1
    while (place := run / (TUNED if number == 1 else f"{TUNED}-{number}")).exists():
        number += 1
    return place


def _ask(args: argparse.Namespace, request: Request, candidates: Sequence[Candidate]) -> None:
    """Before a recording of others is run, show what would be run."""
    from dptune.commands.shared.consent import ask_before_running

    change: dict[str, Value] = {name: value for candidate in candidates for name, value in candidate.settings.items()}
    ask_before_running(request.run, request.record, request.options.command, str(request.source), change, args.yes)


def _shows(args: argparse.Namespace, bar: Bar | None, limit_s: float) -> Shows:
    """On a terminal the trial under way with a bar of the time limit, else a line for each; decisions in lines."""
    from dptune.present.sections.tuning import attempt_line, final_line, trial_line
    from dptune.tune.session import Shows

    def say(words: str, spent_s: float) -> None:
        if bar is None:
            _say(args, words)
        elif words:
            bar(words, min(round(spent_s), round(limit_s)), round(limit_s))

    searched_s = [0.0]

    def trial(moment: Moment) -> None:
        searched_s[0] = moment.spent_s
        say(trial_line(moment, limit_s), moment.spent_s)

    def final(proof: Proof, what: str) -> None:
        spent_s = searched_s[0] + sum(made.seconds for made in proof.trials)
        say(final_line(proof, what) if what else "", spent_s)

    return Shows(
        trial=trial,
        attempt=lambda attempt: _say(args, attempt_line(attempt)),
        final=final,
        warn=lambda words: _say(args, words),
    )


def _print_plan(args: argparse.Namespace, made: Plan, left: Sequence[Left]) -> None:
    from dptune.present.sections.tuning import plan_page
    from dptune.tune.result import NotTried

    not_tried = [NotTried(name=each.name, title=each.title, reason=each.why) for each in left]
    made = made.model_copy(update={"not_tried": not_tried})
    _print(args, made.model_dump_json(indent=1) + "\n", plan_page(made, terminal.width(sys.stdout)))


def _finish(args: argparse.Namespace, request: Request, tuning: Tuning) -> None:
    """Write the files, and print the report."""
    from dptune.present.html import tuning_page
    from dptune.present.ink import paint
    from dptune.present.sections.tuning import page
    from dptune.tune.conclusion import diff, write

    text = paint(page(tuning, 100), colour=False)
    write(request.folder, tuning, {"report.txt": text, "report.html": tuning_page(tuning, diff(tuning))})
    _print(args, tuning.model_dump_json(indent=1) + "\n", page(tuning, terminal.width(sys.stdout)))
    _say(args, f"results: {request.folder}")


def _print(args: argparse.Namespace, json: str, lines: Iterable[Line]) -> None:
    from dptune.present.ink import paint

    sys.stdout.write(json if args.format == "json" else paint(lines, terminal.colours(sys.stdout)))


def _say(args: argparse.Namespace, words: str) -> None:
    if words and not args.quiet:
        print(f"dptune: {visible(words)}", file=sys.stderr, flush=True)
