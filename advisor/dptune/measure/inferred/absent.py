"""Facts of which a trace shows that there is nothing: an operator that they cannot be without never ran."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from dptune.measure.inferred.finding import Inferred
from dptune.measure.inferred.hosts import HostEvents
from dptune.runfile.communication import DdpFacts

# fact -> its value where there is none, and the operators of which one always runs where there is some
_WITHOUT: dict[str, tuple[Any, re.Pattern[str]]] = {
    "dense_tables": ([], re.compile(r"aten::(embedding_dense_backward|_embedding_bag_dense_backward)$")),
    "frozen_norms": (None, re.compile(r"aten::\w*batch_norm")),
    "ignored_targets": ([], re.compile(r"aten::(cross_entropy_loss|nll_loss)")),
    "probability_losses": ([], re.compile(r"aten::(cross_entropy_loss|nll_loss|binary_cross_entropy)")),
}
_FORWARD = re.compile(
    r"aten::(linear|matmul|conv[123]d|convolution|layer_norm|batch_norm|embedding|gelu|relu|silu|dropout|"
    r"scaled_dot_product_attention)$"
)
_WHOLE = ["float32"]


def absent(host: HostEvents, wrapped: Sequence[DdpFacts], passes: Sequence[int]) -> list[Inferred]:
    """What the script does not have; `passes` counts the backward passes of each step.

    A compiled graph runs no operators, and a trace may lack those of the forward pass: then nothing is inferred.
    """
    forward = host.rows(_FORWARD)
    if not host.trains or host.compiles or not len(forward):
        return []
    found = [Inferred.of(name, value, "high") for name, (value, needs) in _WITHOUT.items() if not len(host.rows(needs))]
    if not host.inside(forward, host.backward).any():
        found.append(Inferred.of("checkpointing", None, "high"))
    if any(ddp.gradient_dtypes == _WHOLE for ddp in wrapped):
        found.append(Inferred.of("lost_updates", [], "high"))
    if passes and max(passes) == 1:
        found.append(Inferred.of("repeated_passes", [], "high"))
        if len(host.updates) >= len(passes):
            found.append(Inferred.of("discarded_gradients", None, "medium"))
    return found
