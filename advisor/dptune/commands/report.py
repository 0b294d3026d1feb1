"""Show where step time goes and what to change.

PATH is a run folder of `dptune profile`, one trace, several traces, a folder of traces of torch.profiler, or the name
or commit of a recording in ./dptune-runs (`dptune history` lists both; the start of a name is enough). An existing path
takes precedence. Without PATH, the latest recording is read. A terminal gets the full-screen report; a pipe or a file
gets the first screen as text, with --full the whole report, with --section one part of it. Partial data is reported and
marked as partial. Of a folder with one recording, that is read; a folder of several is listed. Several recordings at
once are an error, unless they are the folders of several nodes of one run.

PATH may also be dumps of torch's flight recorder (pickle or JSON), or a folder of them, alone or with traces of the
same job: which rank hangs, whose calls differ, how long calls take. A pickle is read without executing it. Logs of NCCL
Inspector cannot be combined with traces.

examples:
  dptune report
  dptune report 2026-11-20T23-31 --no-tui
  dptune report --full | less
  dptune report --section ranks --section collectives
  dptune report rank*_trace.json --format json -o report.json
  dptune report --section efficiency --tokens-per-step 524288 --gpu-hour-price 2.50
  dptune report --format html -o report.html
  dptune report --patch | git apply
  dptune report /tmp/nccl_trace_rank_*
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dptune.commands.shared.amounts import per_step, price
from dptune.commands.shared.engine import cluster_options, engine_of
from dptune.commands.shared.flight_dumps import check_format, figures, split, with_report
from dptune.commands.shared.flight_dumps import show as show_dumps
from dptune.commands.shared.inspector_logs import figures as inspected
from dptune.commands.shared.inspector_logs import logs_of
from dptune.commands.shared.listing import history_of, history_text
from dptune.commands.shared.patchable import can_patch
from dptune.commands.shared.reading import gpu_option, reading_options, record_of, report_of, root_of
from dptune.commands.shared.recordings import RUN_HELP, resolved_singly
from dptune.commands.shared.sweeps import links_option
from dptune.errors import SeveralRunsError, UsageError
from dptune.present import terminal

if TYPE_CHECKING:
    from dptune.advice import Advice, Change, Report
    from dptune.trace import Run

# of `dptune.present.text.SECTIONS`, which is slow to import for a help page
SECTION_NAMES = (
    *(
        "quality",
        "advice",
        "breakdown",
        "phases",
        "fsdp",
        "path",
        "gaps",
        "steps",
        "ranks",
        "outliers",
        "collectives",
        "links",
        "copies",
    ),
    *("kernels", "efficiency", "sources", "memory", "input", "inferred", "skipped", "files"),
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("paths", nargs="*", metavar="PATH", help=RUN_HELP)
    parser.add_argument(
        "--format", choices=("text", "json", "html", "tui"), help="output format (default: tui on a terminal)"
    )
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write to a file; - is stdout")
    parser.add_argument("--no-tui", action="store_true", help="print text even on a terminal")
    parser.add_argument(
        "--width", type=_columns, metavar="N", help="columns of the text, 40 to 400 (default: the terminal's, else 80)"
    )
    parser.add_argument("--full", action="store_true", help="print the whole report as text")
    parser.add_argument(
        "--section",
        action="append",
        default=[],
        choices=SECTION_NAMES,
        metavar="NAME",
        help=f"print one section as text; repeatable: {', '.join(SECTION_NAMES)}",
    )
    hidden = "with --format html: omit hosts, paths, file names and the command, for sharing"
    parser.add_argument("--anonymous", action="store_true", help=hidden)
    words = "print the recommended changes as a unified diff of the script, for `git apply` or `patch -p1`"
    parser.add_argument("--patch", action="store_true", help=words)
    words = "with --patch: only changes recommended by this rule (code or name); repeatable"
    parser.add_argument("--advice", action="append", default=[], metavar="CODE", help=words)
    words = "with --patch: the change that sets this knob, instead of recommendations; repeatable"
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="KNOB=VALUE", help=words)
    reading_options(parser)
    cluster_options(parser)
    links_option(parser)
    gpu_option(parser)
    group = parser.add_argument_group("efficiency")
    words = "tokens per optimizer step over all ranks (default: as given to dptune profile, else as the trace shows)"
    group.add_argument("--tokens-per-step", type=per_step, metavar="N", help=words)
    words = "samples per optimizer step over all ranks, where no recorded DataLoader shows them"
    group.add_argument("--samples-per-step", type=per_step, metavar="N", help=words)
    words = "price of a GPU-hour: adds the cost of 1,000 steps and the saving of each recommendation"
    group.add_argument("--gpu-hour-price", type=price, metavar="PRICE", help=words)


def run(args: argparse.Namespace) -> int:
    """Show the report in the chosen format; 0 also where only a part could be read."""
    args.paths = resolved_singly(args.paths)
    if args.patch:
        return _patch(args)
    if args.full and args.section:
        raise UsageError("--full and --section exclude each other", "leave one out")
    if args.settings:
        raise UsageError("--set requires --patch", "dptune profile --set runs the script with a setting")
    if args.advice:
        raise UsageError("--advice requires --patch", "add it, or leave --advice out")
    if args.output == Path("-"):
        args.output = None
    if logs := logs_of(args.paths):
        check_format(args)
        _check_output(args.output)
        show_dumps(inspected(logs), args, alone=True)
        return 0
    dumps, args.paths = split(args.paths)
    if dumps:
        return _with_dumps(args, dumps)
    chosen = _format(args)
    if args.anonymous and chosen != "html":
        raise UsageError("--anonymous requires --format html", "add it, or leave --anonymous out")
    _check_output(args.output)
    if chosen == "html":
        return _html(args)
    try:
        return _show(args, chosen)
    except SeveralRunsError:
        if chosen == "json" or args.full or args.section or args.output or len(args.paths) > 1:
            raise
        sys.stdout.write(history_text(history_of([Path(args.paths[0])], jobs=args.jobs, cached=not args.no_cache)))
        return 0


def _show(args: argparse.Namespace, chosen: str) -> int:
    """Show the report on the screen, or write it."""
    if chosen == "tui":
        from dptune.present.quit_key import until_quit
        from dptune.present.tui import show

        loaded = until_quit(lambda: _read(args))
        if loaded is not None:
            run, report = loaded
            show(report, run, args.paths, can_patch(report, root_of(args.paths)))
    else:
        report = _read(args)[1]
        _write(_text(report, chosen, args), args.output)
    return 0


def _with_dumps(args: argparse.Namespace, dumps: Sequence[Path]) -> int:
    """Show dumps of the flight recorder, after the report of the traces where some are given."""
    check_format(args)
    _check_output(args.output)
    if not args.paths:
        show_dumps(figures(dumps), args, alone=True)
        return 0
    if args.format == "json":
        run, report = _read(args)
        _write(with_report(_text(report, "json", args), figures(dumps, run)), args.output)
        return 0
    if args.output:
        raise UsageError("text of dumps with traces is written to stdout only", "leave -o out, or add --format json")
    run, report = _read(args)
    _write(_text(report, "text", args), None)
    show_dumps(figures(dumps, run), args, alone=False)
    return 0


def _read(args: argparse.Namespace) -> tuple[Run, Report]:
    """The run and its report, with the cost of its steps if a price is given."""
    from dptune.commands.shared.reading import run_and_report

    with engine_of(args) as engine:
        run, report = run_and_report(
            args.paths,
            links=args.links,
            tokens=args.tokens_per_step,
            samples=args.samples_per_step,
            gpu=args.gpu,
            engine=engine,
        )
    given, taken = args.samples_per_step, report.measured.known("samples_per_step")
    if given and taken and taken != given:
        words = f"the recorded DataLoader shows {taken:,} samples per step"
        print(f"dptune: warning: --samples-per-step {given} is ignored: {words}", file=sys.stderr)
    if args.gpu_hour_price is None:
        return run, report
    from dptune.advise.cost import with_cost

    return run, with_cost(report, args.gpu_hour_price)


def _html(args: argparse.Namespace) -> int:
    """Write the page, with what the report alone does not hold: steps to draw, step times, bucket sizes tried."""
    from dptune.measure.lanes import unnamed
    from dptune.measure.steps.history import step_history
    from dptune.measure.straggler_lanes import timeline_steps
    from dptune.present.anonymous import anonymous
    from dptune.present.html import RunDetails, page
    from dptune.present.html.advice import shows_late_ranks
    from dptune.whatif.predicting import search

    run, report = _read(args)
    sizes = []
    if report.measured.known("device_kind") == "cpu":
        with contextlib.suppress(Exception):  # a model that fails is a finding of the report, and no end of the page
            sizes = search(run, report.measured).curve
    steps, shown = timeline_steps(run, report.measured, late=shows_late_ranks(report)), report
    if args.anonymous:
        steps, shown = [unnamed(step) for step in steps], anonymous(report)
    patches = can_patch(report, root_of(args.paths))
    _write(page(shown, RunDetails(steps, step_history(run, report.measured), sizes, patches)), args.output)
    return 0


def _patch(args: argparse.Namespace) -> int:
    """Print the diff, and on stderr what has none; 1 where nothing has."""
    from dptune.commands.shared.selection import advised, codes
    from dptune.present.visible import visible

    if args.output == Path("-"):
        args.output = None
    if args.format or args.no_tui or args.anonymous or args.full or args.section:
        raise UsageError("--patch prints a diff and takes no other format", "leave the other option out")
    rules = codes(args.advice)
    _check_output(args.output)
    if args.settings:
        return _patch_of_settings(args)
    with engine_of(args) as engine:
        report = report_of(args.paths, links=args.links, gpu=args.gpu, engine=engine)
    meant = [advice for advice in advised(report, rules) if rules or advice.numerics == "same"]
    changes = [change for advice in meant for change in advice.changes]
    root = root_of(args.paths)
    of_learning = [*_of_learning(report.advice, rules)]
    for words in of_learning:
        print(f"dptune: {visible(words)}", file=sys.stderr)
    if not changes:
        unchanged = of_learning and not rules
        what = f"no change that {'leaves training results unchanged' if unchanged else 'a patch can make'}"
        print(f"dptune: {', '.join(rules) or 'the report'} proposes {what}", file=sys.stderr)
    return _print_patch(args, changes, root)


def _patch_of_settings(args: argparse.Namespace) -> int:
    """Print the diff that sets the knobs of --set, which only a patch sets."""
    from dptune.commands.shared.patchable import facts_in
    from dptune.commands.shared.setting import parsed
    from dptune.knobs import PATCHED, is_patched, of_change
    from dptune.patch.located import located

    if args.advice:
        raise UsageError("--set and --advice exclude each other with --patch", "leave one out")
    settings = parsed(args.settings, of_change)
    if others := [name for name, value in settings.items() if not is_patched(name, value)]:
        hint = f"it sets: {', '.join(PATCHED)}, memory.checkpointing=true"
        raise UsageError(f"--patch --set cannot set {others[0]}", hint)
    return _print_patch(args, located(settings, facts_in(record_of(args.paths).parent)), root_of(args.paths))


def _print_patch(args: argparse.Namespace, changes: Sequence[Change], root: Path) -> int:
    """Print the diff of changes, and on stderr those without one; 1 where none has."""
    from dptune.patch.diff import patches
    from dptune.present.visible import visible

    diff, left, taken_out = patches(changes, root)
    for words in [*_written_since(changes, root, record_of(args.paths)), *taken_out]:
        print(f"dptune: {visible(words)}", file=sys.stderr)
    for unpatched in left:
        place = f" in {unpatched.change.at}" if unpatched.change.at else ""
        print(
            f"dptune: {visible(f'{unpatched.change.knob}{place}: no patch: {unpatched.why}; by hand:')}",
            file=sys.stderr,
        )
        for row in unpatched.change.paste.splitlines():
            print(f"    {visible(row)}", file=sys.stderr)
    if diff and args.output is None:
        sys.stdout.buffer.write(diff.encode())  # as the files have it, whatever the terminal's encoding and newline
    elif diff:
        _write(diff, args.output)
    return 0 if diff else 1


def _of_learning(advice: Sequence[Advice], rules: Sequence[str]) -> Iterator[str]:
    """A sentence for each advice with changes that may change training results: asked for by its rule, or left out."""
    for recommendation in advice:
        if recommendation.numerics == "changes" and recommendation.changes:
            said = f"{recommendation.rule} {recommendation.slug} may change training results"
            if recommendation.rule in rules:
                yield f"{said}. {recommendation.watch}"
            elif not rules:
                yield f"{said} and is left out; to include it: --patch --advice {recommendation.rule}"


def _written_since(changes: Sequence[Change], root: Path, record: Path) -> list[str]:
    """A sentence for each file of the changes that was written after the run was recorded."""
    try:
        when = record.stat().st_mtime
    except OSError:
        return []
    since = []
    for file in dict.fromkeys(change.at.file for change in changes if change.at):
        with contextlib.suppress(OSError, ValueError):
            if (root / file).stat().st_mtime > when:
                since.append(f"{file} was changed after the recording: line numbers may not match")
    return since


def _columns(text: str) -> int:
    least, most = terminal.NARROWEST, terminal.WIDEST_ASKED
    if text.isdecimal() and len(text) < 9 and least <= int(text) <= most:
        return int(text)
    raise argparse.ArgumentTypeError(f"must be a number of columns from {least} to {most}, not '{text:.20}'")


def _format(args: argparse.Namespace) -> str:
    asked: str | None = args.format
    if args.full or args.section:
        if asked not in (None, "text"):
            option = "--full" if args.full else "--section"
            raise UsageError(f"{option} prints text and takes no other format", "leave one out")
        return "text"
    if asked == "tui":
        if args.no_tui or args.output:
            raise UsageError(
                f"--format tui and {'--no-tui' if args.no_tui else '-o'} exclude each other", "leave one out"
            )
        if reason := terminal.no_interface():
            raise UsageError(f"the full-screen report cannot be shown: {reason}", "use --format text or --format json")
        return asked
    if asked:
        return asked
    return "text" if args.no_tui or args.output or terminal.no_interface() else "tui"


def _check_output(output: Path | None) -> None:
    """Fail before the minutes of reading, not after."""
    if output is None:
        return
    if output.is_dir():
        raise UsageError(f"cannot write to {output}: it is a folder", "name a file in it")
    if not output.parent.is_dir():
        raise UsageError(f"cannot write to {output}: the folder {output.parent} does not exist", "create it first")


def _text(report: Report, chosen: str, args: argparse.Namespace) -> str:
    if chosen == "json":
        from dptune.present.machine import json

        return json.text(report)
    from dptune.present import text

    width = terminal.width(sys.stdout, args.width or 80 if args.output else args.width)
    colour = not args.output and terminal.colours(sys.stdout)
    blocks = bool(args.output) or terminal.draws_blocks(sys.stdout)
    if args.full:
        return text.text(report, width, colour, blocks)
    if args.section:
        shown = text.sections(report, args.section, width, colour, blocks)
        if not shown:
            print(f"dptune: nothing to show in this report: {', '.join(args.section)}", file=sys.stderr)
        return shown
    return text.first_screen(report, width, colour, blocks, patches=can_patch(report, root_of(args.paths)))


def _write(text: str, output: Path | None) -> None:
    if output is None:
        sys.stdout.write(text)
        return
    try:
        output.write_text(text, encoding="utf-8", errors="backslashreplace", newline="")
    except OSError as error:
        raise UsageError(f"cannot write to {output}: {error.strerror or error}", "name another file with -o") from error
    print(f"dptune: wrote {output}", file=sys.stderr)
