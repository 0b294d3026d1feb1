"""run.json: what was run, where, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass, field

SCHEMA_VERSION = "0.1"


@dataclass
class Ending:
    """How the recording ended.

    `how`: recording | complete | script-ended | no-steps | failed | interrupted | timed-out. `complete` means that
    every window was filled. `exit_status` is the script's own: what its shell would have seen.
    """

    how: str = "recording"
    exit_status: int | None = None
    note: str = ""


# Steps with the profiler set up but not yet recording, before each traced window: they pay for the setting up.
PROFILER_WARMUP = 1


@dataclass
class Schedule:
    """Optimizer steps per window, in this order."""

    warmup: int = 5
    unprofiled: int = 20
    lean: int = 5
    rich: int = 3

    @property
    def first_boundary(self) -> int:
        """The step after which the first window opens: the end of the very first one at the earliest."""
        return max(1, self.warmup)

    @property
    def total_steps(self) -> int:
        """Optimizer steps from the first one to the end of the recording."""
        traced = sum(steps + PROFILER_WARMUP for steps in (self.lean, self.rich) if steps)
        return self.first_boundary + self.unprofiled + traced


@dataclass
class RunRecord:
    """run.json. Secrets are redacted from `command` before it is written."""

    schema_version: str = SCHEMA_VERSION
    dptune: str = ""
    recorded: str = ""
    command: list[str] = field(default_factory=list)
    python: str = ""
    working_directory: str = ""
    world_size: int | None = None
    nproc_per_node: int = 1
    schedule: Schedule = field(default_factory=Schedule)
    ending: Ending = field(default_factory=Ending)
