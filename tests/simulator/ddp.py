"""DistributedDataParallel: buckets of gradients, reduced as the backward pass makes them ready."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.simulator.actions import COPY
from tests.simulator.collectives import SIZES, Communicator
from tests.simulator.model import STREAM, Model, Parameter

NCCL_STREAM = 16
HOOK_STREAM = 20  # of what follows a reduction in a communication hook


def buckets(ready: Sequence[Parameter], caps: Sequence[float]) -> list[list[Parameter]]:
    """As torch rebuilds them: gradients in the order in which they get ready; a bucket is closed once it is full."""
    made: list[list[Parameter]] = [[]]
    filled = 0
    for parameter in ready:
        made[-1].append(parameter)
        filled += 4 * parameter.elements
        if filled >= caps[min(len(made), len(caps)) - 1]:
            made.append([])
            filled = 0
    return [bucket for bucket in made if bucket]


def ready_order(parameters: Sequence[Parameter]) -> list[Parameter]:
    """The order in which the backward pass of the model gets to their gradients."""
    modules: dict[str, list[Parameter]] = {}
    for parameter in parameters:
        modules.setdefault(parameter.name.rpartition(".")[0], []).append(parameter)
    order: list[Parameter] = []
    for name, members in reversed(modules.items()):
        order += members if ".norm" in name else members[::-1]
    return order


@dataclass
class Reducer:
    """Writes what DDP does in backward into the script of a model."""

    model: Model
    communicator: Communicator
    waiting: list[set[str]] = field(default_factory=list)
    started: int = 0

    def __post_init__(self) -> None:
        settings = self.model.settings
        self.buckets = buckets(ready_order(list(self.model.parameters.values())), settings.caps())

    def prepare(self) -> None:
        """A forward pass that will be reduced."""
        self.waiting = [{parameter.name for parameter in bucket} for bucket in self.buckets]
        self.started = 0

    def gradient(self, parameter: Parameter, added: bool, reduced: bool) -> None:
        """AccumulateGrad: `added` to a gradient that is there, and `reduced` in this pass."""
        model, script = self.model, self.model.script
        shape, elements = parameter.shape, parameter.elements
        name = "torch::autograd::AccumulateGrad"
        with script.event(f"autograd::engine::evaluate_function: {name}", model.host.node_us):
            with script.event(name, 0.5 * model.host.node_us, arguments={"Input Dims": [list(shape)]}):
                if added:
                    with model.operator("aten::add_", shape, shape, (), dtype="float"):
                        model.pointwise("add", elements, 12.0 * elements)
                else:
                    with model.operator("aten::detach", shape, cost=0.4, dtype="float"):
                        pass
            if not reduced:
                return
            hooked = model.settings.hook != "none"
            copied = "torch::distributed::reducer::copy_" if hooked else "torch::distributed::reducer::mul_out"
            with (
                model.operator(copied, shape, cost=0.3, dtype="float"),
                model.operator("aten::copy_" if hooked else "aten::mul", shape, (), shape, dtype="float"),
            ):
                model.pointwise("copy" if hooked else "scale", elements, 8.0 * elements)
            for number, missing in enumerate(self.waiting):
                missing.discard(parameter.name)
                if number == self.started and not missing:
                    self._reduce(number)
                    self.started += 1

    def _reduce(self, number: int) -> None:
        """The all-reduce of a bucket starts."""
        model, script = self.model, self.model.script
        elements = sum(parameter.elements for parameter in self.buckets[number])
        dtype = {"bf16": "BFloat16", "fp16": "Half"}.get(model.settings.hook, "Float")
        with script.place(f"bucket {number}"):
            if dtype != "Float":
                with (
                    model.operator("aten::to", (elements,), dtype="float"),
                    model.operator("aten::copy_", (elements,), (elements,), dtype="float"),
                ):
                    model.pointwise("cast", elements, 6.0 * elements)
                with model.operator("aten::div_", (elements,), (), dtype="c10::BFloat16"):
                    model.pointwise("scale", elements, 4.0 * elements)
            script.record(f"bucket {number} ready", STREAM)
            script.wait(f"bucket {number} ready", NCCL_STREAM)
            self.communicator.start(script, "all_reduce", elements, dtype, NCCL_STREAM)
            script.record(f"bucket {number} reduced", NCCL_STREAM)
            if dtype != "Float":
                script.wait(f"bucket {number} reduced", HOOK_STREAM)
                with model.operator("aten::copy_", (elements,), (elements,), dtype="float"):
                    kernel = model.kernels.pointwise("cast", 6.0 * elements, elements)
                    script.launch("compute", kernel.name, HOOK_STREAM, kernel.duration_us, grid=kernel.grid)
                script.record(f"bucket {number} reduced", HOOK_STREAM)

    def finish(self) -> None:
        """At the end of backward: the compute stream waits for each bucket, whose gradients are then copied out."""
        model, script = self.model, self.model.script
        assert self.started == len(self.buckets)
        rate = model.kernels.device.card.memory_tb_per_s * 1e6 * model.kernels.device.memory_share
        for number, bucket in enumerate(self.buckets):
            script.busy(model.host.module_us, "finalize bucket")
            script.wait(f"bucket {number} reduced", STREAM)
            if model.settings.gradient_as_bucket_view:
                continue
            for parameter in bucket:
                shape, moved = parameter.shape, SIZES["Float"] * parameter.elements
                with (
                    script.place(parameter.name),
                    script.event(
                        "torch.distributed.ddp.reducer::copy_bucket_to_grad",
                        0.3 * model.host.operator_us,
                        arguments={"Input Dims": [list(shape)], "Input type": ["float"]},
                    ),
                    model.operator("aten::copy_", shape, shape, (), dtype="float"),
                ):
                    script.launch(
                        COPY,
                        "Memcpy DtoD (Device -> Device)",
                        STREAM,
                        model.kernels.device.least_kernel_us + 2 * moved / rate,
                        copied_bytes=moved,
                        call="cudaMemcpyAsync",
                    )
