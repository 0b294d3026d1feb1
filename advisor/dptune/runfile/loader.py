"""A DataLoader of the script, and what preparing its batches took."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil, floor

from dptune.runfile.generators import GeneratorFacts
from dptune.runfile.padding import PaddingFacts


@dataclass
class PreparingFacts:
    """What preparing the batches of a loader took, in all processes that prepare them, since the script started.

    `reading` is getting samples from the data set, with its transforms; `collating` making a batch of them; `cpu` the
    part in which the thread computed. `read_by` and `collated_by` name the functions and their first lines.
    `tensors` and `tensor_bytes` count the tensors in all these batches, None where an older dptune recorded the run.
    """

    batches: int
    reading_ns: int = 0
    reading_cpu_ns: int = 0
    collating_ns: int = 0
    collating_cpu_ns: int = 0
    read_by: str | None = None
    collated_by: str | None = None
    tensors: int | None = None
    tensor_bytes: int | None = None


@dataclass
class LoaderFacts:
    """One DataLoader that the training thread drew batches from.

    `pin_memory` is its argument, `pins` what its iterator does: nothing where there is no accelerator.
    `replicas`: among how many ranks a DistributedSampler splits the samples; `sampler_epoch` is the last argument of
    set_epoch, None where it does not shuffle. `own_batches`: whether the script passes a sampler of whole batches (only
    it knows their size); `batch_sampler` is its class. `preparing`: None where nothing was
    measured. `sharded_by`: what divides the samples of an iterable data set among workers; None where nothing in its
    code is known to. `prepares_at` and `drops_at`: the function and line where it prepares samples, and the line of a
    test that then drops some without looking at them; None where its source shows nothing like it. `generators`: random
    number generators that its samples are made with; `random_samples`: whether its first batches were prepared with
    random numbers, None where that is not known. `epoch_length`: its batches in an epoch on this rank;
    `costly_lines`: lines of its data set that do a costly thing: `mask`, `archive`, `file`, `index`, `pop`, `search` or
    `statistics`; `takes_lists`: its data set takes a list of indices as well as one, which all it does is to index
    tensors with.
    `subset`: a digest of the first indices that its data set, a Subset as `random_split` makes, has of another one.
    `undivided_length`: those of all ranks, where Accelerate deals them.
    `arguments`: those of its call that dptune can set and no other field holds, by name. `through`: the function of an
    installed package that the script calls at `where`, where that package makes the loader. `sampler_where`: the line
    that makes a DistributedSampler; `iterated_at`: the one that made an iterator first. `argument_lines`: `file:line`
    of each argument of the script's call. `shifts_at`: lines in what reads and collates its samples that slice from the
    second position on, as labels are shifted.
    """

    where: str | None = None
    batch_size: int | None = None
    num_workers: int | None = None
    pin_memory: bool | None = None
    pins: bool | None = None
    persistent_workers: bool | None = None
    prefetch_factor: int | None = None
    drop_last: bool | None = None
    dataset: str | None = None
    dataset_samples: int | None = None
    subset: str | None = None
    batches_drawn: int | None = None
    sampler: str | None = None
    distributed_sampler: bool | None = None
    replicas: int | None = None
    sampler_epoch: int | None = None
    own_batches: bool | None = None
    batch_sampler: str | None = None
    preparing: PreparingFacts | None = None
    iterable: bool | None = None
    sharded_by: str | None = None
    prepares_at: str | None = None
    drops_at: str | None = None
    padding: PaddingFacts | None = None
    generators: list[GeneratorFacts] = field(default_factory=list)
    random_samples: bool | None = None
    epoch_length: int | None = None
    undivided_length: int | None = None
    costly_lines: dict[str, str] = field(default_factory=dict)
    takes_lists: bool = False
    arguments: dict[str, bool | int | float | str | None] = field(default_factory=dict)
    through: str = ""
    sampler_where: str | None = None
    iterated_at: str | None = None
    argument_lines: dict[str, str] = field(default_factory=dict)
    shifts_at: list[str] = field(default_factory=list)

    def epoch_batches(self, ranks: int) -> int | None:
        """How many batches a rank, of so many, draws of it in an epoch; None where its data set has no length.

        As the loader says, where that was recorded: a sampler may draw fewer than all samples.
        """
        if self.epoch_length:
            return self.epoch_length
        if not self.dataset_samples or not self.batch_size:
            return None
        parts = self.replicas or (ranks if self.distributed_sampler else 1)
        samples = ceil(self.dataset_samples / parts)  # the sampler fills up
        return max(1, (floor if self.drop_last else ceil)(samples / self.batch_size))
