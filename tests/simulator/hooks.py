"""Gradients that a script averages itself, one by one, from hooks as autograd accumulates them.

As torch's ProcessGroupNCCL does it. `current stream`: since torch 2.8 a collective without async_op=True runs on the
stream that computes. `waits`: before, it ran on NCCL's stream, and the compute stream waited for it. `async`: on NCCL's
stream with async_op=True; all are waited for after the backward pass.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.simulator.collectives import Communicator
from tests.simulator.ddp import NCCL_STREAM
from tests.simulator.model import STREAM, Model, Parameter

WAYS = ("current stream", "waits", "async")


@dataclass
class Hooks:
    """Writes what `register_post_accumulate_grad_hook` runs in backward into the script of a model."""

    model: Model
    communicator: Communicator
    sent: list[Parameter] = field(default_factory=list)

    def prepare(self) -> None:
        """A forward pass whose gradients will be averaged."""
        self.sent = []

    def gradient(self, parameter: Parameter, added: bool, reduced: bool) -> None:
        """AccumulateGrad, and the hook in it."""
        model, script = self.model, self.model.script
        name = "torch::autograd::AccumulateGrad"
        with script.event(f"autograd::engine::evaluate_function: {name}", model.host.node_us):
            with (
                script.event(name, 0.5 * model.host.node_us, arguments={"Input Dims": [list(parameter.shape)]}),
                model.operator("aten::detach", parameter.shape, cost=0.4, dtype="float"),
            ):
                pass
            script.busy(model.host.module_us, "hook")
            self._reduce(parameter)

    def _reduce(self, parameter: Parameter) -> None:
        way, script = self.model.settings.hooks, self.model.script
        with script.place(f"hook {parameter.name}"):
            if way == "current stream":
                self.communicator.start(script, "all_reduce", parameter.elements, "Float", STREAM)
                self._divide(parameter)
                return
            script.record(f"{parameter.name} ready", STREAM)
            script.wait(f"{parameter.name} ready", NCCL_STREAM)
            self.communicator.start(script, "all_reduce", parameter.elements, "Float", NCCL_STREAM)
            script.record(f"{parameter.name} reduced", NCCL_STREAM)
            self.sent.append(parameter)
            if way == "waits":
                self._wait()

    def _wait(self) -> None:
        for parameter in self.sent:
            self.model.script.wait(f"{parameter.name} reduced", STREAM)
            self._divide(parameter)
        self.sent = []

    def _divide(self, parameter: Parameter) -> None:
        with self.model.operator("aten::div_", parameter.shape, (), dtype="float"):
            self.model.pointwise("scale", parameter.elements, 8.0 * parameter.elements)

    def finish(self) -> None:
        """After backward: wait for all handles."""
        self._wait()
