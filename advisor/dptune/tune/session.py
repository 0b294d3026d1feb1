"""One call of `dptune tune` after the recording: the search, the final comparison, and what is left behind."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from dptune.capture.launch import Launch
from dptune.knobs import Value
from dptune.prove import engine, judging
from dptune.prove import folder as folders
from dptune.prove.recorded_task import named, of_recording
from dptune.prove.result import Proof
from dptune.prove.task import Task
from dptune.runfile.record import RunRecord
from dptune.tune import search as searching
from dptune.tune.candidate import Candidate, combined
from dptune.tune.candidates import Left
from dptune.tune.conclusion import conclude
from dptune.tune.journal import Journal, Subject
from dptune.tune.options import Options
from dptune.tune.result import Tuning
from dptune.tune.runner import RealRunner
from dptune.tune.search import FINAL_PAIRS, Found

TRIALS, FINAL, JOURNAL = "trials", "final", "trials.json"


@dataclass(frozen=True)
class Request:
    """What to tune: a recording, where its script lies, and how. `folder` is that of the results."""

    run: Path
    record: RunRecord
    source: Path
    folder: Path
    options: Options = field(default_factory=Options)
    resume: bool = False


@dataclass(frozen=True)
class Shows:
    """Who gets each trial before it starts, what each race said, each pair of the final comparison, and warnings."""

    trial: searching.Show = lambda moment: None
    attempt: searching.Note = lambda attempt: None
    final: engine.Show = lambda proof, what: None
    warn: Callable[[str], None] = lambda words: None


def tune(
    request: Request, original: Task, candidates: Sequence[Candidate], left: Sequence[Left], shows: Shows
) -> Tuning:
    """Search, compare the stack with the original by new trials, and write the patch into the folder."""
    found = _search(request, original, candidates, shows)
    proof = None
    if found.stack and found.ended != "interrupted":
        proof = _compare(request, original, found, shows)
        if proof.ended == "interrupted":
            found.ended = "interrupted"
    return conclude(request, original, found, proof, left)


def original_of(request: Request) -> Task:
    """The script as it was recorded, as both sides."""
    return _task(request, [], None)


def _task(request: Request, changes: Sequence[Candidate], launch: Launch | None) -> Task:
    """The original script as side A, and with these changes as side B."""
    made = combined(changes)
    settings: dict[str, Value] = {change.knob: change.then for change in made}
    task = of_recording(
        request.run, request.record, request.source, settings, made, request.options.command, launch=launch
    )
    return replace(task, bounds=request.options.bounds)


def _search(request: Request, original: Task, candidates: Sequence[Candidate], shows: Shows) -> Found:
    options = request.options
    subject = Subject(
        machine=judging.machine(),
        original=original.a,
        candidates=[f"{candidate.name}: {named(candidate.settings)}" for candidate in candidates],
        trial=[options.warmup, options.steps, options.seconds],
    )
    journal = Journal(request.folder / JOURNAL, subject)
    trials = request.folder / TRIALS
    with folders.alone(trials):
        if request.resume and (kept := journal.resume()):
            shows.warn(f"continuing with {kept} earlier {'trial' if kept == 1 else 'trials'}")
        options.write(request.folder)
        runner = RealRunner(
            lambda changes: _task(request, changes, original.launches["A"]),
            trials,
            journal,
            shows.warn,
            options.time_limit_s,
        )
        seed = zlib.crc32(subject.model_dump_json().encode())
        return searching.search(candidates, runner, options.time_limit_s, seed, shows.trial, shows.attempt)


def _compare(request: Request, original: Task, found: Found, shows: Shows) -> Proof:
    """The stack against the original, by trials of its own."""
    task = _task(request, found.stack, original.launches["A"])
    left_s = max(request.options.time_limit_s - found.spent_s, 0.0)
    least_s = 2 * FINAL_PAIRS * found.trial_s  # the search left time for it
    task = replace(task, budget_s=max(left_s, least_s))
    return engine.prove(task, request.folder / FINAL, shows.final)
