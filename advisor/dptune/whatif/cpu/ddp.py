"""What the facts of DistributedDataParallel say about its gradients and buckets."""

from __future__ import annotations

from dptune.measured import Missing
from dptune.runfile.communication import DdpFacts
from dptune.runfile.facts import Facts
from dptune.whatif.cpu.buckets import Caps, assign
from dptune.whatif.cpu.model import LowRank
from dptune.whatif.cpu.step_times import NOT_RECORDED

_FLOAT_BYTES = 4


def ddp_of(facts: Facts) -> DdpFacts:
    """The only module of the script. Raises Missing where it is not one that the step model supports."""
    modules = facts.ddp
    if not modules:
        raise Missing("the script has no DistributedDataParallel module, which the step model of CPU runs needs")
    if len(modules) != 1:
        raise Missing(f"the script has {len(modules)} DistributedDataParallel modules; the step model supports one")
    (ddp,) = modules
    if not ddp.gradient_sizes:
        raise Missing(f"gradient sizes are unknown: {NOT_RECORDED}")
    if not ddp.grad_ready_order or max(ddp.grad_ready_order) >= len(ddp.gradient_sizes):
        raise Missing("the order in which gradients become ready was not recorded")
    if len(ddp.gradient_dtypes) > 1:
        raise Missing(f"gradients have several dtypes ({' and '.join(ddp.gradient_dtypes)}), but a bucket has one")
    if ddp.comm_hook:
        raise Missing(f"a communication hook is in use ({ddp.comm_hook})")
    return ddp


def bucket_sizes(ddp: DdpFacts) -> list[int]:
    """Bytes of each bucket, in the order in which they are reduced."""
    sizes = [ddp.gradient_sizes[index] for index in ddp.grad_ready_order]
    return [sum(sizes[place] for place in bucket) for bucket in assign(sizes, caps_of(ddp))]


def caps_of(ddp: DdpFacts) -> Caps:
    """The sizes at which buckets are closed. Raises Missing where they were not recorded."""
    if ddp.bucket_caps_bytes:
        return Caps(tuple(ddp.bucket_caps_bytes))
    if ddp.bucket_cap_bytes is None or ddp.first_bucket_bytes is None:
        raise Missing(f"the requested bucket sizes are unknown: {NOT_RECORDED}")
    return Caps((ddp.first_bucket_bytes, ddp.bucket_cap_bytes))


def low_rank_of(ddp: DdpFacts) -> LowRank | None:
    """A matrix is compressed where its rows and columns are less than half of what it holds, as torch decides it."""
    if len(ddp.gradient_rows) != len(ddp.gradient_sizes):
        return None
    matrices = sent = 0
    for size, rows in zip(ddp.gradient_sizes, ddp.gradient_rows, strict=True):
        columns = size // _FLOAT_BYTES // rows if rows else 0
        compressed = 2 * (rows + columns) < rows * columns
        matrices += compressed
        sent += (rows + columns) * _FLOAT_BYTES if compressed else size
    return LowRank(matrices, sent)
