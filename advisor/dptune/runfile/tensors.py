"""Tensors that a rank holds between two steps, by what they are for."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class TensorFacts:
    """What was alive on the device of the rank after a step of the warm-up, in bytes. Each storage counts once, in this
    order: parameters, gradients, the optimizer's state, buffers, others (data, outputs that are kept).

    `whole_bytes`: of the parameters, before they are sharded; `trained_bytes`: of those that get gradients, and
    `trained_tensors` how many there are. `parameter_sizes`: the sizes that there are among parameters, unsharded, the
    largest first. `block`: the class of the largest list of equal modules, `block_bytes` the parameters of each.
    """

    parameter_bytes: int = 0
    gradient_bytes: int = 0
    state_bytes: int = 0
    buffer_bytes: int = 0
    other_bytes: int = 0
    whole_bytes: int = 0
    trained_bytes: int = 0
    trained_tensors: int = 0
    parameter_sizes: list[int] = field(default_factory=list)
    block: str = ""
    block_bytes: list[int] = field(default_factory=list)
