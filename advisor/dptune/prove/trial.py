"""One trial: the script, changed or not, run in processes of its own for a few timed steps."""

from __future__ import annotations

import datetime
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dptune.capture import effect, recording
from dptune.capture.launch import Launch
from dptune.capture.options import Options
from dptune.capture.repeats import ENDS_WITHIN_S, ENVIRONMENT, LAST_BYTES, shorten
from dptune.capture.session import Recording
from dptune.capture.watch import Limits
from dptune.errors import CaptureError
from dptune.knobs import Value
from dptune.measure.steps.accumulation import samples_per_step
from dptune.measure.steps.times import durations
from dptune.prove.result import SideName, Status, Trial
from dptune.runfile import json_files
from dptune.runfile.exit_status import exit_text
from dptune.runfile.facts import Facts
from dptune.runfile.record import Schedule
from dptune.runfile.redaction import redacted_text

OUTPUT = "output.txt"
_OUT_OF_MEMORY = re.compile(
    r"OutOfMemoryError|CUDA out of memory|HIP out of memory|DefaultCPUAllocator: can't allocate"
)
_ERROR = re.compile(r"^(?:\[rank\d+\]: ?)?([A-Za-z_.]*(?:Error|Exception|Interrupt)(?::.*)?)$", re.MULTILINE)
_FAST = 10  # percentile of the steps of a trial


@dataclass(frozen=True)
class Bounds:
    """How much of a script a trial runs: optimizer steps let pass and timed, and the seconds it takes.

    It times `steps` and for `least_s` at least, but ends where that takes longer than `window_s`.
    """

    warmup: int = 5
    steps: int = 30
    least_s: float = 3.0
    window_s: float = 60.0
    first_step_s: float = 600.0
    stall_s: float = 120.0


def run(
    started: Launch,
    side: SideName,
    number: int,
    settings: dict[str, Value],
    bounds: Bounds,
    folder: Path,
    cwd: Path | None,
    environment: Mapping[str, str],
    written: Mapping[str, Value] | None = None,
    change: Mapping[str, Value] | None = None,
) -> Trial:
    """Run it with a few more variables, and put what it recorded into `folder`, which is new. Whatever it comes to is a
    result. `settings` are set from outside; `written` are those that the code there makes itself; `change` are those
    of the other side, which the script may have already.
    """
    folder.mkdir(parents=True)
    options = Options(
        schedule=Schedule(bounds.warmup, bounds.steps, 0, 0, bounds.window_s, bounds.least_s),
        run_dir=folder / "run",
        limits=Limits(bounds.first_step_s, bounds.stall_s, ENDS_WITHIN_S),
        quiet=True,
        settings=dict(settings),
        environment={**ENVIRONMENT, **environment},
        directory=cwd,
        output=folder / OUTPUT,
        trial=True,
    )
    began, clock = datetime.datetime.now().astimezone().isoformat(timespec="seconds"), time.monotonic()
    try:
        made = recording.record(started, options)
    except CaptureError as error:
        return Trial.only(
            error.message,
            number=number,
            side=side,
            status="failed",
            note=error.message,
            began=began,
            seconds=time.monotonic() - clock,
        )
    facts = [json_files.read(path, Facts) for path in sorted((folder / "run").glob("rank-*.facts.json"))]
    status, note = _ending(made, folder / OUTPUT)
    shorten(folder / OUTPUT)
    windows = [window for rank_facts in facts if (window := rank_facts.window("untraced"))]
    timed = [steps for window in windows if (steps := durations(window))]
    if status == "ran" and not timed:
        status, note = "no steps", "no step was timed"
    samples, no_samples = samples_per_step(facts, facts[0].world_size if facts else None)
    step_ns = _over_ranks(map(np.mean, timed)) if status == "ran" else None
    fast_step_ns = _over_ranks(np.percentile(steps, _FAST) for steps in timed) if status == "ran" else None
    missing = {} if step_ns is not None else {"step_ns": note, "fast_step_ns": note}
    missing |= {} if samples is not None else {"samples_per_step": no_samples or note}
    count = max(map(len, timed), default=0)
    early = status == "ran" and not made.complete and count < bounds.steps
    return Trial(
        number=number,
        side=side,
        status=status,
        note=f"the script ended after {count} of {bounds.steps} steps to be timed" if early else note,
        ended_early=early,
        began=began,
        seconds=time.monotonic() - clock,
        taken_share=max((window.taken_share or 0.0 for window in windows), default=0.0),
        steps=count,
        step_ns=step_ns,
        fast_step_ns=fast_step_ns,
        median_step_ns=_over_ranks(map(np.median, timed)) if status == "ran" else 0,
        samples_per_step=samples,
        losses=facts[0].losses if facts else [],
        without_effect={**made.without_effect, **effect.without_effect(written or {}, facts)},
        has_change=[name for name, value in (change or {}).items() if effect.in_force(name, value, facts)],
        missing=missing,
    )


def _over_ranks(times: Iterable[np.floating[Any]]) -> int:
    """The median over ranks, whole nanoseconds."""
    return round(float(np.median(list(times))))


def _ending(made: Recording, output: Path) -> tuple[Status, str]:
    ending = made.ending
    if made.hung:
        return "hung", ending.note
    if made.interrupted or ending.how == "interrupted":
        return "interrupted", "it was interrupted"
    if made.complete or ending.how in ("complete", "script-ended"):
        return ("ran", "") if made.ranks else ("no steps", "the script ended without an optimizer step")
    if ending.how == "no-steps":
        return "no steps", "the script ended without an optimizer step"
    said = _last_said(output)
    if _OUT_OF_MEMORY.search(said) or "out of memory" in ending.note:
        return "out of memory", error_in(said) or ending.note
    return "failed", error_in(said) or f"{exit_text(ending.exit_status)}{_last_line(said)}"


def _last_said(output: Path) -> str:
    try:
        with output.open("rb") as file:
            file.seek(max(0, output.stat().st_size - LAST_BYTES))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def error_in(said: str) -> str:
    """The first error in a script's output, not that of a rank which noticed it, or of the launcher; "" for none."""
    found = [
        line for line in _ERROR.findall(said) if "ChildFailedError" not in line and "Connection closed" not in line
    ]
    return redacted_text(found[0][:300]) if found else ""


def _last_line(said: str) -> str:
    """The last line that it printed, after a colon."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return f": {redacted_text(lines[-1][:300])}" if lines else ""
