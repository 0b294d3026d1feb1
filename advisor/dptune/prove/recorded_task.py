"""A task from a recording: its script as it is, and with changes, patched in a copy or set from outside."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from dptune.advice import Change
from dptune.capture.launch import Launch
from dptune.knobs import Value, written
from dptune.prove import identity, rerun
from dptune.prove.result import Side
from dptune.prove.task import Task, numerics_of
from dptune.runfile.paths import RUN_JSON
from dptune.runfile.record import RunRecord
from dptune.runfile.redaction import redacted_command, redacted_settings


def of_recording(
    folder: Path,
    record: RunRecord,
    source: Path,
    settings: Mapping[str, Value],
    changes: Sequence[Change],
    command: Sequence[str] = (),
    *,
    here: bool = False,
    launch: Launch | None = None,
) -> Task:
    """A is the script in `source` as it was recorded, or `command` instead; B has `settings` beside.

    `changes` are those of the settings that are made by a patch where that is possible. With `here` trials run in
    `source` itself. `launch` is that of another task of the same recording: to find one starts an interpreter.
    """
    if launch is None:
        with contextlib.chdir(source):
            launch = rerun.launch_of(record, command)
    shown = redacted_command(launch.typed)
    before = rerun.settings_of(record)
    changed = {**before, **dict(sorted(settings.items()))}
    files = identity.files(source, launch, folder)
    place, code = str(source), identity.digest(source, launch, files)
    patched, made_there = _patched(changes, source) if changes else ({}, frozenset())
    after = {source / name: identity.content(data) for name, data in patched.items()}
    of_patch = identity.digest(source, launch, {**files, **after})
    b, names = redacted_settings(changed), list(patched)
    return Task(
        a=Side(name="unchanged", settings=redacted_settings(before), command=shown, directory=place, code=code),
        b=Side(name=named(settings), settings=b, command=shown, directory=place, code=of_patch, patched=names),
        launches={"A": launch, "B": launch},
        settings={"A": before, "B": changed},
        sources={"A": None, "B": None} if here else {"A": source, "B": source},
        directory=source if here else None,
        recorded=not command and record.ending.how in ("complete", "script-ended"),
        patched=patched,
        written=made_there,
        numerics=numerics_of(settings),
        command=" ".join(shown) if command and shown != record.typed else "",
        code={"A": files, "B": files},
        written_since=identity.written_since(source, files, launch, (folder / RUN_JSON).stat().st_mtime),
    )


def named(settings: Mapping[str, Value]) -> str:
    """Settings in words, without secrets."""
    return ", ".join(f"{name}={written(value)}" for name, value in sorted(redacted_settings(dict(settings)).items()))


def _patched(changes: Sequence[Change], source: Path) -> tuple[dict[str, bytes], frozenset[str]]:
    from dptune.patch.diff import patched  # imports libcst

    return patched(changes, source)
