"""The memory of one rank: what it holds between steps, and what a step adds at the moments that decide the peak.

Between steps: parameters, the optimizer's state, buffers, the buckets of DistributedDataParallel and other tensors of
the script, as the rank recorded them. In a step: gradients, activations, temporaries, what the optimizer allocates and
what FSDP gathers, from the allocations of the detailed window. All in bytes. The CUDA context and the libraries' own
memory are no tensors: see `capacity`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import accumulate

from dptune.measured import Measured, MemoryMoment, Missing
from dptune.runfile.facts import Facts
from dptune.whatif.memory.primitives import NO_PRIMITIVES, Primitives, primitives_of

_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
_NO_TENSORS = "the run was recorded by an older dptune, which did not measure tensors: record it again"


@dataclass(frozen=True)
class Moment:
    """What is alive at one moment of a step, beside what is held between steps; `gradients` are all that are alive.

    `passed_share`: the part of the backward pass that has run, by the gradients that it has computed. `unseen`: what
    another thread frees, so it may be alive or not.
    """

    phase: str
    activations: float = 0.0
    temporaries: float = 0.0
    weights: float = 0.0
    gradients: float = 0.0
    optimizer: float = 0.0
    sharding: float = 0.0
    passed_share: float = 0.0
    unseen: float = 0.0

    @property
    def total(self) -> float:
        """Its bytes."""
        return self.activations + self.temporaries + self.weights + self.gradients + self.optimizer + self.sharding

    def scaled(self, **factors: float) -> Moment:
        """With some parts that many times as large."""
        return replace(self, **{name: factor * getattr(self, name) for name, factor in factors.items()})


PARTS = tuple(each.name for each in fields(Moment) if each.name not in ("phase", "passed_share", "unseen"))


@dataclass(frozen=True)
class Sharding:
    """How FSDP splits a model among `ranks`: the bytes of the root unit and of each other unit, gathered.

    `reshards`: whether units are freed after their forward pass; `root_reshards`: whether the root unit is, too.
    `copies`: whether a reduce-scatter works on a copy of its input, as gloo's does. `element_bytes`: of a gathered
    element; `reduced_bytes`: of one in a buffer of reduce-scatter, None where it is the same. `group`: to how many
    ranks units are resharded after their forward pass, None: to all.
    """

    ranks: int
    root: float
    units: tuple[float, ...]
    reshards: bool = True
    root_reshards: bool = False
    copies: bool = False
    element_bytes: float = 4.0
    reduced_bytes: float | None = None
    group: int | None = None

    @property
    def kept_share(self) -> float:
        """Of the units' bytes, what stays of them after their forward pass."""
        if not self.reshards:
            return 1.0
        return 1 / self.group if self.group else 0.0

    @property
    def reduced(self) -> float:
        """Bytes of a buffer of reduce-scatter / those of the unit, gathered."""
        return 1.0 if self.reduced_bytes is None else self.reduced_bytes / self.element_bytes

    def held(self, moment: Moment, *, so_far: bool = False) -> float:
        """What is gathered, and in buffers of collectives, at a moment of a step.

        In a forward pass the root unit, the unit that runs, and the output of its all-gather, which is freed in the
        next unit. In a backward pass first the root unit and its gradients, then what `_running` says. `so_far`: at
        this very moment, not at the worst one from here on.
        Source: torch 2.13, distributed/fsdp/_fully_shard/_fsdp_param_group.py and _fsdp_collectives.py.
        """
        largest, all_units = max(self.units, default=0.0), sum(self.units)
        if moment.phase == "optimizer":
            return 0.0
        kept = self.kept_share * all_units
        if moment.phase == "forward":
            return self.root + (2 * largest + kept if self.reshards else all_units + largest)
        if not moment.passed_share:
            return kept + (0.0 if self.root_reshards else self.root)
        passed = moment.passed_share * (self.root + all_units)
        if passed <= self.root:
            return kept + 2 * self.root
        running = self._running(passed - self.root, so_far) if self.reshards else self._reducing * largest
        return kept * (1 - moment.passed_share) + 2 * self.root + running

    @property
    def _reducing(self) -> float:
        """What a unit holds as its gradients are reduced / its bytes: the gradients, a buffer and its copy."""
        return 1 + self.reduced * (1 + self.copies)

    def _running(self, computed: float, so_far: bool) -> float:
        """The most that units hold in a backward pass from `computed` bytes of their gradients on.

        The last unit runs first. One that runs holds itself, its gradients, the all-gather of the next one, and the
        buffer of the last reduce-scatter. As its gradients are reduced, a buffer and its copy are in place of itself
        and the last buffer. The unit that runs last gathers no next one.
        """
        order = self.units[::-1]
        ends = tuple(accumulate(order))
        most = 0.0
        for unit, last, following, end in zip(order, (0.0, *order), (*order[1:], 0.0), ends, strict=False):
            if end <= computed and end < ends[-1]:
                continue
            if so_far and not last and computed < unit:
                return unit + following + computed
            most = max(most, following + 2 * unit + self.reduced * last, following + self._reducing * unit)
            if so_far:
                break
        return most

    def at_end(self) -> float:
        """As the root unit reduces its gradients, after the other units: it is freed, and they are in its buffers."""
        return (1 + self.reduced * (1 + self.copies)) * self.root


@dataclass(frozen=True)
class MemoryModel:
    """A rank: bytes held between steps, and the moments of a step.

    `whole` and `trained`: bytes of the parameters, and of those that get gradients, before they are sharded.
    `sharding` is FSDP's, None without it; `split` is what fully_shard on each block would make of the model, or
    `why_no_split`. `blocks`: of each block what its forward pass saves, and its output; `loss`: what the head and the
    loss save; `discarded`: what checkpointing spares now. `doubt`: bytes by which the changes may be off, both ways.
    `ranks_of_a_host`: how many ranks each of several hosts has; None where that is not so, or not known. `offloaded`:
    whether a policy keeps shards in the host's memory; `autocast`: whether passes compute in 16 bits where they can;
    `flat`: whether FullyShardedDataParallel shards the model, whose units are not modelled. `primitives`: what oneDNN
    keeps for matrix products and convolutions of a CPU.
    """

    parameters: float
    state: float
    buffers: float
    buckets: float
    others: float
    moments: tuple[Moment, ...]
    whole: float
    trained: float
    largest_parameter: float
    batch: int | None
    ranks: int
    optimizer: str
    sharding: Sharding | None
    split: Sharding | None
    blocks: tuple[tuple[float, float], ...] = ()
    loss: float = 0.0
    discarded: float | None = None
    doubt: float = 0.0
    why_no_split: str = ""
    ranks_of_a_host: int | None = None
    on_cpu: bool = False
    offloaded: bool = False
    autocast: bool = False
    flat: bool = False
    primitives: Primitives = NO_PRIMITIVES

    def each(self, change: Callable[[Moment], Moment]) -> tuple[Moment, ...]:
        """Its moments, each changed."""
        return tuple(map(change, self.moments))

    @property
    def held(self) -> float:
        """Bytes between steps, without gradients."""
        return self.parameters + self.state + self.buffers + self.buckets + self.others + self.primitives.bytes

    @property
    def kept(self) -> float:
        """Activations that are alive in the optimizer's step, too: outputs of the model that the script keeps."""
        return min((moment.activations for moment in self.moments if moment.phase == "optimizer"), default=0.0)

    @property
    def fullest(self) -> Moment:
        """The moment of the peak."""
        return max(self.moments, key=lambda moment: moment.total)

    @property
    def peak(self) -> float:
        """The most bytes that are alive at once."""
        return self.held + self.fullest.total


def recorded(measured: Measured, facts: Sequence[Facts]) -> MemoryModel:
    """The memory of the run as it was recorded; raises Missing where that is not known."""
    steps = measured.tensor_memory
    rank_facts = next((each for each in facts if each.rank == steps.rank), None)
    if rank_facts is None or rank_facts.tensors is None:
        raise Missing(_NO_TENSORS)
    tensors, ddp = rank_facts.tensors, rank_facts.ddp
    ranks = measured.known("world_size") or rank_facts.world_size
    buckets = sum(module.gradient_bytes or 0 for module in ddp if not module.gradient_as_bucket_view)
    known = tensors.parameter_bytes + tensors.gradient_bytes + tensors.state_bytes + tensors.buffer_bytes + buckets
    start = steps.known("start_bytes")
    loaders = [loader for loader in rank_facts.loaders if loader.batches_drawn]
    fsdp = _sharding(rank_facts, ranks)
    split, why = _split(rank_facts)
    device_kind = measured.known("device_kind")
    local = tensors.trained_bytes / (fsdp.ranks if fsdp else 1)
    # torch records no free of what a CPU allocated before the recording: new gradients mean that the old ones are gone.
    unseen = device_kind == "cpu" and not any(moment.carried_bytes for moment in steps.moments)
    renewed = unseen and any(moment.gradient_bytes >= tensors.gradient_bytes / 2 for moment in steps.moments)
    at_start = 0 if renewed else tensors.gradient_bytes
    freed = max((-moment.carried_bytes for moment in steps.moments), default=0)
    renewed_others = max(0, freed - tensors.gradient_bytes)  # batches and outputs, which each step replaces
    return MemoryModel(
        parameters=tensors.parameter_bytes,
        state=tensors.state_bytes,
        buffers=tensors.buffer_bytes,
        buckets=buckets,
        others=max(0.0, (tensors.other_bytes if start is None else start - known) - renewed_others),
        moments=tuple(_moment(moment, at_start, renewed_others, local) for moment in steps.moments),
        whole=tensors.whole_bytes,
        trained=tensors.trained_bytes,
        largest_parameter=max(tensors.parameter_sizes, default=0),
        batch=loaders[0].batch_size if len(loaders) == 1 else None,
        ranks=ranks,
        optimizer=rank_facts.optimizers[0].name if rank_facts.optimizers else "",
        sharding=fsdp,
        split=fsdp or split,
        blocks=tuple((float(block.saved_bytes), float(block.output_bytes)) for block in steps.blocks),
        loss=steps.loss_bytes,
        discarded=rank_facts.checkpointing.kept_bytes if rank_facts.checkpointing else None,
        why_no_split=why,
        ranks_of_a_host=ranks_of_a_host(facts, ranks),
        on_cpu=device_kind == "cpu",
        offloaded=any(sharded.offload for sharded in rank_facts.fsdp),
        autocast=rank_facts.autocast is not None,
        flat=any(sharded.version == 1 for sharded in rank_facts.fsdp),
        primitives=primitives_of(steps.primitives, rank_facts.device),
    )


def sharding_of(model: MemoryModel) -> Sharding:
    """How FSDP splits it; raises Missing without FSDP."""
    if model.sharding is None:
        raise Missing("the model is not sharded by fully_shard")
    return model.sharding


def ranks_of_a_host(facts: Sequence[Facts], ranks: int) -> int | None:
    """How many ranks each of several hosts has; None where there is one, one rank a host, or not all are known."""
    on_host = Counter(rank_facts.host for rank_facts in facts)
    counts = set(on_host.values())
    if len(facts) != ranks or len(on_host) < 2 or len(counts) > 1 or counts == {1}:
        return None
    return counts.pop()


def _moment(moment: MemoryMoment, gradients_at_start: int, renewed_others: int, all_gradients: float) -> Moment:
    """`renewed_others`: tensors of the step before that the step frees, which grow with the batch as activations do."""
    freed_others = max(0, -moment.carried_bytes - gradients_at_start)
    freed_gradients = -moment.carried_bytes - freed_others
    in_backward = moment.phase == "backward"
    return Moment(
        phase=moment.phase,
        activations=moment.activation_bytes + renewed_others - freed_others,
        temporaries=moment.temporary_bytes,
        weights=moment.weight_bytes,
        gradients=gradients_at_start - freed_gradients + moment.gradient_bytes,
        optimizer=moment.optimizer_bytes,
        sharding=moment.sharding_bytes,
        unseen=moment.unseen_bytes,
        passed_share=min(1.0, moment.gradient_bytes / all_gradients) if in_backward and all_gradients else 0.0,
    )


def _sharding(facts: Facts, ranks: int) -> Sharding | None:
    """How fully_shard has split the model; None without it, or where the units are not known."""
    sharded = [fsdp for fsdp in facts.fsdp if fsdp.version == 2 and fsdp.names]
    sizes = {name: float(size) for fsdp in sharded for name, size in zip(fsdp.names, fsdp.gathered_bytes, strict=False)}
    if not sizes:
        return None
    mesh = sharded[0].mesh or [ranks]
    root = sizes.pop("", 0.0)
    units = [fsdp for fsdp in sharded if any(fsdp.names)]
    return Sharding(
        max(1, mesh[-1]),
        root,
        tuple(sizes.values()),
        reshards=any(fsdp.reshard_after_forward for fsdp in units or sharded),
        group=next(filter(None, (group_size(fsdp.reshard_after_forward) for fsdp in units)), None),
        root_reshards=any(fsdp.reshard_after_forward for fsdp in sharded if "" in fsdp.names),
        copies=facts.backend == "gloo",
        element_bytes=_BYTES.get(sharded[0].parameter_dtype or "float32", 4),
        reduced_bytes=_BYTES.get(sharded[0].reduce_dtype or ""),
    )


def group_size(reshards: bool | float | str | None) -> int | None:
    """To how many ranks `reshard_after_forward` reshards, where it is a number."""
    return int(reshards) if reshards and not isinstance(reshards, bool) else None


def _split(facts: Facts) -> tuple[Sharding | None, str]:
    """What fully_shard on each block of the model, then on the model, would make of it."""
    tensors = facts.tensors
    if tensors is None or not tensors.block_bytes:
        return None, "the model has no list of equal blocks, so the units of fully_shard are unknown"
    rest = max(0.0, tensors.whole_bytes - sum(tensors.block_bytes))
    units = tuple(map(float, tensors.block_bytes))
    return Sharding(facts.world_size, rest, units, copies=facts.backend == "gloo"), ""
