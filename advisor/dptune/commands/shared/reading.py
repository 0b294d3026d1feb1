"""From the paths on a command line to a report."""

from __future__ import annotations

import argparse
import codecs
import contextlib
import json
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dptune.commands.shared.ending import ending
from dptune.commands.shared.engine import Engine
from dptune.commands.shared.sweeps import check_fit, sweep_of
from dptune.errors import RunError, UsageError
from dptune.runfile import json_files
from dptune.runfile.paths import LATEST, RUN_JSON, RUNS
from dptune.runfile.recognition import is_run_folder

if TYPE_CHECKING:
    from dptune.advice import Report
    from dptune.compare.sides import ReadRun
    from dptune.measured import Measured
    from dptune.trace import Run

EMPTY_PATH = "a path is empty", "is a shell variable unset?"

_LONGEST_NAME = 4096  # that `latest` is read for
_VERSION = re.compile(rb'"schema_version"\s*:\s*"([0-9.]{1,20})"')
_REPORT = re.compile(rb'\s*\{\s*"schema_version"\s*:\s*"[^"]*",\s*"dptune"\s*:')
_AGAIN = "write it again with `dptune report --format json`"
_MOST_NUMBER = 2.0**63  # ns of three hundred years
_MOST_BYTES = 10_000_000  # of a report whose keys another tool put into another order


def reading_options(parser: argparse.ArgumentParser) -> None:
    """Declare how traces are read."""
    group = parser.add_argument_group("reading")
    group.add_argument(
        "--jobs", type=_count, metavar="N", help="number of traces to read at once (default: one per core)"
    )
    group.add_argument("--no-cache", action="store_true", help="do not use or write .dptune-cache/")


def gpu_option(parser: argparse._ActionsContainer) -> None:
    """Declare the model of GPUs that traces do not name."""
    words = "GPU model for traces that do not name it, e.g. 'V100-SXM2-16GB'; a recorded name wins"
    parser.add_argument("--gpu", type=_gpu, metavar="NAME", help=words)


def _gpu(text: str) -> str:
    from dptune.measure.efficiency.peaks import gpu_name, not_a_gpu

    if name := gpu_name(text.strip()):
        return name
    raise argparse.ArgumentTypeError(": ".join(not_a_gpu(text)))


def _count(text: str) -> int:
    if text.isdecimal() and 0 < len(text) < 5 and int(text):
        return int(text)
    raise argparse.ArgumentTypeError(f"must be a number from 1 to 9999, not '{text:.20}'")


def report_of(
    paths: Sequence[str],
    jobs: int | None = None,
    *,
    cached: bool = True,
    links: Path | None = None,
    gpu: str | None = None,
    engine: Engine | None = None,
) -> Report:
    """Read the traces, measure them, ask the rules; the latest recording where no path is given.

    `jobs` traces are read at once (None: one for each core); `cached` as in `dptune.trace.load`. `links` is a sweep by
    `dptune links`; without it the one that lies in the run folder or beside it. `gpu` as in `measured_of`. `engine`
    reads in place of `jobs` and `cached`.
    """
    return run_and_report(paths, jobs, cached=cached, links=links, gpu=gpu, engine=engine)[1]


def read_run(
    name: str, engine: Engine, *, links: Path | None = None, gpu: str | None = None, advised: bool = True
) -> ReadRun:
    """One run to compare: of a run folder or of traces, or as a JSON report of it says; `gpu` as in `measured_of`."""
    from dptune.compare.sides import ReadRun

    if is_report(Path(name)):
        if gpu is not None:
            print(f"dptune: warning: --gpu {gpu} is ignored for {name}, which is a report", file=sys.stderr)
        return ReadRun(name, _report(Path(name)), {})
    run, report = run_and_report([name], links=links, gpu=gpu, advised=advised, engine=engine)
    return ReadRun(name, report, run.facts)


def measured_of(
    paths: Sequence[str | Path],
    jobs: int | None = None,
    *,
    cached: bool = True,
    links: Path | None = None,
    tokens: int | None = None,
    samples: int | None = None,
    gpu: str | None = None,
    engine: Engine | None = None,
) -> tuple[Run, Measured]:
    """Read the traces and measure them as `report_of` does; `tokens`, `samples`: per step over all ranks, given.

    `gpu` is the model of the GPUs that the traces do not name; a warning says where it is ignored.
    """
    from dptune.measure import measure
    from dptune.present.progress import progress

    chosen = [recorded(path) for path in paths]
    sweep = sweep_of(chosen, links)
    with ending(), progress() as show:
        run = (engine or Engine(jobs, cached)).load(chosen, show)
        if show:
            show("measuring", 0, 0)
        if gpu is not None:
            run = _with_gpu(run, gpu)
        measured = measure(run, sweep, tokens, samples)
    check_fit(sweep, measured)
    return run, measured


def run_and_report(
    paths: Sequence[str],
    jobs: int | None = None,
    *,
    cached: bool = True,
    links: Path | None = None,
    advised: bool = True,
    tokens: int | None = None,
    samples: int | None = None,
    gpu: str | None = None,
    engine: Engine | None = None,
) -> tuple[Run, Report]:
    """The same with the run that the report is of."""
    from dptune import config
    from dptune.advise.engine import build_report
    from dptune.present.progress import progress

    settings = config.load()
    if settings.budget:
        from dptune.check.gate import BUDGETS

        settings.check_budgets(BUDGETS)
    chosen: Sequence[str | Path] = [recorded(path) for path in paths] or [latest(RUNS)]
    run, measured = measured_of(
        chosen, jobs, cached=cached, links=links, tokens=tokens, samples=samples, gpu=gpu, engine=engine
    )
    with progress() as show:
        if show:
            show("running rules and predictions", 0, 0)
        report = build_report(run, measured, settings, advised=advised)
    _warn_of_packs(report)
    return run, _with_proofs(report, chosen)


def _with_gpu(run: Run, name: str) -> Run:
    from dptune.measure.given_gpu import IGNORED, with_gpu
    from dptune.present.visible import visible

    run = with_gpu(run, name)
    for finding in run.findings:
        if finding.code == IGNORED:
            print(f"dptune: warning: {visible(finding.text)}", file=sys.stderr)
    return run


def _warn_of_packs(report: Report) -> None:
    """Name packs that did not load and rules that failed where a job's log shows it; the report says it, too."""
    from dptune.present.visible import visible

    for finding in report.trust.findings:
        if finding.code in ("rule-pack", "rule-failed"):
            print(f"dptune: warning: {visible(finding.text)}", file=sys.stderr)


def _with_proofs(report: Report, chosen: Sequence[str | Path]) -> Report:
    from dptune.prove import earlier
    from dptune.runfile.paths import RUN_JSON

    folder = Path(chosen[0])
    if len(chosen) != 1 or not (folder / RUN_JSON).is_file():
        return report
    return earlier.with_proofs(report, folder, shlex.quote(str(folder)))


def is_report(path: Path) -> bool:
    """Whether a file begins as a report of dptune does, or holds one in another order; a trace may be .json, too."""
    try:
        if not path.is_file():  # a pipe or a device: reading it may never end
            return False
        with path.open("rb") as file:
            begin = file.read(4096).removeprefix(codecs.BOM_UTF8)
            if _REPORT.match(begin):
                return True
            if not begin.lstrip().startswith(b"{") or b'"traceEvents"' in begin or b'"schemaVersion"' in begin:
                return False
            if path.stat().st_size > _MOST_BYTES:
                return False
        document = json.loads(path.read_text(encoding="utf-8-sig"))
        return isinstance(document, dict) and document.keys() >= {"schema_version", "dptune", "advice", "measured"}
    except (OSError, ValueError, RecursionError):  # what cannot be opened is reported where traces are read
        return False


def _report(path: Path) -> Report:
    from pydantic import ValidationError

    from dptune.advice import SCHEMA_VERSION, Report

    content = path.read_bytes().removeprefix(codecs.BOM_UTF8)
    try:
        if version := _VERSION.search(content, 0, 4096):
            json_files.refuse_newer(str(path), version[1].decode(), SCHEMA_VERSION)
        report = Report.model_validate_json(_with_todays_windows(content))
        if odd := _odd_number(content):
            raise RunError(f"{path} is not the report of a run: {odd}", _AGAIN)
        return report
    except json_files.NewerError as error:
        raise RunError(str(error), "or write the report again with this one, from the run") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise RunError(
            f"{path} is not a report this version can read: {where + ': ' if where else ''}{first['msg']}",
            _AGAIN,
        ) from None


def _with_todays_windows(content: bytes) -> bytes:
    """The JSON text of a report with today's names of windows; unchanged where it has them, or is no JSON."""
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return content
    renamed = json_files.with_todays_windows(document) if isinstance(document, dict) else document
    return content if renamed is document else json.dumps(renamed).encode()


def _odd_number(content: bytes) -> str:
    """A number that is none, or larger than any figure is; empty where there is none."""
    try:
        waiting = [("", json.loads(content))]
    except ValueError:  # Python reads no whole number of more than 4,300 digits
        return "a number has thousands of digits"
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, (int, float)) and not abs(value) < _MOST_NUMBER:
            return f"{name} is {value!s:.40}"
        if isinstance(value, dict):
            waiting += value.items()
        elif isinstance(value, list):
            waiting += [(name, entry) for entry in value]
    return ""


def root_of(paths: Sequence[str]) -> Path:
    """The folder that the lines of a run's facts are relative to: where the script was started, or here."""
    from dptune.runfile.record import RunRecord

    try:
        started = Path(json_files.read(record_of(paths), RunRecord).working_directory)
    except (OSError, ValueError):
        return Path()
    return started if started.is_dir() else Path()


def record_of(paths: Sequence[str]) -> Path:
    """Where a run's run.json lies; traces have none there."""
    return (Path(recorded(paths[0])) if paths else latest(RUNS)) / RUN_JSON


def recorded(name: str | Path) -> str | Path:
    """The run folder that a folder of recordings, its `latest`, or a folder with one run alone stands for; anything
    else as it is.
    """
    if not str(name):
        raise UsageError(*EMPTY_PATH)
    path = Path(name)
    try:
        if "://" in str(name) or is_run_folder(path):
            return name
        if path.is_dir() and not (path / LATEST).exists():
            return _only_run(path)
        runs = path.parent if path.name == LATEST and path.is_file() else path
        found = runs / json_files.regular(runs / LATEST, _LONGEST_NAME).strip()
        return found if found != runs and is_run_folder(found) else name
    except (OSError, ValueError):  # what cannot be opened is reported where it is read
        return name


def _only_run(folder: Path) -> Path:
    """The run in a folder that holds no other, and no trace; else the folder."""
    from dptune.trace.places.files import find

    with contextlib.suppress(RunError):
        files = find([folder])
        if len(files.run_folders) == 1 and not files.traces:
            return files.run_folders[0]
    return folder


def latest(runs: Path) -> Path:
    """The folder that `latest` names; raises RunError where nothing was recorded here."""
    record = "record one with `dptune profile train.py`, or name a run folder or trace files"
    try:
        name = json_files.regular(runs / LATEST, _LONGEST_NAME).strip()
    except OSError:
        raise RunError(f"no recording in ./{runs}/", record) from None
    except ValueError as error:
        raise RunError(f"./{runs}/{LATEST} names no run: {error}", record) from None
    folder = runs / name
    if not name or not folder.is_dir():
        raise RunError(f"./{runs}/{LATEST} names the run '{name}', which no longer exists", record)
    return folder
