"""A window of the recording, as one rank timed it, and where the training thread was found in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median_low

from dptune.runfile.garbage_collections import CollectCallFacts
from dptune.runfile.load import LoadFacts

# Of the cores' time, what the host of a virtual machine may take while steps are timed. On one with two cores under
# load 0 to 3 % is usual, and for minutes at a time 10 to 24 %, in which like trials took up to 1.9 times as long.
MOST_TAKEN = 0.05


@dataclass
class SampledFacts:
    """Stack samples of the training thread at one place, in untraced steps.

    `path` are the script's lines from the outermost on, as `function (file:line)`; `phase` is `loader`, `forward`,
    `backward`, `optimizer`, `collective` or empty, by the outermost of them that it was in; `kind` is `saving`,
    `logging`, `plotting`, `metrics`, `evaluation` or empty, by the libraries that it was in; `through` is the function
    of a library that the last line calls, or that of the kind. `form` is the known costly pattern in the source of one
    of the lines, and `form_at` the index of this line in `path`: `constants` (it calls a function of the script with
    constants only), `copy`, `tensor` (made of Python values), `reading`, `writing`, `histogram`, `rows` (of a table),
    `sorting`, `weighted` (draws), `draws` (single random numbers), `deque` (draws from it), `joining` (of all values so
    far), `items` or `elements` (a loop over single values); empty if none is known. `loops`: for each line of `path`,
    the line of the innermost loop of its function around it, 0 without one; `firsts`: the first line of its function.
    `spent_ns` is the time by step of the window, numbered from 0 in `steps`, and `looks` the number of samples.
    """

    path: list[str] = field(default_factory=list)
    phase: str = ""
    through: str = ""
    kind: str = ""
    looks: int = 0
    steps: list[int] = field(default_factory=list)
    spent_ns: list[int] = field(default_factory=list)
    form: str = ""
    form_at: int = 0
    loops: list[int] = field(default_factory=list)
    firsts: list[int] = field(default_factory=list)


@dataclass
class Window:
    """One window of the recording: `steps` optimizer steps starting with number `first_step`, one list item each.

    `durations_ns` is host wall time from the end of one optimizer step to the end of the next; `device_durations_ns`
    the same between events on the device, where it is a GPU. `loader_wait_ns` is time inside the DataLoader's
    `__next__` on the training thread, `loader_cpu_ns` the part of it in which that thread computed, `loader_fetch_ns`
    the part in which it prepared batches itself, as a loader without workers does, `gc_ns` the time that thread
    collected garbage, `collections_ns` its full collections (not by step: start and end of each, since the epoch),
    `collect_calls` its calls of `gc.collect` by line (not by step),
    `compile_ns` the time in which torch.compile compiled, `loader_samples` the batch size of the loaders times the
    batches drawn, `backwards` the calls of backward, `backward_ns` host time in them, `backward_cpu_ns` the part of it
    in which the thread that called computed (on a CPU it is the one that does), and `unsynced_backwards` those of them
    in which DDP reduced no gradient: under `no_sync`, or of something else. `unsynced_updates`: whether an optimizer
    stepped on gradients of a DDP module that the last backward pass into it had not averaged over the ranks.
    `recomputed_ns`: how long the host ran parts of forward passes again, for activation checkpointing.
    `buffer_sync_ns`: how long it sent DDP's buffers before forward passes, or waited for them; `unused_search_ns`: how
    long DDP searched for unused parameters after them. `parameter_sums` are of some parameters after the window's last
    step: equal on ranks that hold the same weights, none where parameters are sharded. `sampled`: where the training
    thread was, of untraced steps. `skipped_steps` counts those that a GradScaler skipped (None where the optimizer is
    fused, and skips by itself). `memory_bytes` is what the rank holds after each step: allocated on its GPU, or
    resident in memory; empty where not known.
    `trace_text_bytes` is the size of the trace before compression, `saving_ns` how long writing it took, after the
    window. `taken_share` is the CPU steal time of a virtual machine, as a share of the time for which its cores had
    work in the window (None where its kernel does not count it). `load`: CPU time of the job and of the whole
    machine, None in a window shorter than that can be counted in. `complete`: the window was not interrupted;
    `cut_short`: its time limit ended it before its number of steps.
    """

    name: str
    first_step: int
    durations_ns: list[int] = field(default_factory=list)
    device_durations_ns: list[int] | None = None
    loader_wait_ns: list[int] = field(default_factory=list)
    loader_cpu_ns: list[int] = field(default_factory=list)
    loader_fetch_ns: list[int] = field(default_factory=list)
    gc_ns: list[int] = field(default_factory=list)
    collections_ns: list[list[int]] = field(default_factory=list)
    collect_calls: list[CollectCallFacts] = field(default_factory=list)
    compile_ns: list[int] = field(default_factory=list)
    loader_batches: list[int] = field(default_factory=list)
    loader_samples: list[int] = field(default_factory=list)
    backwards: list[int] = field(default_factory=list)
    backward_ns: list[int] = field(default_factory=list)
    backward_cpu_ns: list[int] = field(default_factory=list)
    unsynced_backwards: list[int] = field(default_factory=list)
    unsynced_updates: list[bool] = field(default_factory=list)
    recomputed_ns: list[int] = field(default_factory=list)
    buffer_sync_ns: list[int] = field(default_factory=list)
    unused_search_ns: list[int] = field(default_factory=list)
    parameter_sums: list[float] = field(default_factory=list)
    sampled: list[SampledFacts] = field(default_factory=list)
    skipped_steps: int | None = 0
    memory_bytes: list[int] = field(default_factory=list)
    trace: str | None = None
    trace_text_bytes: int | None = None
    saving_ns: int | None = None
    taken_share: float | None = None
    load: LoadFacts | None = None
    complete: bool = False
    cut_short: bool = False

    @property
    def disturbed(self) -> bool:
        """Whether so much of the cores' time was taken that its steps tell of others' work, too."""
        return self.taken_share is not None and self.taken_share > MOST_TAKEN

    @property
    def steps(self) -> int:
        """How many whole steps the window holds."""
        return len(self.durations_ns)

    @property
    def step_durations_ns(self) -> list[int]:
        """How long each step took: on the device where it was timed there, else on the host."""
        return self.device_durations_ns or self.durations_ns

    @property
    def usual_steps(self) -> list[int]:
        """Which steps, from 0, drew the median number of batches; all where that is none.

        Between two epochs a step may hold a whole validation.
        """
        usual = median_low(self.loader_batches) if self.loader_batches else 0
        return [n for n, drawn in enumerate(self.loader_batches) if not usual or drawn == usual]
