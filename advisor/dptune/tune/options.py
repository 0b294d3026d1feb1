"""The options of a search, kept beside its trials: `--resume` continues with them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from dptune.errors import RunError, UsageError
from dptune.measured import Model
from dptune.prove.trial import Bounds
from dptune.runfile import json_files
from dptune.runfile.redaction import HIDDEN, redacted_command
from dptune.tune.candidates import Allowed, Choice

OPTIONS = "options.json"
_LARGEST_BYTES = 2**20
_WORDS = {
    "numerics": "--numerics",
    "only": "--only",
    "skip": "--skip",
    "warmup": "--warmup",
    "steps": "--steps",
    "seconds": "--seconds",
    "stall_timeout_s": "--stall-timeout",
    "command": "the command",
}


class Options(Model):
    """What a search may try and how long its trials are. `only` and `skip` have codes of rules and names of knobs."""

    numerics: Allowed = "same"
    only: list[str] = Field(default_factory=list)
    skip: list[str] = Field(default_factory=list)
    command: list[str] = Field(default_factory=list, description="replaces that of the recording; empty: as recorded")
    warmup: int = Field(5, ge=0, description="warm-up steps of a trial")
    steps: int = Field(30, ge=1, description="timed steps of a trial")
    seconds: float = Field(3.0, ge=0, description="least time that a trial times")
    stall_timeout_s: float = Field(120.0, gt=0)
    time_limit_s: float = Field(1200.0, gt=0, description="of all trials; a resumed search may have another one")

    @property
    def bounds(self) -> Bounds:
        """How long a trial is."""
        return Bounds(self.warmup, self.steps, self.seconds, stall_s=self.stall_timeout_s)

    @property
    def choice(self) -> Choice:
        """What may be tried."""
        return Choice(self.numerics, frozenset(self.only), frozenset(self.skip))

    def continued(self, given: Mapping[str, Any]) -> Options:
        """The options of the search when it continues: these, and of the given ones the time limit.

        Raises UsageError where another one is given with a different value, or a secret of the command is missing.
        """
        shown = {**given, **({"command": redacted_command(given["command"])} if "command" in given else {})}
        if "command" in given and not self.command:
            raise UsageError("--resume continues with the recorded command", "leave out the script")
        for name, word in _WORDS.items():
            if name in shown and shown[name] != getattr(self, name):
                here, there = (_written(value) or "not given" for value in (shown[name], getattr(self, name)))
                raise UsageError(
                    f"{word} differs from the search to resume: {here} now, {there} before",
                    f"leave out {word}, or start a new search without --resume",
                )
        if any(HIDDEN in word for word in self.command) and "command" not in given:
            raise UsageError(
                "the command of the search has a secret, which dptune does not store", "repeat the command"
            )
        taken = {name: given[name] for name in ("time_limit_s", "command") if name in given}
        return self.model_copy(update=taken)

    def write(self, folder: Path) -> None:
        """Keep them in the folder of the results, without secrets."""
        kept = self.model_copy(update={"command": redacted_command(self.command)})
        json_files.put(folder / OPTIONS, kept.model_dump_json(indent=1) + "\n")


def read(folder: Path) -> Options:
    """The options of the search whose results are in this folder. Raises RunError where they cannot be read."""
    path = folder / OPTIONS
    try:
        return Options.model_validate_json(json_files.regular(path, _LARGEST_BYTES))
    except (OSError, ValueError) as error:
        raise RunError(f"{path} has no readable options: {str(error).splitlines()[0]}", "start a new search") from None


def _written(value: object) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
