"""The trials of a search, in the order they were made, in a file: an interrupted search goes on with them."""

from __future__ import annotations

from collections import deque
from pathlib import Path

from pydantic import Field

from dptune.errors import RunError
from dptune.measured import Model
from dptune.prove.result import Side, Trial
from dptune.runfile import json_files

_LARGEST_BYTES = 64 * 2**20


class Subject(Model):
    """What a search is about: trials of another subject are not its trials."""

    machine: str
    original: Side
    candidates: list[str] = Field(description="names and settings of the candidates, in their order")
    trial: list[float] = Field(description="warm-up steps, timed steps and seconds of a trial")


class Entry(Model):
    """One trial, with the names of the changes it ran with, and the seconds that it took with its copy."""

    changes: list[str]
    trial: Trial
    seconds: float


class _Kept(Model):
    subject: Subject
    entries: list[Entry]


class Journal:
    """Entries that were read are given out in their order; from the first that does not fit on they are dropped."""

    def __init__(self, path: Path, subject: Subject) -> None:
        self.path, self.subject = path, subject
        self.entries: list[Entry] = []
        self._read: deque[Entry] = deque()

    def resume(self) -> int:
        """Take over what was kept; how many trials. Raises RunError where it is of another subject, or unreadable."""
        if not self.path.exists():  # the search ended before its first trial did
            return 0
        try:
            kept = _Kept.model_validate_json(json_files.regular(self.path, _LARGEST_BYTES))
        except (OSError, ValueError) as error:
            raise RunError(f"{self.path} has no readable trials: {str(error).splitlines()[0]}") from None
        if kept.subject != self.subject:
            raise RunError(
                f"the trials in {self.path} used different code, candidates, steps or hardware",
                "repeat the options of that search, or leave out --resume",
            )
        self._read = deque(kept.entries)
        return len(kept.entries)

    def next(self, changes: list[str]) -> Entry | None:
        """The trial that was made before, if it is the next one and ran with these changes."""
        if self._read and self._read[0].changes == changes:
            entry = self._read.popleft()
            self.entries.append(entry)
            return entry
        self._read.clear()
        return None

    def add(self, entry: Entry) -> None:
        """Write a new one down."""
        self.entries.append(entry)
        json_files.put(self.path, _Kept(subject=self.subject, entries=self.entries).model_dump_json(indent=1) + "\n")
