"""Which folders dptune recorded, by what lies in them: other tools write a `run.json`, too."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

from dptune.runfile import json_files
from dptune.runfile import paths as names
from dptune.runfile.record import RunRecord

_MOST_SIGNS = 2**24  # of a run.json that are read
_START = 4096  # signs in which the first keys of a damaged record lie
_BEGINS = '{\n "schema_version":'  # as dptune writes it
_KEYS = {field.name for field in fields(RunRecord)}


def is_run_folder(folder: Path) -> bool:
    """Whether dptune recorded this folder. False where it may not be looked into."""
    record = folder / names.RUN_JSON
    try:
        return names.holds_facts(folder) or (record.is_file() and (holds_windows(folder) or not foreign(record)))
    except OSError:  # what cannot be opened is reported where it is read
        return False


def holds_windows(folder: Path) -> bool:
    """Whether facts or traces with the names that dptune gives them lie in the folder."""
    return any(names.rank_of(path) is not None for path in folder.iterdir())


def record_of(folder: Path) -> RunRecord:
    """The folder's run.json. Raises OSError, or ValueError with one sentence on why it is not read."""
    path = folder / names.RUN_JSON
    record = json_files.read(path, RunRecord)  # which takes any object: all fields have defaults
    _check_ours(path)
    return record


def record_partly(folder: Path) -> tuple[RunRecord, dict[str, str]]:
    """The folder's run.json without the fields that do not fit, and by name why. Raises as `record_of` does."""
    path = folder / names.RUN_JSON
    found = json_files.read_partly(path, RunRecord, needed=(), lists=("cards",))
    _check_ours(path)
    return found


def _check_ours(path: Path) -> None:
    if foreign(path):
        raise ValueError(f"{path.name} was not written by dptune")


def foreign(record: Path) -> str:
    """Why a run.json is not known to be dptune's, as a phrase that follows its name; "" where it is, damaged or not."""
    try:
        if not record.is_file():  # a pipe or a device: reading it may never end
            return "is not a regular file"
        with record.open(encoding="utf-8-sig", errors="replace") as file:
            content = file.read(_MOST_SIGNS)
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"
    if not content.strip():
        return "is empty"
    try:
        data = json.loads(content)
    except (ValueError, RecursionError):
        start = content[:_START]
        ours = start.startswith(_BEGINS) or ('"schema_version"' in start and '"dptune"' in start)
        return "" if ours else "is not readable JSON"
    return "" if isinstance(data, dict) and _is_record(data, content) else "was not written by dptune"


def _is_record(data: dict[str, object], content: str) -> bool:
    """Whether an object is a record of this version of dptune or another, perhaps with fields lost."""
    if "dptune" in data or 2 * len(_KEYS & data.keys()) >= len(_KEYS):
        return True
    version = str(data.get("schema_version", ""))
    return version[:1].isdecimal() and (data.keys() <= _KEYS or "dptune" in content)
