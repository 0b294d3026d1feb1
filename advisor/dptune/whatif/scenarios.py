"""What only a prediction can change: other links, more ranks, a rank that is no longer late.

They are parsed as knobs are, but nothing sets them: their defaults stand for "as it is", which no value does.
"""

from __future__ import annotations

from types import MappingProxyType

from dptune.knobs import Knob, knob
from dptune.whatif.cpu.topology import ALGORITHMS, RING

_ALL = (
    Knob(
        "link.alpha_us",
        float,
        "us",
        0.0,
        "same",
        "latency of an all-reduce of no bytes among the ranks of the run, as `dptune links` measures it",
        "",
        least=0.0,
    ),
    Knob(
        "link.gb_per_s",
        float,
        "GB/s",
        0.0,
        "same",
        "message bytes of their all-reduce per second (algbw)",
        "",
        least=1e-6,
    ),
    Knob(
        "accumulation.micro_batches",
        int,
        "micro-batches",
        1,
        "same",
        "backward passes of each rank per optimizer step, each of one batch",
        "",
        least=1,
    ),
    Knob("world_size", int, "ranks", 2, "same", "ranks of the run, each with the batch it has", "", least=2),
    Knob("nodes", int, "nodes", 1, "same", "over which the ranks are spread evenly", "", least=1),
    Knob("allreduce.algorithm", str, "", RING, "same", "how many ranks reduce together", "", ALGORITHMS),
    Knob("link.between_alpha_us", float, "us", 0.0, "same", "latency from node to node", "", least=0.0),
    Knob("link.between_gb_per_s", float, "GB/s", 0.0, "same", "what a node sends to others", "", least=1e-6),
    Knob("host.times", float, "", 1.0, "same", "what the host does takes so many times as long", "", least=0.0),
    Knob("compute.times", float, "", 1.0, "same", "what is computed takes so many times as long", "", least=0.0),
    Knob("fsdp.prefetch", bool, "", False, "same", "parameters are gathered before they are waited for", ""),
    Knob("copies.non_blocking", bool, "", False, "same", "copies of GPUs hold up neither script nor kernels", ""),
    Knob("syncs.removed", bool, "", False, "same", "no call of the host waits for its device", ""),
    Knob("straggler.balanced", bool, "", False, "same", "each step's forward and backward work is spread evenly", ""),
    Knob("straggler.removed", bool, "", False, "same", "the rank that computes longest takes what others take", ""),
)
SCENARIOS = MappingProxyType({scenario.name: scenario for scenario in _ALL})


def named(name: str) -> Knob:
    """The knob or scenario of that name; raises UsageError naming the nearest one."""
    return knob(name, SCENARIOS)
