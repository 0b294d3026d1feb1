"""Facts of which a trace shows that there is nothing: an operator that they cannot be without never ran."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from dptune.measure.host.recorded_operators import NODE
from dptune.measure.inferred.finding import Inferred
from dptune.measure.inferred.hosts import HostEvents
from dptune.runfile.communication import DdpFacts
from dptune.runfile.facts import OptimizerFacts

# fact -> its value where there is none, and groups of operators: of each group one always runs where there is some
_WITHOUT: dict[str, tuple[Any, tuple[re.Pattern[str], ...]]] = {
    "dense_tables": ([], (re.compile(r"aten::(embedding_dense_backward|_embedding_bag_dense_backward)$"),)),
    "frozen_norms": (None, (re.compile(r"aten::\w*batch_norm"),)),
    "ignored_targets": ([], (re.compile(r"aten::(cross_entropy_loss|nll_loss)"),)),
    "probability_losses": (
        [],
        (
            re.compile(r"aten::(cross_entropy_loss|nll_loss|binary_cross_entropy)"),
            re.compile(r"aten::(?!_?log_)\w*(softmax|sigmoid)"),  # which returned the probabilities
        ),
    ),
}
_NORM = re.compile(r"aten::batch_norm$")
_NORM_NODE = re.compile(re.escape(NODE) + r"\w*BatchNormBackward\d*$")
_NORM_NODE_ALONE = re.compile(r"\w*BatchNormBackward\d*$")  # as torch 1.9 and earlier name it
_NODE = re.compile(re.escape(NODE) + r"(?!torch::autograd::AccumulateGrad)")
_WHOLE = ["float32"]


def absent(
    host: HostEvents, wrapped: Sequence[DdpFacts], optimizers: Sequence[OptimizerFacts], passes: Sequence[int]
) -> list[Inferred]:
    """What the script does not have; `passes` counts the backward passes of each step.

    A compiled graph runs no operators, and a trace may lack those of the forward pass: then nothing is inferred.
    """
    if not host.trains or host.compiles or not host.forwards:
        return []
    found = [
        Inferred.of(name, value, "high")
        for name, (value, needs) in _WITHOUT.items()
        if not all(len(host.rows(needed)) for needed in needs) or (name == "frozen_norms" and _norms_trained(host))
    ]
    if not host.inside(host.forward, host.backward).any():
        found.append(Inferred.of("checkpointing", None, "high"))
    if any(ddp.gradient_dtypes == _WHOLE for ddp in wrapped) or _all_whole(optimizers):
        found.append(Inferred.of("lost_updates", [], "high"))
    if passes and max(passes) == 1:
        found.append(Inferred.of("repeated_passes", [], "high"))
        if len(host.updates) >= len(passes):
            found.append(Inferred.of("discarded_gradients", None, "medium"))
    return found


def _norms_trained(host: HostEvents) -> bool:
    """Whether every batch_norm of the forward passes has a node in a backward pass that adds a gradient of its own.

    Autograd adds it after that node and before the next. Layers that share weights leave it open.
    """
    starts_ns = host.columns.ts_ns
    calls, nodes = host.rows(_NORM), host.rows(_NORM_NODE)
    every = host.rows(_NODE)
    if not len(nodes):
        nodes, every = host.rows(_NORM_NODE_ALONE), host.backward
    calls = calls[~host.inside(calls, host.backward)]
    added_ns = np.sort(starts_ns[host.gradients])
    follows = np.searchsorted(np.sort(starts_ns[every]), starts_ns[nodes], side="right")
    next_ns = np.append(np.sort(starts_ns[every]), np.iinfo(np.int64).max)[follows]
    adds = np.searchsorted(added_ns, next_ns) > np.searchsorted(added_ns, starts_ns[nodes])
    return len(calls) == len(nodes) > 0 and bool(adds.all())


def _all_whole(optimizers: Sequence[OptimizerFacts]) -> bool:
    return bool(optimizers) and all(optimizer.dtypes == _WHOLE for optimizer in optimizers)
