"""What only a prediction can change: other links, more ranks, a rank that is no longer late.

They are parsed as knobs are, but nothing sets them: their defaults stand for "unchanged", which no value does.
"""

from __future__ import annotations

from types import MappingProxyType

from dptune.errors import UsageError
from dptune.knobs import KNOBS, PATCHED, Knob, knob
from dptune.measure.efficiency.peaks import gpu_name, not_a_gpu
from dptune.whatif.cpu.topology import ALGORITHMS, RING
from dptune.whatif.memory.changes import STATE
from dptune.whatif.memory.dtypes import WIDTH


class _GpuModel(Knob):
    """The name of a GPU with known peaks."""

    def parse(self, text: str) -> str:
        """As the table has it; raises UsageError with the nearest names."""
        if name := gpu_name(text.strip()):
            return name
        raise UsageError(*not_a_gpu(text))


_ALL = (
    Knob(
        "link.alpha_us",
        float,
        "us",
        0.0,
        "same",
        "latency of an all-reduce among the ranks of the run, as measured by `dptune links`",
        "",
        least=0.0,
    ),
    Knob(
        "link.gb_per_s",
        float,
        "GB/s",
        0.0,
        "same",
        "algorithm bandwidth (algbw) of that all-reduce",
        "",
        least=1e-6,
    ),
    Knob(
        "accumulation.micro_batches",
        int,
        "micro-batches",
        1,
        "same",
        "backward passes per rank and optimizer step, each on one batch",
        "",
        least=1,
    ),
    Knob("world_size", int, "ranks", 2, "same", "number of ranks, each with its present batch", "", least=2),
    Knob("nodes", int, "nodes", 1, "same", "number of nodes, with the ranks spread evenly over them", "", least=1),
    Knob("allreduce.algorithm", str, "", RING, "same", "all-reduce algorithm", "", ALGORITHMS),
    Knob("link.between_alpha_us", float, "us", 0.0, "same", "latency between nodes", "", least=0.0),
    Knob("link.between_gb_per_s", float, "GB/s", 0.0, "same", "bandwidth of a node to other nodes", "", least=1e-6),
    Knob(
        "link.within_alpha_us",
        float,
        "us",
        0.0,
        "same",
        "with fsdp.within_hosts: latency of an all-reduce among the ranks of a host, as measured by `dptune links`",
        "",
        least=0.0,
    ),
    Knob(
        "link.within_gb_per_s",
        float,
        "GB/s",
        0.0,
        "same",
        "algorithm bandwidth (algbw) of that all-reduce",
        "",
        least=1e-6,
    ),
    Knob("optimizer.sharded", bool, "", False, "same", "ZeRO-1: each rank keeps a part of the optimizer's state", ""),
    PATCHED["fsdp.within_hosts"],
    PATCHED["fsdp.offload_policy"],
    Knob("optimizer.name", str, "", None, "changes", "the optimizer", "", tuple(STATE)),
    Knob(
        "model.dtype",
        str,
        "",
        "fp32",
        "changes",
        "dtype of parameters, and of what is computed with them",
        "",
        tuple(WIDTH),
    ),
    Knob("host.times", float, "", 1.0, "same", "factor on the time of host work", "", least=0.0),
    Knob("compute.times", float, "", 1.0, "same", "factor on the time of compute", "", least=0.0),
    PATCHED["wrapper"],
    PATCHED["fsdp.blocks_per_unit"],
    Knob("fsdp.units", int, "units", 1, "same", "number of units of fully_shard, of about equal bytes", "", least=1),
    Knob("batch.times", float, "", 1.0, "changes", "factor on the samples of each batch", "", least=1e-3),
    Knob("cuda.graphs", bool, "", False, "same", "forward and backward passes are replayed as CUDA graphs", ""),
    Knob("attention.sdpa", bool, "", False, "same", "attention is one fused kernel (scaled_dot_product_attention)", ""),
    Knob("fsdp.prefetch", bool, "", False, "same", "all-gathers are issued before they are needed", ""),
    Knob("copies.non_blocking", bool, "", False, "same", "copies do not block the script or kernels", ""),
    _GpuModel("gpu.model", str, "", None, "same", "another GPU model, with the same host and links", ""),
    Knob("syncs.removed", bool, "", False, "same", "no host call waits for the device", ""),
    Knob(
        "straggler.balanced",
        bool,
        "",
        False,
        "same",
        "forward and backward work of each step is spread evenly over ranks",
        "",
    ),
    Knob(
        "straggler.removed",
        bool,
        "",
        False,
        "same",
        "the slowest rank is given the median compute time of the others",
        "",
    ),
)
ONLY_MEMORY = frozenset({"optimizer.name", "optimizer.sharded", "model.dtype"})
SCENARIOS = MappingProxyType({scenario.name: scenario for scenario in _ALL})


def changes_results(name: str) -> bool:
    """Whether the knob or scenario of that name can change training results; False for unknown names."""
    found = SCENARIOS.get(name) or KNOBS.get(name)
    return found is not None and found.numerics == "changes"


def named(name: str) -> Knob:
    """The knob or scenario of that name; raises UsageError naming the nearest one."""
    return knob(name, SCENARIOS)
