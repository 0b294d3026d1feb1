"""Changes of a program: of its messages, its host, its kernels. What it cannot tell raises Missing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from dptune.knobs import TAKE_NO_TIME, Value
from dptune.measure.efficiency.peaks import most_times_as_fast
from dptune.measured import Missing
from dptune.whatif.blocks import unknown
from dptune.whatif.bounds import is_off
from dptune.whatif.cpu.buckets import DEFAULT_CAP_BYTES, MIB, Caps
from dptune.whatif.cpu.shared_link import Link
from dptune.whatif.cpu.topology import RING, TOPOLOGY, ranks_asked, relinked
from dptune.whatif.gpu.assumed import Side
from dptune.whatif.gpu.buckets import rebucketed, silenced
from dptune.whatif.gpu.editing import times, with_edges, without
from dptune.whatif.gpu.graph import COMPUTING, Edge, Kind, Message
from dptune.whatif.gpu.hooks import as_bucket_views, compressed, halves
from dptune.whatif.gpu.hybrid import within_hosts
from dptune.whatif.gpu.inputs import (
    batch_size,
    batch_times,
    has_no_workers,
    loading_workers,
    no_loader,
    pinned,
    uploads_beside,
)
from dptune.whatif.gpu.links import NO_MESSAGES, NO_SIZES, has_no_sizes, known_link
from dptune.whatif.gpu.merging import in_units
from dptune.whatif.gpu.offloading import offloaded
from dptune.whatif.gpu.optimizing import foreach, fused, no_time
from dptune.whatif.gpu.parts import Part, having
from dptune.whatif.gpu.passes import as_graphs, micro_batches
from dptune.whatif.gpu.precision import autocast, convolutions_in_tf32, in_one_precision, products_in_tf32
from dptune.whatif.gpu.program import Program
from dptune.whatif.gpu.replicating import replicated
from dptune.whatif.gpu.sharding import (
    gathered_in_no_time,
    gradients_in,
    kept_whole,
    parameters_in,
    prefetched,
    prefetched_backward,
    prefetched_forward,
)
from dptune.whatif.gpu.stragglers import balanced, without_straggler
from dptune.whatif.gpu.unit_passes import reduced_once

Changing = Callable[[Program, Value], Program]
Ranging = Callable[[Program, Value, Side], Program]
_HALVINGS, _NEAR = 10, 1e-3  # until the step is as near as that
_ROUGH_HALVINGS = 4  # of what the profiler may have slowed the host by
_QUICKEST = 0.5  # of the traced host's time: what the profiler slows it at most
UNPROFILED = 0.65  # of the traced host's time: the middle of what it is without the profiler
_GROUPS = (
    "collectives of all ranks were not fitted, and it is unknown whether more ranks or nodes change groups of {} ranks"
)
_OF_CALLS = (Kind.HOST, Kind.UPDATING, Kind.LAUNCH)
_UNCHANGED = 0.02  # a step that a quicker host leaves as it is: one in hundreds of kernels waits for it all the same


def changed(program: Program, settings: Mapping[str, Value], side: Side = Side.MIDDLE) -> Program:
    """The program after all changes together, at its best where one is bounded. Raises Missing for any other.

    `side`: which end of what is assumed about changes that have a range.
    """
    if settings.get("wrapper") == "ddp" and any(value for name, value in settings.items() if name.startswith("fsdp.")):
        raise Missing("DistributedDataParallel has no units: leave out fsdp settings")
    settings = in_one_precision(settings)
    for name, bucketed in _OF_BUCKETS.items():
        if name in settings:
            program = bucketed(program, settings[name], side)
    for name in _BEFORE_TOPOLOGY:
        if name in settings:
            program = CHANGES[name](program, settings[name])
    if not settings.keys().isdisjoint(TOPOLOGY):
        if settings.get("fsdp.within_hosts"):
            raise Missing("HSDP among other ranks or nodes than the recorded ones is not predicted from a GPU trace")
        program = _topology(program, settings)
    order = [*_OF_UNITS, *CHANGES, *RANGED, *settings]
    made = {*_OF_BUCKETS, *_BEFORE_TOPOLOGY, *TOPOLOGY}
    rest = [item for item in settings.items() if item[0] not in made and not _comes_with_workers(item[0], settings)]
    for name, value in sorted(rest, key=lambda setting: order.index(setting[0])):
        if name in BOUNDS and _is_bounded(program, name, value):
            program = BOUNDS[name](program, value)
        elif name in RANGED:
            program = RANGED[name](program, value, side)
        elif name == "accumulation.micro_batches":
            no_sync = settings.get("ddp.no_sync") or settings.get("fsdp.no_sync")
            program = micro_batches(program, value, no_sync=bool(no_sync))
        elif name in CHANGES:
            program = CHANGES[name](program, value)
        elif name in BOUNDS:
            raise Missing(f"a GPU trace gives only an upper bound for other values of {name}")
        else:
            raise Missing(f"{name} cannot be predicted from a GPU trace")
    return program


def sides(settings: Mapping[str, Value]) -> tuple[Side, ...]:
    """The ends of what is assumed, where the effect of a change has a range."""
    return (Side.LEAST, Side.MOST) if not RANGED.keys().isdisjoint(settings) else ()


def without_profiler(program: Program, step_ns: float) -> Program:
    """The program whose step takes as long as one without the profiler, by a host that takes less time.

    The profiler slows calls, and not what devices do. As near as that comes: a host that takes no time leaves the step
    that the devices take, and none is slower without the profiler.
    """
    low, high, factor = 0.0, 1.0, 1.0
    if program.recorded_step_ns() <= step_ns:
        return program
    for _ in range(_HALVINGS):
        factor = (low + high) / 2
        took = _host_step_ns(program, factor)
        if abs(took - step_ns) <= _NEAR * step_ns:
            break
        low, high = (low, factor) if took > step_ns else (factor, high)
    return _host(program, factor)


def with_quickest_host(program: Program) -> Program:
    """The program with the least time of the host that leaves its step as it is, down to half of it.

    Where devices are the limit, the step does not tell how much the profiler slowed the host, and a change that makes
    the devices quicker finds out. On an H200 with torch 2.11 steps that waited for the host took 1.2 to 1.9 times as
    long with the profiler.
    """
    least_ns = (1 - _UNCHANGED) * program.step_ns()
    low, high = _QUICKEST, 1.0
    if _host_step_ns(program, low) >= least_ns:
        return _host(program, low)
    for _ in range(_ROUGH_HALVINGS):
        factor = (low + high) / 2
        low, high = (low, factor) if _host_step_ns(program, factor) >= least_ns else (factor, high)
    return _host(program, high)


def bounded(program: Program, settings: Mapping[str, Value]) -> list[str]:
    """Those of the changes with only an upper bound of the saving."""
    return [name for name, value in settings.items() if name in BOUNDS and _is_bounded(program, name, value)]


def _is_bounded(program: Program, name: str, value: Value) -> bool:
    """Of a change in BOUNDS: whether the bound is all that is known of it, and it could save something."""
    if is_off(value) or value in (0, "none"):
        return False
    return _KNOWN[name](program) is False if name in _KNOWN else True


def _comes_with_workers(name: str, settings: Mapping[str, Value]) -> bool:
    """Whether it is about workers that come with it: the bound of these holds for both."""
    return name == "loader.persistent_workers" and bool(settings.get("loader.num_workers"))


def _messages(program: Program, factor: Callable[[Message], float]) -> Program:
    """Each collective so many times as long as its message says."""
    factors = [factor(message) for message in program.messages]

    def of(_: int, edge: Edge) -> Edge:
        factor = factors[edge.message]
        return edge if factor == 1 else edge.lasting(edge.lag_ns * factor)

    return with_edges(program, (Kind.COLLECTIVE,), of)


def _relinked(program: Program, link: Link, of_others: Link | None = None) -> Program:
    """With another link for all-reduces, and for other collectives that or a third. Those of other ranks stay."""
    before = known_link(program)
    if not program.messages:
        raise Missing(NO_SIZES if has_no_sizes(program) else NO_MESSAGES)

    def times(message: Message) -> float:
        if not program.uses_link(message):
            return 1.0
        after = link if message.kind == "all_reduce" else of_others or link
        return after.alone_ns(message.message_bytes) / before.alone_ns(message.message_bytes)

    return replace(_messages(program, times), link=link)


def _alpha(program: Program, value: Value) -> Program:
    return _relinked(program, replace(known_link(program), alpha_ns=float(value or 0) * 1e3))


def _rate(program: Program, value: Value) -> Program:
    return _relinked(program, replace(known_link(program), bytes_per_ns=float(value or 0)))


def _bucket_cap(program: Program, value: Value, side: Side) -> Program:
    return rebucketed(program, Caps.of(None if value is None else float(value)), side)


def _bucket_caps(program: Program, value: Value, side: Side) -> Program:
    return rebucketed(program, Caps.of(each_mb=[float(part) for part in str(value).split(",")]), side)


def _first_bucket(program: Program, value: Value, side: Side) -> Program:
    """A first bucket of so many MiB, where the others are as torch's own size makes them."""
    for reduction in program.reductions:
        first, *rest = (program.messages[bucket.message].message_bytes for bucket in reduction.buckets)
        if first >= DEFAULT_CAP_BYTES or any(size < DEFAULT_CAP_BYTES for size in rest[:-1]):
            raise Missing("recorded bucket sizes are not torch's defaults, so the first bucket has no size of its own")
    return rebucketed(program, Caps.of(first_bytes=int(float(value or 0) * MIB)), side)


def _no_sync(program: Program, value: Value) -> Program:
    """Gradients are reduced in the last backward pass of a step only."""
    if not value:
        raise Missing("a GPU trace does not show how long reducing gradients in every backward pass would take")
    return silenced(program)


def _comm_hook(program: Program, value: Value, side: Side) -> Program:
    link = known_link(program) if halves(value) else Link(0.0, 1.0)  # others need none
    return program if value == "none" else compressed(program, value, side, link)


def _topology(program: Program, settings: Mapping[str, Value]) -> Program:
    """Those ranks that were read stand for the others."""
    before = program.world_size
    if 0 < program.link_ranks < len(set(program.ranks)):
        raise Missing(_GROUPS.format(program.link_ranks))
    ranks = ranks_asked(settings, before)
    link = relinked(known_link(program), before, program.hosts, settings)
    ring = {**settings, "allreduce.algorithm": RING}  # what others than all-reduces take
    around = relinked(known_link(program), before, program.hosts, ring)
    linked = _relinked(program, link, around)
    samples = None if program.samples is None else program.samples * ranks / before
    return replace(linked, samples=samples, world_size=ranks)


def _host_step_ns(program: Program, factor: float) -> float:
    """The step if the host took so many times as long."""
    return program.step_ns(program.columns.scaled(_OF_CALLS, factor))


def _host(program: Program, value: Value) -> Program:
    factor = float(value or 0)
    other = times(program, _OF_CALLS, factor)
    if other is program:
        return program
    spent_ns = {part: {place: factor * ns for place, ns in each.items()} for part, each in program.spent_ns.items()}
    return other.spending(spent_ns)


def _compute(program: Program, value: Value) -> Program:
    return times(program, COMPUTING, float(value or 0))


def _no_sync_calls(program: Program, value: Value) -> Program:
    """Calls that wait for the device return at once."""
    return with_edges(program, (Kind.SYNC,), lambda _place, _edge: None) if value else program


def _same_time(program: Program, value: Value) -> Program:
    """What is learned changes, and not how long that takes."""
    return program


def without_part(program: Program, settings: Mapping[str, Value]) -> Program:
    """The program without all that these changes make faster; raises Missing where they change other parts, too."""
    if not settings or not settings.keys() <= _OF_OPTIMIZER:
        raise Missing("these changes affect different parts of the step")
    return no_time(program)


def _no_eager_attention(program: Program) -> Program:
    """Attention that the script computes operator by operator takes no time."""
    attention = having(program.parts, Part.EAGER_ATTENTION)
    if not attention:
        raise Missing("the trace shows no attention that is computed operator by operator")
    return without(program, attention)


def _compiled(program: Program) -> Program:
    """Only matrix products, convolutions and attention take time in a pass, without calls of the host between them."""
    kept = times(program, (Kind.COMPUTE,), 0.0)
    return times(kept, (Kind.HOST,), 0.0)


def _another_gpu(program: Program, value: Value) -> Program:
    """Kernels and copies are as much faster as the largest ratio of the two models' peaks, and none is slower."""
    if not program.gpu:
        raise Missing("the model of the recorded GPUs is unknown, or they differ: name it with --gpu")
    most = most_times_as_fast(program.gpu, str(value))
    if most is None:
        raise Missing(f"the peaks of {program.gpu} are not known")
    return times(program, (*COMPUTING, Kind.COPY), 1 / max(1.0, most))


def _whatever(bound: Callable[[Program], Program]) -> Changing:
    """The same bound for each value."""
    return lambda program, _value: bound(program)


def _parameters_in(program: Program, value: Value, side: Side) -> Program:
    return parameters_in(program, value, side, known_link(program))


def _within_hosts(program: Program, value: Value, side: Side) -> Program:
    return within_hosts(program, value, side, known_link(program))


def _in_units(program: Program, value: Value, side: Side) -> Program:
    return in_units(program, value, side)


def _wrapper(program: Program, value: Value, side: Side) -> Program:
    return replicated(program, value, side, Caps.of())


def _gradients_in(program: Program, value: Value) -> Program:
    return gradients_in(program, value, known_link(program))


BOUNDS: dict[str, Changing] = {
    "loader.num_workers": _whatever(no_loader),
    "loader.prefetch_factor": _whatever(no_loader),
    "loader.pin_memory": _whatever(pinned),
    "fsdp.prefetch": _whatever(gathered_in_no_time),
    "attention.sdpa": _whatever(_no_eager_attention),
    "compile.model": _whatever(_compiled),
    "gpu.model": _another_gpu,
}
# Changes with only a bound on runs where this is false.
_KNOWN: dict[str, Callable[[Program], bool]] = {
    "loader.num_workers": has_no_workers,
    "fsdp.prefetch": lambda program: bool(program.gathers),
}
# Those of buckets come first: the link, hooks and the topology change the collectives of new buckets, too. Before them
# the wrapper, which makes buckets.
_OF_BUCKETS: dict[str, Ranging] = {
    "wrapper": _wrapper,
    "ddp.bucket_cap_mb": _bucket_cap,
    "ddp.bucket_cap_mb_list": _bucket_caps,
    "ddp.first_bucket_mb": _first_bucket,
}
# Of units of fully_shard, before all other changes of these.
_OF_UNITS: dict[str, Ranging] = {"fsdp.no_sync": reduced_once, "fsdp.units": _in_units}
# In the order in which they are made, those before the topology before it; messages are halved after that.
CHANGES: dict[str, Changing] = {
    "ddp.no_sync": _no_sync,
    "link.alpha_us": _alpha,
    "link.gb_per_s": _rate,
    "accumulation.micro_batches": micro_batches,
    "ddp.gradient_as_bucket_view": as_bucket_views,
    "fsdp.reshard_after_forward": kept_whole,
    "fsdp.prefetch": prefetched,
    "fsdp.blocks_per_unit": unknown,
    "fsdp.forward_prefetch": prefetched_forward,
    "fsdp.backward_prefetch": prefetched_backward,
    "fsdp.reduce_dtype": _gradients_in,
    "straggler.removed": without_straggler,
    "straggler.balanced": balanced,
    "host.times": _host,
    "compute.times": _compute,
    "syncs.removed": _no_sync_calls,
    **dict.fromkeys(TAKE_NO_TIME, _same_time),
}
# The same with what is assumed of each.
RANGED: dict[str, Ranging] = {
    **_OF_BUCKETS,
    **_OF_UNITS,
    "ddp.comm_hook": _comm_hook,
    "loader.batch_size": batch_size,
    "batch.times": batch_times,
    "loader.num_workers": loading_workers,
    "copies.non_blocking": uploads_beside,
    "precision.float32_matmul": products_in_tf32,
    "cudnn.allow_tf32": convolutions_in_tf32,
    "precision.autocast": autocast,
    "fsdp.param_dtype": _parameters_in,
    "fsdp.within_hosts": _within_hosts,
    "fsdp.offload_policy": offloaded,
    "optimizer.fused": fused,
    "optimizer.foreach": foreach,
    "cuda.graphs": as_graphs,
}
_OF_OPTIMIZER = frozenset({"optimizer.fused", "optimizer.foreach"})
_BEFORE_TOPOLOGY = ("ddp.no_sync", "link.alpha_us", "link.gb_per_s")
# Whose effect differs with the link.
OF_LINK = frozenset(
    {
        *_OF_BUCKETS,
        *TOPOLOGY,
        "fsdp.units",
        "link.alpha_us",
        "link.gb_per_s",
        "ddp.comm_hook",
        "fsdp.param_dtype",
        "fsdp.reduce_dtype",
    }
)
PREDICTED = frozenset({*CHANGES, *RANGED, *BOUNDS, *TOPOLOGY, "loader.persistent_workers"})
