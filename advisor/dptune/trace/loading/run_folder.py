"""A folder that dptune recorded: its record, facts and trace files."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dptune.finding import SCHEMA_NEWER, Finding
from dptune.runfile import json_files, recognition
from dptune.runfile import paths as names
from dptune.runfile.facts import Facts
from dptune.runfile.ranks import spans
from dptune.runfile.record import RunRecord
from dptune.trace.loading import plausible

_MOST_UNRECORDED, _MOST_SIGNS = 16, 300  # lines of the list that are read, and of each so much


@dataclass
class Contents:
    """A run folder: `traces` are the light windows and `details` the detailed ones, by rank.

    `repeats` are the facts of further processes in which the same script was timed.
    """

    path: Path
    record: RunRecord | None = None
    facts: dict[int, Facts] = field(default_factory=dict)
    traces: dict[int, Path] = field(default_factory=dict)
    details: dict[int, Path] = field(default_factory=dict)
    repeats: list[list[Facts]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


def contents(path: Path) -> Contents:
    """What a run folder holds; a record or facts that cannot be read become findings."""
    found = Contents(path)
    record = path / names.RUN_JSON
    if record.exists():
        try:
            found.record, lost = recognition.record_partly(path)
            found.findings += [Finding(code="record-left-out", level="partial", text=_left_out(lost))] if lost else []
        except (OSError, ValueError) as error:
            _unreadable(found, record, error)
    again: list[Path] = []
    for file in sorted(path.iterdir()):
        rank = names.rank_of(file)
        if file.name == names.REPEATS and file.is_dir():
            again = _numbered(file)
        if rank is None:
            continue
        if file.name.endswith(".facts.json"):
            _take_facts(found, rank, file)
        else:
            windows = found.details if names.is_detail(file) else found.traces
            if windows.setdefault(rank, file) is not file:
                text = f"two files claim rank {rank}: {windows[rank].name} is used, {file.name} left out"
                found.findings.append(Finding(code="rank-duplicate", level="partial", text=text))
    found.repeats = [*_repeats(found, again)]
    found.findings += _unrecorded(entry for entry in sorted(path.iterdir()) if names.is_unrecorded(entry))
    for rank in sorted(set(found.details) - set(found.traces)):
        # The light window was lost: the detailed one still shows the structure of a step.
        found.traces[rank] = found.details[rank]
        text = f"rank {rank} has no light window: its detailed window, recorded with shapes and stacks, is used instead"
        found.findings.append(Finding(code="light-window-missing", level="partial", text=text))
    without = sorted(set(found.traces) - set(found.facts))
    if without:
        which = f"rank {spans(without)} has a trace" if len(without) == 1 else f"ranks {spans(without)} have traces"
        found.findings.append(Finding(code="facts-missing", level="partial", text=f"{which} but no facts"))
    return found


def _left_out(lost: Mapping[str, str]) -> str:
    whole = "a field" if len(lost) == 1 else f"{len(lost)} fields"
    more = "" if len(lost) == 1 else ", and others"
    return f"{names.RUN_JSON} is read without {whole}: {next(iter(lost.values()))}{more}"


def _unrecorded(files: Iterable[Path]) -> Iterator[Finding]:
    """The processes that trained and were not recorded, as they said themselves."""
    for path in files:
        with contextlib.suppress(OSError), path.open(encoding="utf-8", errors="replace") as file:
            lines = file.read(_MOST_UNRECORDED * _MOST_SIGNS).splitlines()[:_MOST_UNRECORDED]
            for line in dict.fromkeys(line.strip()[:_MOST_SIGNS] for line in lines):
                if line:
                    yield Finding(code="process-unrecorded", level="partial", text=line)


def _numbered(folder: Path) -> list[Path]:
    """The folders with a number for a name; none where it cannot be looked into."""
    try:
        return [entry for entry in folder.iterdir() if entry.name.isdecimal() and entry.is_dir()]
    except OSError:
        return []


def _repeats(found: Contents, places: Sequence[Path]) -> Iterator[list[Facts]]:
    """The facts of those repeats that are of the same run and came to all their steps, in the order of running."""
    seen = [_durations(found)]
    for place in sorted(places, key=lambda repeat_folder: int(repeat_folder.name)):
        once = Contents(place)
        try:
            for file in sorted(place.iterdir()):
                rank = names.rank_of(file)
                if rank is not None and file.name.endswith(".facts.json"):
                    _take_facts(once, rank, file)
            why = _not_counted(once, found) or ("it is a copy of another" if _durations(once) in seen else "")
        except OSError as error:
            why = f"it cannot be read: {error.strerror}"
        if why:
            text = f"{names.REPEATS}/{place.name} is not part of the step time: {why}"
            found.findings.append(Finding(code="repeat-left-out", level="info", text=text))
        else:
            seen.append(_durations(once))
            yield [*once.facts.values()]


def _not_counted(once: Contents, found: Contents) -> str:
    """Why a repeat cannot be compared with the recorded run; empty where it does."""
    if once.findings:
        return once.findings[0].text
    worlds = {rank_facts.world_size for each in (once, found) for rank_facts in each.facts.values()}
    if once.facts.keys() != found.facts.keys() or len(worlds) > 1:
        return "its ranks are not those of the run"
    if not all(rank_facts.ended == "complete" and rank_facts.window("untraced") for rank_facts in once.facts.values()):
        return "it did not reach all its steps"
    for what, of in _SAME.items():
        for rank, facts in once.facts.items():
            theirs, ours = (set(of(rank_facts)) - {None, ""} for rank_facts in (facts, found.facts[rank]))
            if theirs and ours and theirs.isdisjoint(ours):  # what is still alive at the end may differ
                return f"it is of another script: {what} {_listed(theirs)}, and the run's {_listed(ours)}"
    return ""


# What processes of one script have alike.
_SAME: dict[str, Callable[[Facts], Iterable[object]]] = {
    "its torch is": lambda facts: [facts.torch],
    "its device is": lambda facts: [facts.device.kind] if facts.device else [],
    "bytes of its gradients are": lambda facts: [ddp.gradient_bytes for ddp in facts.ddp],
    "its optimizer is": lambda facts: [optimizer.name for optimizer in facts.optimizers],
    "its batch size is": lambda facts: [loader.batch_size for loader in facts.loaders],
}


def _listed(values: set[object]) -> str:
    return ", ".join(sorted(map(str, values)))


def _durations(found: Contents) -> list[list[int]]:
    """Of each rank the untraced steps."""
    windows = [facts.window("untraced") for _, facts in sorted(found.facts.items())]
    return [] if None in windows else [window.durations_ns for window in windows if window]


def _take_facts(found: Contents, rank: int, file: Path) -> None:
    try:
        read, lost = json_files.read_partly(file, Facts, plausible.NEEDED, lists=("windows",))
        facts, left_out = plausible.checked(read, rank, lost)
    except (OSError, ValueError) as error:
        _unreadable(found, file, error)
        return
    if rank in found.facts:
        text = f"two facts files claim rank {rank}: {file.name} is left out"
        found.findings.append(Finding(code="facts-duplicate", level="partial", text=text))
        return
    found.facts[rank], impossible = plausible.possible(facts)
    found.findings += [*left_out, *impossible]


def _unreadable(found: Contents, file: Path, error: OSError | ValueError) -> None:
    if isinstance(error, json_files.NewerError):
        found.findings.append(Finding(code=SCHEMA_NEWER, level="partial", text=f"{found.path.name}: {error}"))
        return
    why = f"{file.name} cannot be read: {error.strerror or error}" if isinstance(error, OSError) else str(error)
    hint = (
        "check its permissions" if isinstance(error, PermissionError) else "restore the original file, or record again"
    )
    text = f"{found.path.name}: {why}; {hint}"
    found.findings.append(Finding(code="file-unreadable", level="partial", text=text))
