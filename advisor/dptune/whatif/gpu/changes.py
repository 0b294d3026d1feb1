"""Changes of a program: of its messages, its host, its kernels. What it cannot tell raises Missing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import is_

from dptune.knobs import TAKE_NO_TIME, Value
from dptune.measured import Missing
from dptune.whatif.bounds import is_off
from dptune.whatif.cpu.buckets import DEFAULT_CAP_BYTES, MIB, Caps
from dptune.whatif.cpu.topology import ALONE, RING, TOPOLOGY, ranks_asked, relinked
from dptune.whatif.cpu.wire import Link
from dptune.whatif.gpu.buckets import rebucketed, silenced
from dptune.whatif.gpu.program import COMPUTING, Edge, Kind, Message, Program
from dptune.whatif.gpu.stragglers import balanced, without_straggler

Changing = Callable[[Program, Value], Program]
_OF_THE_LOADER = (
    "loader.num_workers",
    "loader.prefetch_factor",
)
_KERNELS = (*COMPUTING,)
_HALVED = ("float", "float32", "fp32")
_HALVINGS, _NEAR = 10, 1e-3  # until the step is as near as that
_ALONE = 0.5  # of what a collective takes beside kernels, at least
_QUICKEST = 0.5  # of the traced host's time: what the profiler slows it at most
_UNCHANGED = 0.02  # a step that a quicker host leaves as it is: one in hundreds of kernels waits for it all the same


def changed(program: Program, settings: Mapping[str, Value]) -> Program:
    """The program after all changes together, at its best where one is bounded. Raises Missing for any other."""
    for name in (*_OF_BUCKETS, *_BEFORE_TOPOLOGY):
        if name in settings:
            program = CHANGES[name](program, settings[name])
    if not settings.keys().isdisjoint(TOPOLOGY):
        program = _topology(program, settings)
    order = [*CHANGES, *settings]
    made = {*_OF_BUCKETS, *_BEFORE_TOPOLOGY, *TOPOLOGY}
    rest = [item for item in settings.items() if item[0] not in made and not _comes_with_workers(item[0], settings)]
    for name, value in sorted(rest, key=lambda setting: order.index(setting[0])):
        if name in BOUNDS and bounded({name: value}):
            program = BOUNDS[name](program)
        elif name in CHANGES:
            program = CHANGES[name](program, value)
        elif name in BOUNDS:
            raise Missing(f"a GPU trace gives only an upper bound for other values of {name}")
        else:
            raise Missing(f"{name} cannot be predicted from a GPU trace")
    return program


def without_profiler(program: Program, step_ns: float) -> Program:
    """The program whose step takes as long as one without the profiler, by a host that takes less time.

    The profiler slows calls, and not what devices do. As near as that comes: a host that takes no time leaves the step
    that the devices take, and none is slower without the profiler.
    """
    low, high = 0.0, 1.0
    if program.recorded_step_ns() <= step_ns:
        return program
    found = program
    for _ in range(_HALVINGS):
        times = (low + high) / 2
        found = _host(program, times)
        took = found.step_ns()
        if abs(took - step_ns) <= _NEAR * step_ns:
            break
        low, high = (low, times) if took > step_ns else (times, high)
    return found


def with_quickest_host(program: Program) -> Program:
    """The program with the least time of the host that leaves its step as it is, down to half of it.

    Where devices are the limit, the step does not tell how much the profiler slowed the host, and a change that makes
    the devices quicker finds out. On an H200 with torch 2.11 steps that waited for the host took 1.2 to 1.9 times as
    long with the profiler.
    """
    least_ns = (1 - _UNCHANGED) * program.step_ns()
    if _host(program, _QUICKEST).step_ns() >= least_ns:
        return _host(program, _QUICKEST)
    low, high = _QUICKEST, 1.0
    for _ in range(_HALVINGS):
        times = (low + high) / 2
        low, high = (low, times) if _host(program, times).step_ns() >= least_ns else (times, high)
    return _host(program, high)


def bounded(settings: Mapping[str, Value]) -> list[str]:
    """Those of the changes with only an upper bound of the saving."""
    return [
        name for name, value in settings.items() if name in _BOUNDED and not is_off(value) and value not in (0, "none")
    ]


def _comes_with_workers(name: str, settings: Mapping[str, Value]) -> bool:
    """Whether it is about workers that come with it: the bound of these holds for both."""
    return name == "loader.persistent_workers" and bool(settings.get("loader.num_workers"))


def _edges(program: Program, of: Callable[[Edge], Edge | None]) -> Program:
    """The program with each edge replaced, or taken away; the same program where that leaves every edge as it is."""
    changed_edges = [[new for edge in edges if (new := of(edge))] for edges in program.edges]
    if all(map(_same, changed_edges, program.edges)):
        return program
    return replace(program, edges=changed_edges)


def _same(edges: Sequence[Edge], others: Sequence[Edge]) -> bool:
    return len(edges) == len(others) and all(map(is_, edges, others))


def _times(program: Program, kinds: tuple[Kind, ...], times: float) -> Program:
    """All edges of these kinds so many times as long."""

    def of(edge: Edge) -> Edge:
        return edge.lasting(edge.lag_ns * times) if edge.kind in kinds and edge.lag_ns else edge

    return program if times == 1 else _edges(program, of)


def _messages(program: Program, times: Callable[[Message], float]) -> Program:
    """Each exchange so many times as long as its message says."""
    factors = [times(message) for message in program.messages]

    def of(edge: Edge) -> Edge:
        if edge.kind != Kind.EXCHANGE or factors[edge.message] == 1:
            return edge
        return edge.lasting(edge.lag_ns * factors[edge.message])

    return _edges(program, of)


def _link(program: Program) -> Link:
    if program.world_size == 1:
        raise Missing(ALONE)
    if program.link is None:
        raise Missing("latency and bandwidth of all-reduces are unknown: measure them with `dptune links`")
    return program.link


def _relinked(program: Program, link: Link, of_others: Link | None = None) -> Program:
    """With another link for all-reduces, and for other exchanges that or a third."""
    before = _link(program)
    if not program.messages:
        raise Missing("no collective of known size was found on all its ranks")

    def times(message: Message) -> float:
        after = link if message.kind == "all_reduce" else of_others or link
        return after.alone_ns(message.message_bytes) / before.alone_ns(message.message_bytes)

    return replace(_messages(program, times), link=link)


def _alpha(program: Program, value: Value) -> Program:
    return _relinked(program, replace(_link(program), alpha_ns=float(value or 0) * 1e3))


def _rate(program: Program, value: Value) -> Program:
    return _relinked(program, replace(_link(program), bytes_per_ns=float(value or 0)))


def _bucket_cap(program: Program, value: Value) -> Program:
    return rebucketed(program, Caps.of(None if value is None else float(value)))


def _bucket_caps(program: Program, value: Value) -> Program:
    return rebucketed(program, Caps.of(each_mb=[float(part) for part in str(value).split(",")]))


def _first_bucket(program: Program, value: Value) -> Program:
    """A first bucket of so many MiB, where the others are as torch's own size makes them."""
    for reduction in program.reductions:
        first, *rest = (program.messages[bucket.message].message_bytes for bucket in reduction.buckets)
        if first >= DEFAULT_CAP_BYTES or any(size < DEFAULT_CAP_BYTES for size in rest[:-1]):
            raise Missing("the recorded buckets are not of torch's default sizes, which have a first one of their own")
    return rebucketed(program, Caps.of(first_bytes=int(float(value or 0) * MIB)))


def _no_sync(program: Program, value: Value) -> Program:
    """Gradients are reduced in the last backward pass of a step only."""
    if not value:
        raise Missing("a GPU trace does not show what reducing gradients in every backward pass would take")
    return silenced(program)


def _comm_hook(program: Program, value: Value) -> Program:
    """All-reduces of 32-bit floats send half. What the hook costs is not counted, so this bounds its saving.

    For each bucket the host runs the hook in Python, casts, and casts back before the next step. On two ranks of an
    H200, bf16 took 6 % longer than fp32, where half of the bytes alone save 11 %.
    """
    if value == "none":
        return program
    if value not in ("fp16", "bf16"):
        raise Missing(f"the effect of the hook {value} cannot be predicted from a GPU trace")

    def halved(message: Message) -> bool:
        return message.kind == "all_reduce" and message.dtype in _HALVED

    if not any(map(halved, program.messages)):
        raise Missing("no fp32 all-reduce was found on all its ranks")
    link = _link(program)

    def times(message: Message) -> float:
        return (
            link.alone_ns(message.message_bytes / 2) / link.alone_ns(message.message_bytes) if halved(message) else 1.0
        )

    return _messages(program, times)


def _topology(program: Program, settings: Mapping[str, Value]) -> Program:
    """Those ranks that were read stand for the others."""
    before = program.world_size
    ranks = ranks_asked(settings, before)
    link = relinked(_link(program), before, program.hosts, settings)
    ring = {**settings, "allreduce.algorithm": RING}  # what others than all-reduces take
    around = relinked(_link(program), before, program.hosts, ring)
    linked = _relinked(program, link, around)
    samples = None if program.samples is None else program.samples * ranks / before
    return replace(linked, samples=samples, world_size=ranks)


def _host(program: Program, value: Value) -> Program:
    return _times(program, (Kind.HOST, Kind.UPDATING, Kind.LAUNCH), float(value or 0))


def _compute(program: Program, value: Value) -> Program:
    return _times(program, _KERNELS, float(value or 0))


def _batch(program: Program, value: Value) -> Program:
    """Kernels, copies and waits for batches grow with it; the optimizer, calls of the host and exchanges do not."""
    if not program.batch:
        raise Missing("the script uses no recorded DataLoader, or several, and the trace does not show the batch size")
    times = int(value or 0) / program.batch
    if not times:
        raise Missing("a batch has at least one sample")
    growing = (Kind.COMPUTE, Kind.PRODUCT, Kind.COPY)
    grown = _times(program, growing, 1 + program.growing * (times - 1))
    samples = None if program.samples is None else program.samples * times
    return replace(_times(grown, (Kind.INPUT,), times), batch=int(value or 0), samples=samples)


def _no_sync_calls(program: Program, value: Value) -> Program:
    """Calls that wait for the device return at once."""
    return _edges(program, lambda edge: None if edge.kind == Kind.SYNC else edge) if value else program


def _same_time(program: Program, value: Value) -> Program:
    """What is learned changes, and not how long that takes."""
    return program


def _no_update(program: Program) -> Program:
    """The optimizer's kernels and calls take no time."""
    if not any(edge.kind == Kind.UPDATE for edges in program.edges for edge in edges):
        raise Missing("the trace does not show which kernels are the optimizer's")
    return _times(program, (Kind.UPDATE, Kind.UPDATING), 0.0)


def _no_loader(program: Program) -> Program:
    return _times(program, (Kind.INPUT,), 0.0)


def _copies_beside(program: Program) -> Program:
    """Copies take no time, and no call waits for one."""
    copies = {place: edge.item for place, edges in enumerate(program.edges) for edge in edges if edge.kind == Kind.COPY}
    copied = {*copies, *copies.values()}  # ends and begins
    free = _edges(program, lambda edge: None if edge.kind == Kind.SYNC and edge.item in copied else edge)
    return _times(free, (Kind.COPY,), 0.0)


def _pinned(program: Program) -> Program:
    """Batches are there, in memory that copies do not hold the script for."""
    return _copies_beside(_no_loader(program))


def _no_products(program: Program) -> Program:
    """Kernels that may multiply matrices or convolve in fp32 take no time, and collectives no longer share the device.

    Beside kernels a collective takes longer than alone: two ranks on an H200 all-reduced 50 MB in 17.1 ms of a step,
    and in 12.8 ms by `dptune links`; with TF32 the step was shorter than a bound that kept the 17.1 ms.
    """
    return _times(_times(program, (Kind.PRODUCT,), 0.0), (Kind.EXCHANGE, Kind.WAIT), _ALONE)


def _half_precision(program: Program) -> Program:
    """They take no time, and the other kernels half of theirs: they move half of the bytes."""
    return _times(_no_products(program), _KERNELS, 0.5)


def _gathered_ahead(program: Program) -> Program:
    """All-gathers take no time, nor do collectives of which not all ranks were read: those may be such."""
    gathers = _messages(program, lambda message: 0.0 if message.kind == "all_gather" else 1.0)
    return _times(gathers, (Kind.WAIT,), 0.0)


BOUNDS: dict[str, Callable[[Program], Program]] = {
    **dict.fromkeys(_OF_THE_LOADER, _no_loader),
    "loader.pin_memory": _pinned,
    "copies.non_blocking": _copies_beside,
    "precision.float32_matmul": _no_products,
    "precision.autocast": _half_precision,
    "cudnn.allow_tf32": _no_products,
    "fsdp.prefetch": _gathered_ahead,
    "optimizer.fused": _no_update,
    "optimizer.foreach": _no_update,
}
# Those of buckets come first: the link, hooks and the topology change the collectives of new buckets, too.
_OF_BUCKETS: dict[str, Changing] = {
    "ddp.bucket_cap_mb": _bucket_cap,
    "ddp.bucket_cap_mb_list": _bucket_caps,
    "ddp.first_bucket_mb": _first_bucket,
    "ddp.no_sync": _no_sync,
}
_BOUNDED = frozenset({*BOUNDS, "ddp.comm_hook"})
# In the order in which they are made, those before the topology before it; messages are halved after that.
CHANGES: dict[str, Changing] = {
    **_OF_BUCKETS,
    "link.alpha_us": _alpha,
    "link.gb_per_s": _rate,
    "ddp.comm_hook": _comm_hook,
    "straggler.removed": without_straggler,
    "straggler.balanced": balanced,
    "host.times": _host,
    "compute.times": _compute,
    "loader.batch_size": _batch,
    "syncs.removed": _no_sync_calls,
    **dict.fromkeys(TAKE_NO_TIME, _same_time),
}
_BEFORE_TOPOLOGY = ("link.alpha_us", "link.gb_per_s")
PREDICTED = frozenset({*CHANGES, *BOUNDS, *TOPOLOGY, "loader.persistent_workers"})
