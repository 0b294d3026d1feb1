"""What was asked for from outside, by the names of knobs, and what of it was not made, with the reason."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from dptune.runfile.redaction import redacted_settings
from dptune.runfile.variables import VariableFacts

ENVIRONMENT = "env."
_SITE = str(Path(__file__).parents[1] / "site")


class RequestedSettings:
    """The settings of this process. What is refused stands in the facts, and is said after the run."""

    def __init__(self) -> None:
        self.settings: dict[str, Any] = {}
        self.refused: dict[str, str] = {}

    def refuse(self, name: str, why: str) -> None:
        """Note that the setting was not made, or not everywhere. The first reason stands."""
        self.refused.setdefault(name, why)

    def variables(self) -> list[VariableFacts]:
        """How the variables that were asked for stand now."""
        wanted = {
            name.removeprefix(ENVIRONMENT): value
            for name, value in self.settings.items()
            if name.startswith(ENVIRONMENT)
        }
        return [_variable(name, None if value is None else str(value)) for name, value in wanted.items()]


def _variable(name: str, wanted: str | None) -> VariableFacts:
    value = os.environ.get(name)
    if name == "PYTHONPATH" and value is not None:  # the recorder's own folder was put in front
        value = os.pathsep.join(entry for entry in value.split(os.pathsep) if entry != _SITE) or None
    shown = None if value is None else redacted_settings({f"{ENVIRONMENT}{name}": value})[f"{ENVIRONMENT}{name}"]
    return VariableFacts(name, None if shown is None else str(shown), value == wanted)


asked = RequestedSettings()
