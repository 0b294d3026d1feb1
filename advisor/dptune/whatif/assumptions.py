"""What a prediction takes for granted, in words, by the changes that it is of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dptune.knobs import Value
from dptune.whatif.bounds import is_off
from dptune.whatif.cpu.building import OPERATOR_VIEWS, PARAMETER_NS
from dptune.whatif.cpu.communication import ADDING_NS, COMPRESSED_NS, HOOK_ENDS_NS, HOOK_NS, MATRIX_NS
from dptune.whatif.cpu.loaders import TAKING_NS, WORKER_STARTS_NS
from dptune.whatif.cpu.model import StepModel
from dptune.whatif.cpu.topology import TOPOLOGY
from dptune.whatif.gpu.program import Program

_SIZES = "exchanges of other sizes take what the link's fit says"
_CAST = (
    "a cast takes what copying a bucket back into gradients takes, adding floats of fp16 "
    f"{ADDING_NS['fp16']:g} ns each more than half of 32-bit ones, and the hook {HOOK_NS / 1e3:g} us for each "
    f"bucket before its exchange, and {HOOK_ENDS_NS / 1e3:g} us before the next in its lane"
)
_POWERSGD = (
    f"compressing takes {MATRIX_NS / 1e3:g} us for each matrix and {COMPRESSED_NS:g} ns for each byte of all "
    "gradients, after the last of them, and three exchanges follow"
)
_CONSTANTS = "what the optimizer computes takes as long with any betas and eps"
_EVERYWHERE = {
    "link.": "an exchange takes its latency and its bytes at the link's rate; nothing else is on the link",
    "world_size": "further ranks compute as those recorded do, over links like the one measured",
    "optimizer.lr": "what the optimizer computes takes as long with any learning rate",
    "optimizer.betas": _CONSTANTS,
    "optimizer.eps": _CONSTANTS,
    "allreduce.": "the algorithm takes the hops and bytes of its formula, and what was measured is a ring",
}
_NODES = (
    "ranks are spread evenly over nodes; the link measured is that {}, and those of a node share its link to others"
)
_ON_CPUS = {
    "ddp.bucket": _SIZES,
    "ddp.first_bucket": _SIZES,
    "ddp.comm_hook": "the C library keeps or returns freed memory as before",
    "ddp.no_sync": "a pass without communication computes as before, except for its gradient hooks",
    "loader.num_workers": "each worker prepares a batch as fast as the main process did, CPU cores permitting; "
    f"fetching one costs {TAKING_NS / 1e6:g} ms, and without persistent_workers starting each worker costs "
    f"{WORKER_STARTS_NS / 1e6:g} ms per epoch",
    "loader.persistent_workers": "workers are running when an epoch starts, but no batch is ready",
    "loader.batch_size": "what a pass takes between its operators, to call each (as long as "
    f"{OPERATOR_VIEWS:g} transposes) and for each byte of the parameters ({PARAMETER_NS:g} ns) is the same with any "
    "batch; all else of it grows",
    "accumulation.": "what a step does once takes as long with fewer micro-batches: its optimizer, what precedes the "
    "first of them, and the collectives of the last",
    "straggler.balanced": "the forward and backward work of each step is spread evenly over the ranks, with the same "
    "total; CPU contention between ranks scales with their former skew",
    "straggler.removed": "the slowest rank is given the median compute time of the others; CPU contention between "
    "ranks scales with their former skew",
}
_ON_GPUS = {
    "ddp.comm_hook": "casts are free on a GPU",
    "loader.batch_size": "kernels, copies and waits for batches grow as the batch does, which is the most that they "
    "can; calls of the host and exchanges do not",
    "host.": "calls keep their order, and the devices wait for the same of them",
    "syncs.": "nothing that the script does depends on what it waited for",
}
UNVALIDATED = "GPU predictions have been checked against measured steps for batch sizes only, on one H200"
# Changes of what exchanges that the model does not move would take, too.
_OF_THE_LINK = ("link.", "straggler.", *TOPOLOGY)


def assumed(model: StepModel | Program, changes: Mapping[str, Value], traced: bool) -> list[str]:
    """The sentences, in order, without a full stop. `traced`: the measured step is a traced one."""
    return list(dict.fromkeys(_sentences(model, changes, traced)))


def _sentences(model: StepModel | Program, changes: Mapping[str, Value], traced: bool) -> Iterator[str]:
    known = {**_EVERYWHERE, **(_ON_GPUS if isinstance(model, Program) else _ON_CPUS)}
    known["nodes"] = _NODES.format("within one" if model.hosts == 1 else "between two")
    for name, value in changes.items():
        if not is_off(value) and value != "none":
            yield from (words for begin, words in known.items() if name.startswith(begin))
    if isinstance(model, Program):
        yield UNVALIDATED
        if not traced:
            yield "the profiler slows calls of the host, all by the same factor, and nothing that devices do"
        return
    if model.others and any(name.startswith(_OF_THE_LINK) for name in changes):
        took = f"{max(model.others_ns.values(), default=0.0) / 1e6:.1f} ms"
        yield f"{model.others} exchanges of a step outside of backward passes stay as they are ({took})"
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
        yield "a step takes more samples than an epoch has: the next epoch begins within it"
    if "ddp.comm_hook" in changes and model.dtype is None:
        yield "gradients are of float32: the recording does not say"


def _batches_of_a_step(model: StepModel, changes: Mapping[str, Value]) -> float:
    """How many of the batches that a rank draws now a step takes of them with the changes."""
    batch, ranks = changes.get("loader.batch_size"), changes.get("world_size")
    passes = int(changes.get("accumulation.micro_batches") or len(next(iter(model.steps.values()))[0].passes))
    times = int(batch) / model.loading.batch if batch and model.loading and model.loading.batch else 1.0
    spread = int(ranks) / len(model.steps) if ranks and model.loading and model.loading.sharded else 1.0
    return passes * times * spread
