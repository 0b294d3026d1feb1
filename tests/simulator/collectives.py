"""How a rank starts a collective: the operators, the events and the launch of NCCL's kernel, as torch records them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.simulator.actions import COLLECTIVE, Script
from tests.simulator.machine import Host, Link

SIZES = {"Float": 4, "BFloat16": 2, "Half": 2}
_REDUCED = {"Float": "f32", "BFloat16": "bf16", "Half": "f16"}
_NAMES = {  # operator, annotation, name in the arguments, kernel
    "all_reduce": ("c10d::allreduce_", "nccl:all_reduce", "allreduce", "AllReduce_Sum_{}"),
    "all_gather": ("c10d::_allgather_base_", "nccl:_all_gather_base", "_allgather_base", "AllGather"),
    "reduce_scatter": (
        "c10d::_reduce_scatter_base_",
        "nccl:_reduce_scatter_base",
        "_reduce_scatter_base",
        "ReduceScatter_Sum_{}",
    ),
}


@dataclass(frozen=True)
class Communicator:
    """The group of all ranks."""

    ranks: int
    link: Link
    host: Host

    def start(self, script: Script, kind: str, elements: int, dtype: str, stream: int) -> None:
        """`elements` of the whole buffer, all ranks'. The stream is NCCL's: events around it are the caller's."""
        operator, annotation, collective, kernel = _NAMES[kind]
        part = elements // self.ranks
        sent, received = {"all_gather": (part, elements), "reduce_scatter": (elements, part)}.get(
            kind, (elements, elements)
        )
        arguments: dict[str, Any] = {
            "Collective name": collective,
            "In msg nelems": sent,
            "Out msg nelems": received,
            "Group size": self.ranks,
            "dtype": dtype,
            "In split size": "[]",
            "Out split size": "[]",
            "Process Group Name": "0",
            "Process Group Description": "default_pg",
            "Process Group Ranks": str(list(range(self.ranks))),
        }
        cost_us = self.host.operator_us
        nested: list[Any] = [[[sent]], [], [], [], [], []]
        with (
            script.event(operator, 2 * cost_us, arguments={"Input Dims": nested}),
            script.event("record_param_comms", 2 * cost_us, arguments=dict(arguments)),
            script.event(annotation, 3 * cost_us, "user_annotation"),
        ):
            script.launch(
                COLLECTIVE,
                f"ncclDevKernel_{kernel.format(_REDUCED[dtype])}_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
                stream,
                self.link.transfer_us(kind, elements * SIZES[dtype], self.ranks),
                grid=(24, 1, 1),
                block=(512, 1, 1),
                arguments=arguments,
                call="cuLaunchKernelEx",
            )
