"""A step as its parts: what each rank computes, when its gradients are ready, and what they are communicated over."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from dptune.whatif.cpu.buckets import Caps
from dptune.whatif.cpu.shared_link import Link
from dptune.whatif.cpu.units import Sharding, UnitCall

# What one rank computes longer than another from one collective of units to the next, as a share: medians over the
# steps, summed over the stretches of a step, were 0.07, 0.12 and 0.15 of the compute in recordings of two ranks with a
# core each (linear layers, a transformer and linear layers, over 1 Gbit/s). Replays of these and of another transformer
# whose ranks compute alike were 9 to 18 % shorter than the measured step, with this share 8 % shorter to 1 % longer.
APART_SHARE = 0.1


@dataclass(frozen=True)
class Pass:
    """One forward and backward pass of one rank, ns.

    `loader_ns` is the wait for its batch, `forward_ns` what else comes before the backward pass, `backward_ns` the
    compute of that, as long as nothing slows it. `ready_ns` counts from its start: when each gradient is ready, in the
    order in which they are; empty where the pass does not communicate them. `hooks_ns` is the part of `backward_ns`
    that it takes only because they are communicated, `sent_ns` the part of `forward_ns` in which something else is
    communicated. `calls` are the collectives of fully_shard units, in order: what they take is in none of these times.
    """

    loader_ns: float
    forward_ns: float
    backward_ns: float
    ready_ns: tuple[float, ...] = ()
    hooks_ns: float = 0.0
    sent_ns: float = 0.0
    calls: tuple[UnitCall, ...] = ()

    def scaled(self, compute: float, loader: float = 1.0) -> Pass:
        """The pass whose compute, and whose wait for its batch, takes so many times as long."""
        scaled = self.lasting((self.forward_ns - self.sent_ns) * compute + self.sent_ns, self.backward_ns * compute)
        return replace(scaled, loader_ns=self.loader_ns * loader, hooks_ns=self.hooks_ns * compute)

    def lasting(self, forward_ns: float, backward_ns: float) -> Pass:
        """The pass with other times of forward and backward, and all that is in them at the same parts of those."""
        forward = forward_ns / self.forward_ns if self.forward_ns else 1.0
        backward = backward_ns / self.backward_ns if self.backward_ns else 1.0
        calls = (call.scaled(forward if call.direction == "forward" else backward) for call in self.calls)
        ready_ns = tuple(ready * backward for ready in self.ready_ns)
        return replace(self, forward_ns=forward_ns, backward_ns=backward_ns, ready_ns=ready_ns, calls=tuple(calls))

    def silent(self) -> Pass:
        """The pass without its collective."""
        return replace(self, backward_ns=self.backward_ns - self.hooks_ns, ready_ns=(), hooks_ns=0.0)

    def communicating_as(self, other: Pass) -> Pass:
        """The pass with a collective like another's: its gradients are ready when that one's are."""
        backward_ns = self.backward_ns - self.hooks_ns + other.hooks_ns
        return replace(self, backward_ns=backward_ns, ready_ns=other.ready_ns, hooks_ns=other.hooks_ns)


@dataclass(frozen=True)
class RankStep:
    """One step of one rank: its passes, and what comes after the last (the optimizer, and the rest), ns."""

    passes: tuple[Pass, ...]
    after_ns: float


@dataclass(frozen=True)
class Loading:
    """How batches come: the batch of a rank, the processes that prepare them, and what one takes to prepare, ns.

    `batch` are the samples that each rank takes at once, None where they take different ones.
    `prepare_ns` is None where workers prepare them already: how long one takes then is not seen. `computing` is the
    part of it in which a core computes; `cores_per_rank` are those of its host that a rank may use. `epoch` is how many
    batches a rank draws until the loader starts again, None if not known; `persistent`: whether workers outlive that;
    `sharded`: whether each rank draws its part of the samples.
    """

    batch: int | None
    workers: int
    prepare_ns: float | None
    computing: float
    cores_per_rank: float
    epoch: int | None = None
    persistent: bool = False
    sharded: bool = False


@dataclass(frozen=True)
class LowRank:
    """What PowerSGD of rank 1 makes of all gradients: how many it compresses, and the bytes that are sent then."""

    matrices: int
    sent_bytes: int


@dataclass(frozen=True)
class Latency:
    """Latency of collectives while ranks train: a factor on what the link's fit gives for one alone, and `why`.

    `alone`: of one that nothing else is in flight with. `queued`: of as many as there are lanes, by message size in
    bytes, ascending; as if alone where there is none. `others` are how many times all that it may be as well.
    """

    alone: float = 1.0
    queued: tuple[tuple[float, float], ...] = ()
    others: tuple[float, ...] = ()
    why: str = ""

    def on(self, link: Link) -> Link:
        """The link as training finds it."""
        crowding = tuple((size, times / self.alone) for size, times in self.queued)
        return replace(link, alpha_ns=self.alone * link.alpha_ns, crowding=crowding)


@dataclass(frozen=True)
class StepModel:
    """Everything a replay needs.

    `steps` are by rank. `gradient_bytes` are in the order of becoming ready. `start_ns` is what starting a collective
    takes on the thread that computes, `copy_ns_per_byte` what copying a reduced bucket back into gradients takes,
    `prepare_ns_per_byte` what a communication hook does before the collective, which `wire_share` of the bytes remain
    of; `hook_ns` is what calling it takes that thread for each bucket. `slowdown`: how many times as long backward
    passes compute while a collective is in flight. `beside`: how many times as long a collective takes while every rank
    computes; less so where some do. `communication_times`: how many times as long any takes as the link predicts.
    `latency` is in the link's already. `wrapper_times`: how many times as long as usual the code of another wrapper
    takes. `apart_share`: how much longer some ranks compute than others from one collective of units to the next, as a
    share, where steps of units were not recorded. `quiet_times`: how many times as long a pass computes that no longer
    communicates. `crowded_slowdown`: the least of that once no rank is late, where they have few cores: one that waits
    leaves a core to the late one's collective, so a recording of that does not show it. `uneven_left`: the part of the
    difference between ranks that balancing their work leaves. `supply_ns`: by rank how often its loader has another
    batch; where it is not given, the wait for each is as recorded. `restart_ns` is what it waits besides for each: to
    take it from a worker, and because epochs begin without any. `fixed_share` is the part of forward and backward that
    does not grow with the batch. `low_rank` is None where the shapes of gradients are not known; `hook_times`: how many
    times as long as usual a hook computes. `dtype` is that of all gradients, None if not known. The ranks were on so
    many `hosts`. `others` are the collectives of a step outside of backward passes: they stay as recorded, part of what
    is computed, and take `others_ns` of each rank: who sends buffers hardly waits, who gets them does. `buffers_ns` is
    what a forward pass of each rank that begins by sending buffers takes for it: each does that follows a pass that
    communicated its gradients. Empty where it is not known. `least_cap_bytes`: torch refuses buckets of which none may
    be as large, because the module is compiled. `within_times`: how many times as long as between hosts a hop within
    one takes, where that was not measured (over gloo and 200 Mbit/s 0.05); `shares_host_link`: whether ranks of a host
    that send to another at once are each as much slower. `link_source` says in words what the link is from, where that
    is no fit. `sharding` is None where DistributedDataParallel replicates the model; where it is not, there are no
    gradients and buckets, and `link` is still that of all-reduces.
    """

    steps: Mapping[int, Sequence[RankStep]]
    gradient_bytes: tuple[int, ...]
    caps: Caps
    link: Link
    start_ns: float = 0.0
    copy_ns_per_byte: float = 0.0
    prepare_ns_per_byte: float = 0.0
    hook_ns: float = 0.0
    wire_share: float = 1.0
    slowdown: float = 1.0
    beside: float = 1.0
    communication_times: float = 1.0
    wrapper_times: float = 1.0
    apart_share: float = APART_SHARE
    quiet_times: float = 1.0
    crowded_slowdown: float = 1.5
    uneven_left: float = 0.0
    latency: Latency = Latency()
    supply_ns: Mapping[int, float] = field(default_factory=dict)
    restart_ns: float = 0.0
    fixed_share: float = 0.0
    loading: Loading | None = None
    samples: float | None = None
    low_rank: LowRank | None = None
    hook_times: float = 1.0
    dtype: str | None = None
    hosts: int = 1
    others: int = 0
    others_ns: Mapping[int, float] = field(default_factory=dict)
    buffers_ns: Mapping[int, float] = field(default_factory=dict)
    least_cap_bytes: int = 0
    sharding: Sharding | None = None
    within_times: float = 0.25
    shares_host_link: bool = True
    link_source: str = ""

    def without_transfers(self) -> StepModel:
        """The model whose collectives take no time, but for their hooks."""
        sharding = self.sharding
        if sharding is not None and sharding.hybrid is not None:
            sharding = replace(sharding, hybrid=sharding.hybrid.without_transfers())
        return replace(self, link=Link(0.0, inf), sharding=sharding)

    def each_pass(self, of: Callable[[Pass], Pass]) -> dict[int, list[RankStep]]:
        """The steps with something done to each of their passes, by rank."""
        return {
            rank: [replace(step, passes=tuple(of(pass_) for pass_ in step.passes)) for step in steps]
            for rank, steps in self.steps.items()
        }

    def computing(self, times: float) -> StepModel:
        """The model in which everything that the ranks' own threads compute takes so many times as long."""
        steps = {
            rank: [replace(step, after_ns=step.after_ns * times) for step in rank_steps]
            for rank, rank_steps in self.each_pass(lambda pass_: pass_.scaled(times)).items()
        }
        return replace(self, steps=steps)
