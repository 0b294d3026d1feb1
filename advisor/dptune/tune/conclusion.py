"""From what a search found to its result, and the files that a user gets: a patch, a report and JSON."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dptune import __version__
from dptune.advice import Change, Verified
from dptune.knobs import ENVIRONMENT, written
from dptune.patch.diff import patches
from dptune.prove import judging
from dptune.prove.earlier import as_verified
from dptune.prove.result import Proof
from dptune.prove.task import Task
from dptune.runfile import json_files
from dptune.runfile.redaction import redacted_settings
from dptune.tune.candidate import combined
from dptune.tune.candidates import Left
from dptune.tune.error_budget import LEVEL, LOOKS
from dptune.tune.result import NotTried, Outcome, Tried, Tuning
from dptune.tune.search import FINAL_PAIRS, SLACK, Attempt, Found

if TYPE_CHECKING:
    from dptune.tune.session import Request

PATCH, RESULT = "tuned.patch", "tuning.json"


def conclude(request: Request, original: Task, found: Found, proof: Proof | None, left: Sequence[Left]) -> Tuning:
    """The result; its patch is written."""
    changes = combined(found.stack)
    final = None if proof is None or not proof.pairs else as_verified(proof)
    outcome, reason = _outcome(request, found, final)
    settings = redacted_settings({change.knob: change.then for change in changes})
    patch = request.folder / PATCH
    left_out = {unpatched.change.knob for unpatched in patches(changes, request.source).left_out}
    by_hand = [change for change in changes if change.knob in left_out]  # as in the trials: a knob as a whole
    made = patches([change for change in changes if change.knob not in left_out], request.source)
    if made.diff:
        json_files.put(patch, made.diff)
    else:
        patch.unlink(missing_ok=True)  # of an earlier call
    environment = {
        change.knob.removeprefix(ENVIRONMENT): written(settings[change.knob])
        for change in by_hand
        if change.knob.startswith(ENVIRONMENT)
    }
    return Tuning(
        dptune=__version__,
        machine=judging.machine(),
        run=str(request.run),
        command=original.a.command,
        directory=original.a.directory,
        numerics=request.options.numerics,
        time_limit_s=request.options.time_limit_s,
        seconds=found.spent_s + sum(trial.seconds for trial in (proof.trials if proof else [])),
        ended=found.ended,
        outcome=outcome,
        reason=reason,
        kept=[candidate.name for candidate in found.stack],
        settings=settings,
        level=LEVEL,
        level_spent=found.level_spent,
        final=final,
        tried=[_tried(attempt) for attempt in found.attempts],
        not_tried=list(_not_tried(found, left)),
        patched=sorted(_files(changes, by_hand)) if made.diff else [],
        patch=str(patch) if made.diff else "",
        environment=environment,
        by_hand=list(dict.fromkeys(change.paste for change in by_hand if not change.knob.startswith(ENVIRONMENT))),
        apply=f"patch -p1 -d {shlex.quote(str(request.source))} < {shlex.quote(str(patch.resolve()))}"
        if made.diff
        else "",
        start=_start(environment, original.a.command) if environment else "",
        resume=_resume(request),
    )


def _outcome(request: Request, found: Found, final: Verified | None) -> tuple[Outcome, str]:
    if not found.stack:
        why = {
            "cannot run": f"the script does not run without changes: {found.failure.removeprefix('failed: ')}",
            "out of time": too_short(found, request.options.time_limit_s),
            "interrupted": "interrupted before a change was shown to save time",
        }.get(found.ended, "no candidate was shown to save time")
        return "nothing kept", why
    if final is None or (found.ended == "interrupted" and final.outcome == "inconclusive"):
        return "not compared", "the comparison with the original is not finished: --resume continues it"
    if final.learns == "other":
        return "results differ", final.learning
    if final.outcome == "better":
        return "faster", final.reason
    return "not confirmed", f"the final comparison did not show a saving: {final.reason}"


def too_short(found: Found, limit_s: float) -> str:
    """Why no change was kept: the limit is too short for one race and the final comparison, or the time was used up."""
    race, final = 2 * LOOKS[0], 2 * FINAL_PAIRS
    needed_s = (race + SLACK * final) * found.trial_s
    if needed_s <= limit_s:
        return "the time was up before a change was shown to save time"
    return (
        f"a trial takes up to {found.trial_s:.0f} s, one race at least {race} trials and the final comparison {final}: "
        f"use --time-limit {math.ceil(needed_s / 60)}m or more"
    )


def _tried(attempt: Attempt) -> Tried:
    candidate = attempt.candidate
    return Tried(
        name=candidate.name,
        rule=candidate.rule,
        title=candidate.title,
        settings=redacted_settings(candidate.settings),
        numerics=candidate.numerics,
        basis=candidate.basis,
        predicted_low_share=candidate.low_share,
        predicted_high_share=candidate.high_share,
        stack=list(attempt.stack),
        rounds=attempt.rounds,
        gain_share=attempt.gain,
        low_ratio=None if attempt.ratios is None else attempt.ratios[0],
        high_ratio=None if attempt.ratios is None else attempt.ratios[1],
        result=attempt.result,
        reason=attempt.why,
    )


def _not_tried(found: Found, left: Sequence[Left]) -> Iterator[NotTried]:
    """What was not raced, or not to the end: a dropped candidate may be waiting for another race, but was raced."""
    dropped = {attempt.candidate.name for attempt in found.attempts if attempt.result == "dropped"}
    for candidate, why in found.waiting:
        if candidate.name in dropped:
            continue
        yield NotTried(name=candidate.name, title=candidate.title, reason=why)
    for each in left:
        yield NotTried(name=each.name, title=each.title, reason=each.why)


def _files(changes: Sequence[Change], by_hand: Sequence[Change]) -> set[str]:
    return {change.at.file for change in changes if change.at is not None and change not in by_hand}


def _resume(request: Request) -> str:
    elsewhere = [] if request.folder.parent == request.run else ["-o", str(request.folder)]
    return shlex.join(["dptune", "tune", "--resume", "--run", str(request.run), *elsewhere])


def _start(environment: dict[str, str], command: Sequence[str]) -> str:
    variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in environment.items())
    return f"{variables} {shlex.join(command)}"


def write(folder: Path, tuning: Tuning, reports: Mapping[str, str]) -> None:
    """The result as JSON, and reports by the names of their files."""
    json_files.put(folder / RESULT, tuning.model_dump_json(indent=1) + "\n")
    for name, report in reports.items():
        json_files.put(folder / name, report)


def diff(tuning: Tuning) -> str:
    """The text of its patch; empty where there is none."""
    return Path(tuning.patch).read_text(encoding="utf-8") if tuning.patch else ""
