"""What the launcher asks of every rank, handed down in one environment variable."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from dptune.runfile.record import Schedule

VARIABLE = "DPTUNE_CAPTURE"


@dataclass(frozen=True)
class Plan:
    """Where to write, how many steps per window, and whether to end the script when all windows are full."""

    folder: str
    launcher: int
    schedule: Schedule
    end_when_full: bool = True

    def as_environment(self) -> str:
        """The plan as the value of the environment variable."""
        return json.dumps(asdict(self))

    @classmethod
    def from_environment(cls) -> Plan | None:
        """The plan of the run this process belongs to; None where there is none."""
        text = os.environ.get(VARIABLE)
        if not text:
            return None
        data = json.loads(text)
        return cls(**{**data, "schedule": Schedule(**data["schedule"])})

    @property
    def path(self) -> Path:
        """The run folder."""
        return Path(self.folder)
