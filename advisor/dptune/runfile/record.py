"""run.json: what was run, where, and how it ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dptune.runfile.origin import Origin

SCHEMA_VERSION = "0.3"


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
# A window that its time bound ends has at least so many steps; the untraced one is what the step time comes from.
LEAST_JUDGED_STEPS = 3  # of a trace: below it the median step is one step, or the mean of two
LEAST_STEPS = {"warm-up": 1, "untraced": 3, "light": 1, "detailed": 1, "noise": 8}


@dataclass
class Schedule:
    """Optimizer steps per window, in this order, and the seconds after which a window ends before that (0: never).

    The untraced window lasts at least `least_s` seconds, with more steps if steps are short. The light window has up
    to `light_most` steps where step times vary (0: `light` steps, no more). The last one, `noise`, measures gradient
    norms. `sync_events`: the light window also records CUDA's synchronization
    events, by which a trace shows exactly which stream waits for which.
    """

    warmup: int = 5
    untraced: int = 20
    light: int = 5
    detailed: int = 3
    window_s: float = 60.0
    least_s: float = 0.0
    noise: int = 0
    sync_events: bool = False
    light_most: int = 0

    @property
    def first_boundary(self) -> int:
        """The step after which the first window opens: the end of the very first one at the earliest."""
        return max(1, self.warmup)

    @property
    def total_steps(self) -> int:
        """Optimizer steps from the first one to the end of the recording, unless a time shortens or lengthens it."""
        traced = sum(steps + PROFILER_WARMUP for steps in (self.light_steps, self.detailed) if steps)
        return self.first_boundary + self.untraced + traced + self.noise

    @property
    def light_steps(self) -> int:
        """The most steps that the light window has."""
        return max(self.light, self.light_most) if self.light else 0


@dataclass
class CardReadings:
    """Readings of one card while the ranks were in a window, `samples` in number.

    `sm_clock_mhz` and `memory_clock_mhz` are medians. `throttled`: in how many readings the clock was throttled, by
    reason; clocks of an idle card are not.
    """

    window: str
    samples: int = 0
    sm_clock_mhz: int | None = None
    least_sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    most_power_w: float | None = None
    most_temperature_c: int | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    throttled: dict[str, int] = field(default_factory=dict)


@dataclass
class CardRecord:
    """One NVIDIA card that the run used, by NVML; `index` is NVML's, which CUDA_VISIBLE_DEVICES does not change.

    `most_*` is the maximum of the card and its slot. A query that the card did not answer is absent and listed in
    `unread` with the reason.
    """

    index: int
    host: str = ""
    uuid: str = ""
    name: str = ""
    driver: str = ""
    most_sm_clock_mhz: int | None = None
    power_limit_w: float | None = None
    most_pcie_generation: int | None = None
    most_pcie_width: int | None = None
    readings: list[CardReadings] = field(default_factory=list)
    unread: dict[str, str] = field(default_factory=dict)


@dataclass
class RunRecord:
    """run.json. Secrets are redacted from `command` before it is written.

    `launched_by`: dptune | torchrun (dptune starts ranks through it) | command (dptune starts the user's own
    launcher) | launcher (the user's launcher starts dptune, once per rank) | environment | code. `nproc_per_node`
    and `nnodes` are as requested (`gpu`, `1:4`). `ranks` are those that were to be recorded, where it was a sample.
    `unrecorded` are scripts that trained in processes which were not recorded. `settings` is what was changed in
    the script from outside, by the names of knobs. `tokens_per_step`, `samples_per_step`: over all ranks, from the
    user; None where not given. `cpu_peak`: whether ranks on CPUs were to measure their peak; None in recordings of
    older versions.
    `topology` is what `nvidia-smi topo -m` printed. `cards` are the NVIDIA cards that were used, or all of the host
    where that is not known; `cards_unread` why there are none. `links_unmeasured`: why the links between its ranks
    are not known. `commit` is the git commit in the working directory, with `+` where tracked files
    differ from it. `origin` identifies user and machine of the recording, as digests.
    """

    schema_version: str = SCHEMA_VERSION
    dptune: str = ""
    recorded: str = ""
    command: list[str] = field(default_factory=list)
    python: str = ""
    torch: str = ""
    working_directory: str = ""
    commit: str = ""
    origin: Origin = field(default_factory=Origin)
    launched_by: str = "dptune"
    world_size: int | None = None
    nproc_per_node: int | str = 1
    nnodes: int | str = 1
    ranks: list[int] | None = None
    unrecorded: list[str] = field(default_factory=list)
    hosts: list[str] = field(default_factory=list)
    devices: list[str] = field(default_factory=list)
    topology: str | None = None
    cards: list[CardRecord] = field(default_factory=list)
    cards_unread: str = ""
    links_unmeasured: str = ""
    schedule: Schedule = field(default_factory=Schedule)
    settings: dict[str, bool | int | float | str | None] = field(default_factory=dict)
    tokens_per_step: int | None = None
    samples_per_step: int | None = None
    cpu_peak: bool | None = None
    ending: Ending = field(default_factory=Ending)

    @property
    def typed(self) -> list[str]:
        """The command to copy: under torchrun where dptune started the ranks through it."""
        return typed_command(self.command, self.launched_by, self.nproc_per_node, self.nnodes)


def typed_command(
    command: Sequence[str], launched_by: str, nproc_per_node: int | str | None, nnodes: int | str | None = None
) -> list[str]:
    """The command that starts all ranks; `command` is what each of them runs where dptune starts them by torchrun."""
    if launched_by != "torchrun" or list(command[:1]) != ["python"]:
        return list(command)
    several = ["--nnodes", str(nnodes)] if str(nnodes or 1) not in ("1", "1:1") else []
    return ["torchrun", *several, "--nproc-per-node", str(nproc_per_node or 1), *command[1:]]
