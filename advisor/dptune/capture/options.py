"""What the user asks of a recording, beside what is started."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dptune.capture.watch import Limits
from dptune.runfile.record import Schedule


@dataclass(frozen=True)
class Options:
    """`ranks`: those to record, None for all. `run_dir`: the folder to make, None for one under dptune-runs/.

    `settings`: what to change in the script, by the names of knobs. `nccl_log`: let NCCL write its log into the folder.
    `cpu_peak`: measure the peak of a CPU after a detailed window.
    `tokens`, `samples`: per optimizer step over all ranks, for the record. `environment`: variables it gets beside
    ours; `directory`: where it runs, None for here; `output`: a file for what it prints, None for our own streams;
    `trial`: it is one of many: no process that it started lives on after it, and `latest` does not name it.
    """

    schedule: Schedule = field(default_factory=Schedule)
    ranks: tuple[int, ...] | None = None
    run_dir: Path | None = None
    end_when_full: bool = True
    limits: Limits = field(default_factory=Limits)
    quiet: bool = False
    settings: dict[str, Any] = field(default_factory=dict)
    nccl_log: bool = False
    cpu_peak: bool = True
    tokens: int | None = None
    samples: int | None = None
    environment: dict[str, str] = field(default_factory=dict)
    directory: Path | None = None
    output: Path | None = None
    trial: bool = False
