"""What is asked of every rank, handed down in one environment variable."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dptune.runfile.record import Schedule

VARIABLE = "DPTUNE_CAPTURE"
# What a rank is in after its windows: its recording is complete, or nothing more will come of it.
DONE, ENDED = "done", "ended"
OVER = frozenset((DONE, ENDED))
# A file in the live folder: the name of a script that trains in a process which is not recorded; the process follows.
UNRECORDED = "unrecorded-"
# A process that is observed answers this signal with the stack of each of its threads, also while it is blocked in C.
STACKS_SIGNAL: int | None = signal.SIGRTMAX - 2 if hasattr(signal, "SIGRTMAX") else None


@dataclass(frozen=True)
class Plan:
    """Where to write, how much to record of which ranks, and whether to end the script when all windows are full.

    `ranks`: those that are recorded, None for all. `live`: the folder in which ranks tell the launcher how they are,
    None where nobody watches; there the ranks write run.json themselves. `launcher`: the watching process, 0 for none.
    `settings`: what to change in the script, by the names of knobs. `nccl_log`: whether NCCL is to write its log there.
    `cpu_peak`: whether to measure the peak of a CPU after a detailed window.
    """

    folder: str
    launcher: int
    schedule: Schedule
    end_when_full: bool = True
    ranks: tuple[int, ...] | None = None
    live: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    nccl_log: bool = False
    cpu_peak: bool = True

    def as_environment(self) -> str:
        """The plan as the value of the environment variable."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_environment(cls) -> Plan | None:
        """The plan of the run this process belongs to; None where there is none."""
        text = os.environ.get(VARIABLE)
        if not text:
            return None
        data = json.loads(text)
        ranks = None if data["ranks"] is None else tuple(data["ranks"])
        return cls(**{**data, "schedule": Schedule(**data["schedule"]), "ranks": ranks})

    @property
    def path(self) -> Path:
        """The run folder."""
        return Path(self.folder)

    def records(self, rank: int) -> bool:
        """Whether that rank is to be recorded."""
        return self.ranks is None or rank in self.ranks
