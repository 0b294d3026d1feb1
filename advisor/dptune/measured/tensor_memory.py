"""Where the memory of tensors goes in a step: what is alive at the moments that decide the peak."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dptune.measured.figure import ABSENT, Figure, Figures, Model


class MemoryMoment(Model):
    """What a step has allocated and not freed at one moment, by what it is for. All in bytes.

    `carried_bytes` is negative: what was alive when the step started and is freed by then, mostly gradients.
    """

    phase: Literal["forward", "backward", "optimizer"] = Field(description="the phase of the step")
    activation_bytes: int = Field(description="allocated by forward passes, freed by backward passes or after them")
    temporary_bytes: int = Field(description="allocated and freed within the forward or the backward pass")
    weight_bytes: int = Field(description="temporaries as large as a parameter: weight gradients, casts of weights")
    gradient_bytes: int = Field(description="allocated by backward passes and alive when the optimizer starts")
    optimizer_bytes: int = Field(description="allocated by the optimizer's step")
    sharding_bytes: int = Field(description="allocated by FSDP: gathered parameters, buffers of its collectives")
    carried_bytes: int = Field(description="freed of what was alive before the step; 0 or less")
    unseen_bytes: int = Field(0, description="may be alive or not: another thread frees it")

    @property
    def rise_bytes(self) -> int:
        """How much more is alive than at the start of the step."""
        return (
            self.activation_bytes
            + self.temporary_bytes
            + self.weight_bytes
            + self.gradient_bytes
            + self.optimizer_bytes
            + self.sharding_bytes
            + self.carried_bytes
        )


class BlockMemory(Model):
    """One of several equal blocks of the model, in its forward pass. In bytes."""

    saved_bytes: int = Field(description="allocated in its forward pass and alive after it")
    output_bytes: int = Field(description="the last of these allocations: its output, where it is saved")


class CpuPrimitives(Model):
    """Different matrix products and convolutions that a CPU computes, by sizes, layouts and types of their inputs."""

    products: int = Field(0, description="matrix products")
    half_products: int = Field(0, description="matrix products in 16 bits")
    convolutions: int = Field(0, description="convolutions and their backward passes")
    half_convolutions: int = Field(0, description="convolutions and their backward passes in 16 bits")


class TensorMemory(Figures):
    """One step of one rank, from its allocations. The moments are those that decide the peak, also with other batches,
    without gradients or without any other part.
    """

    rank: int = Field(description="the rank whose trace was read; the others are assumed to do the same")
    device: str = Field(description="'cpu', 'cuda:3', ...")
    window: Literal["light", "detailed"] = Field(description="source window")
    step: int = Field(description="number of the step")
    moments: list[MemoryMoment] = Field(description="the moments, the fullest first")
    blocks: list[BlockMemory] = Field(description="the blocks in the order in which they run; empty where not shown")
    loss_bytes: int = Field(0, description="activations allocated after the last block: of the head and the loss")
    primitives: CpuPrimitives = Field(
        CpuPrimitives(), description="of a CPU, for each of which oneDNN keeps memory; 0 where sizes were not recorded"
    )
    start_bytes: Figure[int] = Field(ABSENT, description="tensors alive at the start of the step")
