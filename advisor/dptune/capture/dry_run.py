"""What a recording would be, in lines: nothing is started and nothing is made."""

from __future__ import annotations

import os
import shlex
import shutil
import textwrap
from collections.abc import Iterator

from dptune.capture import disk, folder, launch, recording
from dptune.capture.injected.record.plan import VARIABLE
from dptune.capture.launch import Launch
from dptune.capture.options import Options
from dptune.knobs import ENVIRONMENT
from dptune.runfile import paths
from dptune.runfile.ranks import spans
from dptune.runfile.record import PROFILER_WARMUP, Schedule
from dptune.runfile.redaction import redacted_command, redacted_environment, redacted_settings

_WIDEST = 100
_TITLE = 12
_FACTS = (
    "modules wrapped for data-parallel training (DDP with bucket sizes and options, FSDP with how it shards); "
    "optimizers, schedulers, data loaders, autocast, gradient scaler and torch.compile, with the line of yours that "
    "made each; torch's switches; device, cores and memory; environment variables of NCCL, GLOO, CUDA, OMP and torch"
)


def lines(started: Launch, options: Options) -> list[str]:
    """The outline. Raises what the recording itself would raise before it starts."""
    recording.begin(started, options)
    return [line for title, text in _parts(started, options) for line in _paragraph(title, text)]


def _parts(started: Launch, options: Options) -> Iterator[tuple[str, str]]:
    seat, key = recording.seating(started, options)
    where = folder.intended(options.run_dir, started.name, key)
    if seat is None:
        folder.check_new(options.run_dir)
    shell = "processes started from this shell"
    yield "command", shlex.join(redacted_command(started.words)) if started.words else shell
    yield "python", _python(started)
    yield "adds", f"{VARIABLE} (what these lines say)"
    settings = redacted_settings(options.settings)
    added = launch.beside_the_plan(os.environ, settings)
    for variable, text in added.items():
        yield "adds", f"{variable}={text}"
    for variable in launch.removed(settings):
        if variable not in added:
            yield "unsets", variable
    for name, value in settings.items():
        if not name.startswith(ENVIRONMENT):
            yield "sets", f"{name}={value}"
    yield "folder", str(where) + (" (shared with the other launchers of this run)" if seat else "")
    yield "files", ", ".join(_files(options))
    yield "ranks", _ranks(started, options)
    for name, text in _windows(options):
        yield name, text
    count = recording.local_ranks(started, options)
    need, free = disk.need_bytes(options.schedule, count), disk.free_bytes(where)
    fits = "" if need <= free else ": does not fit, so recording would be refused"
    need_text = f"up to {disk.megabytes(need)} for {count} {'rank' if count == 1 else 'ranks'}"
    yield "disk", f"{need_text}, {disk.megabytes(free)} free{fits}"
    yield "facts", f"of each rank: {_FACTS}. Those of these that are set now: {_variables()}"
    yield "ends", _end(started, options)


def _python(started: Launch) -> str:
    found = started.interpreter
    if found is None:
        return "unknown: no Python with torch was found; the command's own Python is used"
    return f"{found.path} (Python {'.'.join(map(str, found.python))}, torch {found.torch})"


def _files(options: Options) -> Iterator[str]:
    yield paths.RUN_JSON
    yield "rank-NNNNN.facts.json"
    if options.schedule.light:
        yield "rank-NNNNN.trace.json.gz"
    if options.schedule.detailed:
        yield "rank-NNNNN.detail.trace.json.gz"


def _ranks(started: Launch, options: Options) -> str:
    if options.ranks is not None:
        known = f" of {started.world_size}" if started.world_size else ""
        return f"{spans(options.ranks, ',')}{known}; other ranks run unrecorded"
    if started.world_size:
        return f"all {started.world_size}" if started.world_size > 1 else "the only one"
    return "all ranks started by the script or its launcher"


def _windows(options: Options) -> Iterator[tuple[str, str]]:
    schedule = options.schedule
    yield "warm-up", f"skips {schedule.first_boundary} optimizer steps first"
    for name, steps, what in (
        ("untraced", schedule.untraced, "timed, not traced"),
        ("light", schedule.light, f"traced: names and times{_more(schedule)}"),
        ("detailed", schedule.detailed, "traced with shapes, stacks, memory"),
    ):
        before = f", after {PROFILER_WARMUP} for profiler start-up" if name != "untraced" else ""
        yield name, f"{steps} {'step' if steps == 1 else 'steps'} {what}{before}" if steps else "none"
    if schedule.noise:
        yield "noise", f"{schedule.noise} steps to measure gradient norms, neither timed nor traced"
    bound = f"time limit per window {schedule.window_s:g} s" if schedule.window_s else "no time limit"
    yield "bound", f"{bound}; {schedule.total_steps} steps at most"


def _more(schedule: Schedule) -> str:
    if schedule.light_steps <= schedule.light:
        return ""
    return f" (of several ranks or GPUs up to {schedule.light_steps}, where step times vary)"


def _variables() -> str:
    return ", ".join(f"{name}={value}" for name, value in redacted_environment().items()) or "none"


def _end(started: Launch, options: Options) -> str:
    if not options.end_when_full:
        return "the script runs to its end (--continue)"
    how = "SystemExit out of optimizer.step(), on all ranks at the same step"
    limits = (
        f"; aborted after {options.limits.first_step_s:g} s without a first step, or {options.limits.stall_s:g} s "
        f"between steps, with the stacks of all ranks"
    )
    return f"when all windows are full: {how}" + (limits if started.by != "environment" else "")


def _paragraph(title: str, text: str) -> list[str]:
    width = min(_WIDEST, shutil.get_terminal_size((_WIDEST, 24)).columns)
    wrapped = textwrap.wrap(text, max(20, width - _TITLE), break_long_words=False, break_on_hyphens=False) or [""]
    return [f"{title:<{_TITLE}}{wrapped[0]}", *(f"{'':<{_TITLE}}{line}" for line in wrapped[1:])]
