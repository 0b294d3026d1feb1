"""run.json as it stands at the end: how it ended, and what the ranks have said of themselves."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from dptune.capture.folder import RunFolder
from dptune.runfile import json_files, paths
from dptune.runfile.facts import Facts
from dptune.runfile.record import CardRecord, Ending, RunRecord

# From the best to the worst; of several launchers the worst stands in run.json.
_WORSE = ("recording", "complete", "script-ended", "no-steps", "interrupted", "failed", "timed-out")
ENDED_BY_ANOTHER = 143  # a launcher ends its other ranks with SIGTERM when one has failed


def facts_in(folder: Path) -> list[Facts]:
    """What the ranks wrote, by rank."""
    found = []
    for path in sorted(folder.glob("rank-*.facts.json")):
        with contextlib.suppress(ValueError, OSError):
            found.append(json_files.read(path, Facts))
    return found


def conclude(
    folder: RunFolder, record: RunRecord, stepped: bool, *, remembered: bool = True
) -> tuple[RunRecord, list[Facts]]:
    """Write how it ended to run.json, with the other launchers' endings where several share the folder.

    `stepped`: whether a process of this launcher made a step, recorded or not; `remembered`: `latest` names it.
    Returns run.json and all facts.
    """
    facts = facts_in(folder.path)
    if record.ending.how == "recording":
        record.ending = Ending("failed", note="the launcher ended before the script did")
    if record.ending.how == "script-ended":
        if facts and all(rank_facts.ended == "complete" for rank_facts in facts):
            record.ending.how = "complete"
        elif not facts and not stepped:
            record.ending.how = "no-steps"
    _describe(record, facts)
    stopped = next(
        (
            f"rank {rank_facts.rank}: {rank_facts.ended}"
            for rank_facts in facts
            if rank_facts.ended.startswith("recording stopped")
        ),
        "",
    )
    record.ending.note = record.ending.note or stopped
    _write(folder.own_record, record)
    whole = _merged(folder, record)
    if remembered:
        _remember(folder.path)
    return whole, facts


def _remember(path: Path) -> None:
    """`dptune-runs/latest` names the newest recording made from here, wherever it lies and however it ended."""
    if not path.is_dir():
        return  # removed while it ran
    with contextlib.suppress(OSError, ValueError):  # a full disk; on Windows, another drive
        paths.RUNS.mkdir(exist_ok=True)
        json_files.name_newest(paths.RUNS, os.path.relpath(path, paths.RUNS))


def _merged(folder: RunFolder, launcher_record: RunRecord) -> RunRecord:
    """run.json from all launchers' records. Whoever writes last has seen what was there before: no lock is needed."""
    if folder.seat is None:
        return launcher_record
    while True:
        records = folder.records()
        whole = replace(launcher_record, ending=_worst([record.ending for record in records]), cards=_cards(records))
        _describe(whole, facts_in(folder.path))
        _write(folder.path / paths.RUN_JSON, whole)
        if folder.records() == records:
            return whole


def _write(path: Path, record: RunRecord) -> None:
    """A disk that is full must not take the script's own exit status away."""
    try:
        json_files.write(path, record)
    except OSError as error:
        with contextlib.suppress(OSError):
            json_files.overwrite(path, record)
            return
        with contextlib.suppress(OSError, ValueError):
            print(f"dptune: {path} could not be written: {error.strerror}", file=sys.stderr)


def _cards(records: Sequence[RunRecord]) -> list[CardRecord]:
    """The cards of all hosts, each once: launchers of one host, one to a rank, read the same ones."""
    read = [card for record in records for card in record.cards]
    return list({(card.host, card.index): card for card in reversed(read)}.values())[::-1]


def _worst(endings: Sequence[Ending]) -> Ending:
    known = [ending for ending in endings if ending.how != "recording"]
    worst = max(known, key=_badness, default=Ending())
    silent = len(endings) - len(known)
    if not silent:
        return worst
    note = f"{silent} of {len(endings)} launchers did not report how they ended"
    return replace(worst, note="; ".join(part for part in (worst.note, note) if part))


def _badness(ending: Ending) -> tuple[int, bool]:
    return _WORSE.index(ending.how) if ending.how in _WORSE else 0, ending.exit_status != ENDED_BY_ANOTHER


def _describe(record: RunRecord, facts: Sequence[Facts]) -> None:
    if not facts:
        return
    record.world_size = facts[0].world_size
    record.torch = facts[0].torch or record.torch
    record.hosts = _once(rank_facts.host for rank_facts in facts) or record.hosts
    record.devices = _once(
        (rank_facts.device.name or rank_facts.device.kind) if rank_facts.device else "" for rank_facts in facts
    )


def _once(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(name for name in names if name))
