"""Facts of which a trace shows that there is nothing: an operator that they cannot be without never ran."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from dptune.measure.inferred.finding import Inferred
from dptune.measure.inferred.hosts import HostEvents
from dptune.runfile.communication import DdpFacts
from dptune.runfile.facts import OptimizerFacts

# fact -> its value where there is none, and the operators of which one always runs where there is some
_WITHOUT: dict[str, tuple[Any, re.Pattern[str]]] = {
    "dense_tables": ([], re.compile(r"aten::(embedding_dense_backward|_embedding_bag_dense_backward)$")),
    "frozen_norms": (None, re.compile(r"aten::\w*batch_norm")),
    "ignored_targets": ([], re.compile(r"aten::(cross_entropy_loss|nll_loss)")),
    "probability_losses": ([], re.compile(r"aten::(cross_entropy_loss|nll_loss|binary_cross_entropy)")),
}
_WHOLE = ["float32"]


def absent(
    host: HostEvents, wrapped: Sequence[DdpFacts], optimizers: Sequence[OptimizerFacts], passes: Sequence[int]
) -> list[Inferred]:
    """What the script does not have; `passes` counts the backward passes of each step.

    A compiled graph runs no operators, and a trace may lack those of the forward pass: then nothing is inferred.
    """
    if not host.trains or host.compiles or not host.forwards:
        return []
    found = [Inferred.of(name, value, "high") for name, (value, needs) in _WITHOUT.items() if not len(host.rows(needs))]
    if not host.inside(host.forward, host.backward).any():
        found.append(Inferred.of("checkpointing", None, "high"))
    if any(ddp.gradient_dtypes == _WHOLE for ddp in wrapped) or _all_whole(optimizers):
        found.append(Inferred.of("lost_updates", [], "high"))
    if passes and max(passes) == 1:
        found.append(Inferred.of("repeated_passes", [], "high"))
        if len(host.updates) >= len(passes):
            found.append(Inferred.of("discarded_gradients", None, "medium"))
    return found


def _all_whole(optimizers: Sequence[OptimizerFacts]) -> bool:
    return bool(optimizers) and all(optimizer.dtypes == _WHOLE for optimizer in optimizers)
