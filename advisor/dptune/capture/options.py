"""What the user asks of a recording, beside what is started."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from dptune.capture.watch import Limits
from dptune.runfile.record import Schedule


@dataclass(frozen=True)
class Options:
    """`ranks`: those to record, None for all. `run_dir`: the folder to make, None for one under dptune-runs/."""

    schedule: Schedule = field(default_factory=Schedule)
    ranks: tuple[int, ...] | None = None
    run_dir: Path | None = None
    end_when_full: bool = True
    limits: Limits = field(default_factory=Limits)
    quiet: bool = False
