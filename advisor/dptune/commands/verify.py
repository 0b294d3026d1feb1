"""Verify a change by running the script with and without it.

RUN is a run folder of `dptune profile`, or the name of a recording in dptune-runs (default: the latest). Its script
runs again, unchanged and with the change, in separate processes and random order; each trial times some untraced steps
and ends. A significance test on one step time per trial decides; if it cannot, the verdict is inconclusive. Trials stop
at the verdict; with --within they continue until the saving is known to that precision. Your files are not edited: a
recommendation with a patch is verified in a patched copy, any other change is set from outside, and a change that has
no effect is reported.

Trials run in a copy of the recorded working directory, with DPTUNE_TRIAL=1 and WANDB_MODE=disabled. The copy links to
large files: a script that overwrites one, or writes to an absolute path, changes your file. A script that fails in the
copy runs again with links to the directory's siblings (../data). With --here it runs in the directory itself,
unpatched.

The run folder determines which command runs. If another user or machine recorded it, verify shows its command,
interpreter, settings and environment and asks before running anything; --yes skips the question.

Ctrl-C keeps the finished trials; the same command continues with them. Results are kept in RUN/verified/, and later
reports of RUN show them.

The exit status is 0 whatever the verdict, and 1 if one side cannot run.

examples:
  dptune verify --set ddp.bucket_cap_mb=1
  dptune verify 2026-11-20T23-31-08-train --advice DP102
  dptune verify --set ddp.comm_hook=fp16 --time-limit 10m
  dptune verify --advice DP102 --within 3% --time-limit 1h
  dptune verify --set wrapper=ddp
"""

from __future__ import annotations

import argparse
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dptune.commands.shared.amounts import percent, seconds
from dptune.commands.shared.consent import ask_before_running
from dptune.commands.shared.parsing import Parser
from dptune.commands.shared.proving import caution, folder_name, progress, show, trial_arguments
from dptune.commands.shared.recordings import RECORDING_HELP, resolved_singly
from dptune.commands.shared.setting import parsed
from dptune.errors import UsageError
from dptune.present.visible import visible

_MOST_NAMED = 3

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dptune.advice import Change, Saving
    from dptune.knobs import Value
    from dptune.prove.task import Task
    from dptune.runfile.record import RunRecord


def arguments(parser: Parser) -> None:
    """Declare the options."""
    parser.takes_command = True
    parser.usage = f"{parser.prog} [options] [RUN] [-- train.py ...]"
    parser.add_argument("words", nargs="*", metavar="RUN", help=RECORDING_HELP)
    change = parser.add_argument_group("the change")
    change.add_argument("--advice", metavar="CODE", help="verify the change this rule (code or name) recommends")
    change.add_argument(
        "--set",
        dest="settings",
        action="append",
        default=[],
        metavar="KNOB=VALUE",
        help="a setting of `dptune rules knobs`, and the value to try",
    )
    amount = parser.add_argument_group("how much")
    trial_arguments(amount)
    amount.add_argument(
        "--time-limit",
        type=seconds,
        default=1800.0,
        metavar="S",
        help="time limit for all trials in seconds (default: 1800)",
    )
    amount.add_argument(
        "--within",
        type=percent,
        metavar="P%",
        help="continue until the saving is known to this precision (percent of the time)",
    )
    amount.add_argument(
        "--stall-timeout",
        type=seconds,
        default=120.0,
        metavar="S",
        help="treat a trial as hung after S seconds without a step",
    )
    where = parser.add_argument_group("where")
    where.add_argument("--here", action="store_true", help="run in the recorded working directory, not in a copy")
    words = "run a recording from another user or machine without asking"
    where.add_argument("-y", "--yes", action="store_true", help=words)
    parser.add_argument("--format", choices=("text", "json"), default="text", help="what to print (default: text)")
    parser.add_argument("-q", "--quiet", action="store_true", help="do not print progress")


def run(args: argparse.Namespace) -> int:
    """Prove it, and print what came of it."""
    from dptune.knobs import is_patched
    from dptune.prove import engine
    from dptune.prove.earlier import against, as_verified
    from dptune.runfile.paths import VERIFIED

    folder = _folder(args.words)
    settings, advice, predicted, saves, changes = _change(args, folder)
    record = _record(folder)
    where = str(Path.cwd()) if _runs_here(args, record) else record.working_directory
    if changes and where and not args.command and _made_since(changes, folder, Path(where)):
        raise UsageError(
            f"the script has the change of {advice} already, made after the run was recorded: nothing was run",
            f"record it again to see what it saves, then: dptune compare {shlex.quote(str(folder))} NEW",
        )
    ask_before_running(folder, record, args.command, where, settings, args.yes)
    task = _task(args, folder, record, settings, advice, changes)
    if not args.quiet:
        print(f"dptune: of {visible(str(folder))}: {visible(shlex.join(task.a.command))}", file=sys.stderr)
        if task.written_since:
            print(f"dptune: {visible(_rewritten(task))}", file=sys.stderr)
    caution(task, args.quiet)
    if args.here and changes and not args.quiet:
        print("dptune: --here: the change is set from outside; the patch is not applied", file=sys.stderr)
    name = f"{task.b.name} of {task.command}" if task.command else task.b.name
    proof = engine.prove(task, folder / VERIFIED / folder_name(name), progress(args.quiet))
    only_patched = any(is_patched(change.knob, change.then) for change in changes)
    if (
        task.patched and proof.ended == "without effect" and not only_patched
    ):  # another file runs, as one that is installed
        if not args.quiet:
            print(
                f"dptune: the patch of {' and '.join(task.patched)} did not take effect; setting from outside:",
                file=sys.stderr,
            )
        task = _task(args, folder, record, settings, advice, [])
        proof = engine.prove(task, folder / VERIFIED / folder_name(name), progress(args.quiet))
    if saves is not None and (apart := against(saves, as_verified(proof))):
        predicted = f"{predicted}. Measured is {apart}"
    status = show(proof, args.format, predicted)
    if advice and proof.outcome != "inconclusive" and not args.quiet:
        shown = visible(shlex.quote(str(folder)))
        print(f"dptune: `dptune report {shown}` shows the result and the lines to change", file=sys.stderr)
        if proof.outcome == "better":
            print(f"dptune: as a diff: dptune report {shown} --patch --advice {advice}", file=sys.stderr)
    return status


def _rewritten(task: Task) -> str:
    named = ", ".join(task.written_since[:_MOST_NAMED])
    more = len(task.written_since) - _MOST_NAMED
    return (
        f"written after the run was recorded: {named}{f' and {more} more' if more > 0 else ''}; both sides run the "
        f"current code, not the code of the report: record again with `dptune profile`"
    )


def _folder(words: list[str]) -> Path:
    from dptune.commands.shared.reading import latest, recorded
    from dptune.errors import RunError
    from dptune.runfile.paths import RUN_JSON, RUNS

    if len(words) > 1:
        raise UsageError(f"give one run; got {len(words)}", "dptune verify RUN --set KNOB=VALUE")
    folder = Path(recorded(resolved_singly(words)[0])) if words else latest(RUNS)
    if not (folder / RUN_JSON).is_file():
        raise RunError(f"{folder} is not a dptune run folder", "record one with: dptune profile train.py")
    return folder


def _change(args: argparse.Namespace, folder: Path) -> tuple[dict[str, Value], str, str, Saving | None, list[Change]]:
    """What is to be set, by whose advice, its predicted saving (in words, as an interval), and its changes."""
    from dptune.commands.shared.patchable import facts_in
    from dptune.knobs import of_change
    from dptune.patch.located import located

    settings = parsed(args.settings, of_change)
    for name, value in settings.items():
        try:
            f"{name}{value}".encode()
        except UnicodeEncodeError:
            raise UsageError(f"the value of {name} is not in UTF-8: {value!a}", "a proof is kept as text") from None
    if args.advice is None:
        if not settings:
            raise UsageError("nothing to verify", "--advice CODE, or --set KNOB=VALUE")
        return settings, "", "", None, located(settings, facts_in(folder))
    code, changes, predicted, saves = _advised(folder, args.advice)
    if settings:
        predicted, saves = "", None
    kept = [change for change in changes if change.knob not in settings]
    kept += located(settings, facts_in(folder)) if settings else []
    return {**{change.knob: change.then for change in changes}, **settings}, code, predicted, saves, kept


def _advised(folder: Path, name: str) -> tuple[str, list[Change], str, Saving | None]:
    """The code of the named rule, what it advises, and the predicted saving; as an interval where that is one."""
    from dptune.commands.shared.reading import report_of
    from dptune.commands.shared.selection import advised, codes
    from dptune.present.sections.advice import saving

    (code,) = codes([name])
    report = report_of([str(folder)])
    advice = advised(report, [code])
    changes = [change for recommendation in advice for change in recommendation.changes]
    if not changes:
        raise UsageError(
            f"{code} recommends no setting, and verify can change only settings",
            "`dptune report --section advice` shows what it recommends; `--set KNOB=VALUE` verifies any setting",
        )
    step_ns = report.measured.step.known("time_ns")
    saved = [recommendation.saves for recommendation in advice if recommendation.saves]
    return code, changes, " ".join(saving(saves, step_ns) for saves in saved), saved[0] if len(saved) == 1 else None


def _made_since(changes: Sequence[Change], folder: Path, root: Path) -> bool:
    """Whether the script was edited after it was recorded and has the changes."""
    from dptune.patch.diff import already_made  # imports libcst
    from dptune.runfile.paths import RUN_JSON

    recorded_s = (folder / RUN_JSON).stat().st_mtime
    files = [root / change.at.file for change in changes if change.at]
    try:
        edited = any(file.stat().st_mtime > recorded_s for file in files)
    except (OSError, ValueError):  # moved since, or no name of a file
        return False
    return edited and already_made(changes, root)


def _runs_here(args: argparse.Namespace, record: RunRecord) -> bool:
    """Whether trials run in the current directory: with --here, where the recorded one is gone."""
    return bool(args.here) and not Path(record.working_directory or "").is_dir()


def _task(
    args: argparse.Namespace,
    folder: Path,
    record: RunRecord,
    settings: dict[str, Value],
    advice: str,
    changes: Sequence[Change],
) -> Task:
    from dptune.knobs import is_patched
    from dptune.patch.located import check_patched
    from dptune.prove import rerun
    from dptune.prove.recorded_task import of_recording
    from dptune.prove.trial import Bounds

    source = Path.cwd() if _runs_here(args, record) else rerun.directory_of(record)
    before = rerun.settings_of(record)
    if {**before, **settings} == before:
        raise UsageError(
            f"the run was already recorded with {_named(settings)}", "name another value, or a run without it"
        )
    only_patched = [name for name, value in settings.items() if is_patched(name, value)]
    if args.here and only_patched:
        raise UsageError(
            f"--here runs the script unpatched, and only a patch sets {only_patched[0]}", "leave --here out"
        )
    if only_patched:
        check_patched(changes, source)
    task = of_recording(folder, record, source, settings, [] if args.here else changes, args.command, here=args.here)
    return replace(
        task,
        advice=advice,
        bounds=Bounds(args.warmup, args.steps, args.seconds, stall_s=args.stall_timeout),
        budget_s=args.time_limit,
        within=args.within,
    )


def _record(folder: Path) -> RunRecord:
    from dptune.errors import RunError
    from dptune.runfile.json_files import NewerError
    from dptune.runfile.paths import RUN_JSON
    from dptune.runfile.recognition import record_of

    try:
        return record_of(folder)
    except NewerError as error:
        raise RunError(f"{folder} cannot be restarted: {error}", "pip install --upgrade dptune") from None
    except OSError as error:
        raise RunError(f"{folder / RUN_JSON} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise RunError(f"{folder} cannot be restarted: {error}", "record it again") from None


def _named(settings: dict[str, Value]) -> str:
    from dptune.prove.recorded_task import named

    return named(settings)
