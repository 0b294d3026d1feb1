"""What a prediction takes for granted, in words, by the changes that it is of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise

from dptune.knobs import Value
from dptune.whatif.bounds import is_off
from dptune.whatif.cpu.building import OPERATOR_VIEWS, PARAMETER_NS
from dptune.whatif.cpu.communication import ADDING_NS, COMPRESSED_NS, HOOK_ENDS_NS, HOOK_NS, MATRIX_NS
from dptune.whatif.cpu.loaders import TAKING_NS, WORKER_STARTS_NS
from dptune.whatif.cpu.model import APART_SHARE, StepModel
from dptune.whatif.cpu.topology import TOPOLOGY
from dptune.whatif.cpu.units import CALL_NS
from dptune.whatif.cpu.wrappers import BYTE_NS, COLD, DISPATCH_NS, REDUCED_BYTE_NS, TENSOR_NS, UPDATE_NS
from dptune.whatif.gpu.graph import Kind
from dptune.whatif.gpu.program import Program

_SIZES = "collectives of other sizes take as long as the link model predicts"
_CAST = (
    "a cast takes as long as copying a bucket back into gradients; adding fp16 floats takes "
    f"{ADDING_NS['fp16']:g} ns more per float than half of 32-bit ones; the hook takes {HOOK_NS / 1e3:g} us per "
    f"bucket before its all-reduce, and {HOOK_ENDS_NS / 1e3:g} us before the next bucket"
)
_POWERSGD = (
    f"compression takes {MATRIX_NS / 1e3:g} us per matrix and {COMPRESSED_NS:g} ns per gradient byte, after the last "
    f"gradient, followed by three collectives"
)
_CONSTANTS = "optimizer compute does not depend on betas and eps"
_EVERYWHERE = {
    "link.": "a collective takes latency + bytes / bandwidth, with no other traffic on the link",
    "world_size": "additional ranks compute like the recorded ones, over links as fast as the measured one",
    "optimizer.lr": "optimizer compute does not depend on the learning rate",
    "optimizer.betas": _CONSTANTS,
    "optimizer.eps": _CONSTANTS,
    "allreduce.": "the algorithm takes the hops and bytes of its formula; the measurement was a ring",
}
_NODES = (
    "ranks are spread evenly over nodes; the measured link is the one {}, and ranks of a node share its link to other "
    "nodes"
)
_BETWEEN = ("link.between_alpha_us", "link.between_gb_per_s")
_BLOCKING = "on a CPU, an all-gather blocks whenever it is issued, so prefetching hides nothing"
_ON_CPUS = {
    "ddp.bucket": _SIZES,
    "ddp.first_bucket": _SIZES,
    "ddp.comm_hook": "the C library keeps or returns freed memory as before",
    "ddp.no_sync": "a pass without communication computes as before, except for its gradient hooks",
    "fsdp.reshard_after_forward": "a gather in a backward pass costs as much host time as recorded in the forward pass",
    "fsdp.forward_prefetch": _BLOCKING,
    "fsdp.backward_prefetch": _BLOCKING,
    "fsdp.reduce_dtype": "casting gradients takes as long as copying them; gloo adds 16-bit floats as fast as it "
    "receives them",
    "fsdp.no_sync": "a pass that reduces no gradients computes as before, except for the hooks that reduce them",
    "fsdp.param_dtype": "compute takes no time: how fast it is in another dtype was not measured",
    "wrapper": f"each collective of a unit adds {CALL_NS / 1e6:g} ms, {TENSOR_NS / 1e3:g} us per tensor and "
    f"{BYTE_NS:g} ns per byte of host time ({REDUCED_BYTE_NS:g} ns for a reduction); compute between collectives of "
    f"units takes {COLD:g}x as long; the optimizer takes {DISPATCH_NS / 1e3:g} us more per sharded tensor, and "
    f"{UPDATE_NS:g} ns per element; fully_shard does not broadcast buffers; compute between two collectives of units "
    f"differs by {100 * APART_SHARE:g} % between ranks; with two ranks, an all-gather takes 1.5x its transfer time on "
    "the rank that arrives late",
    "fsdp.within_hosts": "each reduce-scatter is followed by an all-reduce of shards between hosts, by all ranks of a "
    "host at once",
    "fsdp.units": f"each collective costs {CALL_NS / 1e6:g} ms in its hook, whatever its size; other work in hooks and "
    "copies takes as long in total as before; a merged unit is gathered before its first module and reduced after its "
    "last",
    "loader.num_workers": "each worker prepares a batch as fast as the main process did, CPU cores permitting; "
    f"fetching one costs {TAKING_NS / 1e6:g} ms, and without persistent_workers starting each worker costs "
    f"{WORKER_STARTS_NS / 1e6:g} ms per epoch",
    "loader.persistent_workers": "workers are running when an epoch starts, but no batch is ready",
    "loader.batch_size": f"fixed per pass, whatever the batch: time between operators, calling each "
    f"({OPERATOR_VIEWS:g} transposes), fully_shard hooks, and {PARAMETER_NS:g} ns per parameter byte; all else "
    "grows with the batch",
    "accumulation.": "work done once per step takes as long with fewer micro-batches: the optimizer, work before the "
    "first micro-batch, and the collectives of the last",
    "straggler.balanced": "the forward and backward work of each step is spread evenly over the ranks, with the same "
    "total; CPU contention between ranks scales with their former skew",
    "straggler.removed": "the slowest rank is given the median compute time of the others; CPU contention between "
    "ranks scales with their former skew",
}
_PARTS = (
    "unknown gradient sizes are estimated from the time to copy each gradient into its bucket; overlapping compute "
    "slows new all-reduces as much as recorded ones (1 to 1.34x if unknown)"
)
_BATCH = (
    "waiting for input grows in proportion to the batch, kernels and copies by 0.5 to 1 times that; host calls and "
    "collectives do not grow"
)
_PRECISION = (
    "the speedup of matrix products is 0.4 to 1.3 times the ratio of the device's peak FLOP/s in the new precision to "
    "that in the old"
)
_UNKNOWN_PEAK = (
    "the device and its peak FLOP/s are unknown: the speedup of matrix products is 0.4 to 1.3 times the ratio of an "
    "A100's peaks (16 in 16 bits, 8 in TF32)"
)
_SHARED = "overlapping collectives of a rank share its links"
_UNITS = (
    "with N units prefetched, a unit's all-gather is issued once the unit N places before it has been copied out of "
    f"its gather buffer; {_SHARED}"
)
_ON_GPUS = {
    "fsdp.no_sync": "accumulating gradients takes 1 to 3 times as long as copying them into the input of a "
    "reduce-scatter, plus 5 to 40 us of host time per gradient",
    "fsdp.units": "{least:.0%} to {most:.0%} of the host time in fully_shard hooks is a fixed cost per unit; total "
    "copy time is unchanged; the parts of a split unit have the same size and number of tensors",
    "wrapper": "an all-reduce takes as long as a reduce-scatter plus an all-gather of the same bytes; overlapping "
    "compute slows it as much as it slowed the recorded ones (1 to 1.34x if unknown); gradients of a unit have the "
    "same size where the trace does not show their sizes; updating whole parameters takes 0.6 to 1.1 times as long "
    "per byte as updating shards",
    "ddp.bucket": _PARTS,
    "ddp.first_bucket": _PARTS,
    "ddp.comm_hook": "the hook takes up to 250 us of host time per bucket, and casts move 2.5 bytes per gradient byte",
    "ddp.gradient_as_bucket_view": "only copies out of buckets are saved",
    "accumulation.": "with fewer micro-batches, the last recorded ones remain; with more, each recorded pass takes "
    "longer in proportion, but not the last one if it alone reduces gradients",
    "ddp.no_sync": "a pass without communication takes as long as before, less the time in DDP's reducer",
    "straggler.balanced": "each kernel and the host work before each launch take their mean over ranks; host time "
    "still varies from step to step",
    "straggler.removed": "on the slowest rank, each kernel, the gap before it and host work take the median time of "
    "the other ranks; host time still varies from step to step",
    "loader.batch_size": _BATCH,
    "batch.": _BATCH,
    "loader.num_workers": "each worker prepares a batch as fast as the script did; workers alone save at most the "
    "time that the device idles for input in a traced step, unless the host limits the step",
    "copies.": "copies from pinned memory reach 6 to 50 GB/s, and are no slower than from pageable memory",
    "precision.": _PRECISION,
    "cudnn.allow_tf32": _PRECISION,
    "fsdp.param_dtype": _PRECISION,
    "fsdp.reshard_after_forward": _SHARED,
    "fsdp.forward_prefetch": _UNITS,
    "fsdp.backward_prefetch": _UNITS,
    "fsdp.prefetch": _UNITS,
    "fsdp.within_hosts": "communication within a host takes from zero to the time it takes between "
    "hosts; the all-reduce of shards between hosts follows each reduce-scatter, or overlaps the next one",
    "fsdp.offload_policy": "shards are copied over PCIe at 6 to 50 GB/s, and updated by one core or a few in "
    f"{UPDATE_NS / 16:.1f} to {2 * UPDATE_NS:g} ns per element",
    "optimizer.fused": "a fused update moves 0.25 to 0.6 times the bytes of foreach operations (AdamW: 0.33)",
    "optimizer.foreach": "foreach operations move the same bytes as the loop, without its gaps",
    "cuda.graphs": "forward and backward passes can be captured; the loader and the optimizer are launched as before",
    "gpu.": "no kernel or copy speeds up by more than the largest ratio of the two GPUs' peaks (FLOP/s, memory "
    "bandwidth), and none slows down; host calls and collectives take as long as before",
    "host.": "host calls keep their order and dependencies",
    "syncs.": "no host work depends on the results that the script waited for",
}
UNMATCHED = (
    "collectives that were not matched on all ranks take as long as recorded, waiting included; a rank that was not "
    "read may limit the step instead"
)
_TRACED = (
    "host calls take as long as with the profiler; without it they are faster, so faster kernels and collectives can "
    "save more"
)
UNVALIDATED = "GPU predictions have been checked against measured steps on one H200 only"
# Changes of what collectives that the model does not move would take, too.
_OF_THE_LINK = ("link.", *TOPOLOGY)


def assumed(model: StepModel | Program, changes: Mapping[str, Value], traced: bool) -> list[str]:
    """The sentences, in order, without a full stop. `traced`: the measured step is a traced one."""
    return list(dict.fromkeys(_sentences(model, changes, traced)))


def _sentences(model: StepModel | Program, changes: Mapping[str, Value], traced: bool) -> Iterator[str]:
    known = {**_EVERYWHERE, **(_ON_GPUS if isinstance(model, Program) else _ON_CPUS)}
    if isinstance(model, Program) and "fp32" not in model.peaks:
        known = {begin: _UNKNOWN_PEAK if words == _PRECISION else words for begin, words in known.items()}
    if isinstance(model, Program):
        known["fsdp.units"] = known["fsdp.units"].format(**model.unit_share._asdict())
    known["nodes"] = _nodes(model.hosts, changes)
    for name, value in changes.items():
        if not is_off(value) and value != "none":
            yield from (words for begin, words in known.items() if name.startswith(begin))
    if isinstance(model, Program):
        others = [message for message in model.messages if not model.uses_link(message)]
        of_link = any(name.startswith(_OF_THE_LINK) for name in changes)
        if others and of_link:
            alike = any(message.ranks == model.link_ranks for message in others)
            group = f"{model.link_ranks} ranks{_lying(model.link_offsets) if alike else ''}"
            yield f"the link is that of collectives among {group}; collectives of other groups are unchanged"
        if of_link and model.places((Kind.UNSIZED,)):
            yield "collectives of unknown size take as long as recorded"
        if model.places((Kind.WAIT,)):
            yield UNMATCHED
        yield UNVALIDATED
        yield _TRACED if traced else "the profiler slows all host calls by the same factor, and no device work"
        return
    if changes.get("fsdp.within_hosts") and model.hosts > 1 and "link.within_gb_per_s" not in changes:
        yield (
            "communication within a host was not measured: it takes from zero to the time it takes between hosts; "
            "the ranks of a host share its link to other hosts, or each rank has a full link"
        )
    if model.others and any(name.startswith((*_OF_THE_LINK, "straggler.")) for name in changes):
        took = f"{max(model.others_ns.values(), default=0.0) / 1e6:.1f} ms"
        yield f"{model.others} collectives per step outside of backward passes are unchanged ({took})"
    if changes.get("ddp.comm_hook", "none") != "none":
        yield _POWERSGD if changes["ddp.comm_hook"] == "powersgd" else _CAST
        yield _SIZES
    if model.latency.why:
        times = [f"{factor:.2g}" for _, factor in model.latency.queued] or [f"{model.latency.alone:.2g}"]
        least, most = min(times, key=float), max(times, key=float)
        spread = least if least == most else f"{least} to {most}"
        fit = "the value set" if "link.alpha_us" in changes else "the fitted value"
        yield f"latency is {spread} times {fit}: {model.latency.why}"
    if model.loading is not None and model.loading.epoch and _batches_of_a_step(model, changes) > model.loading.epoch:
        yield "a step takes more samples than an epoch has: the next epoch starts within it"
    if "ddp.comm_hook" in changes and model.dtype is None:
        yield "gradients are assumed to be float32: the recording does not show their dtype"


def _nodes(hosts: int, changes: Mapping[str, Value]) -> str:
    """How ranks are spread over nodes, and what of the link between nodes is nothing but the measured one."""
    words = _NODES.format("within a node" if hosts == 1 else "between nodes")
    lacking = [name for name in _BETWEEN if name not in changes]
    if hosts > 1 or not lacking or changes.get("nodes") == 1:
        return words
    return f"{words}; {' and '.join(lacking)} {'is' if len(lacking) == 1 else 'are'} not set: assumed as within a node"


def _lying(offsets: tuple[int, ...]) -> str:
    """How the ranks of a group lie, in words."""
    steps = {later - earlier for earlier, later in pairwise(offsets)}
    if len(steps) != 1:
        return f" at offsets {', '.join(map(str, offsets))}"
    (apart,) = steps
    return " with consecutive numbers" if apart == 1 else f" whose numbers differ by {apart}"


def _batches_of_a_step(model: StepModel, changes: Mapping[str, Value]) -> float:
    """How many of the batches that a rank draws now a step takes of them with the changes."""
    batch, ranks = changes.get("loader.batch_size"), changes.get("world_size")
    passes = int(changes.get("accumulation.micro_batches") or len(next(iter(model.steps.values()))[0].passes))
    times = int(batch) / model.loading.batch if batch and model.loading and model.loading.batch else 1.0
    spread = int(ranks) / len(model.steps) if ranks and model.loading and model.loading.sharded else 1.0
    return passes * times * spread
