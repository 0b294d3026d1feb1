"""A pass of all ranks whose units gather and reduce: compute and collectives take turns on each rank's thread."""

from __future__ import annotations

from collections.abc import Mapping

from dptune.whatif.cpu.model import Pass, StepModel
from dptune.whatif.cpu.units import ended


def through(
    passes: Mapping[int, Pass], starts_ns: Mapping[int, float], clock: dict[int, float], model: StepModel
) -> None:
    """Move the clocks to the end of one pass of every rank, whose batch is there at these moments.

    A collective starts once every rank has issued it. All ranks issue the same ones in the same order.
    """
    now, computed = dict(starts_ns), dict.fromkeys(passes, 0.0)
    hybrid = None if model.sharding is None else model.sharding.hybrid
    for calls in zip(*(pass_.calls for pass_ in passes.values()), strict=True):
        for (rank, pass_), call in zip(passes.items(), calls, strict=True):
            at_ns = call.at_ns if call.direction == "forward" else pass_.forward_ns + call.at_ns
            now[rank] += max(0.0, at_ns - computed[rank])
            computed[rank] = max(at_ns, computed[rank])
        now = ended(calls[0], now, model.link, model.communication_times, hybrid)
    for rank, pass_ in passes.items():
        clock[rank] = now[rank] + max(0.0, pass_.forward_ns + pass_.backward_ns - computed[rank])
