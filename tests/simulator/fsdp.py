"""FSDP2 (`fully_shard`): parameters are gathered before they are used, gradients are reduced to shards.

As torch 2.11 records it (sample_traces/gpu/ranks-nccl-fsdp): copies into the gathered buffer, the gather and the
reduction have a stream each; what was gathered is copied out on the compute stream. The host runs ahead, so that a
gather overlaps the unit before it (implicit prefetch); in backward the unit before is gathered ahead of time.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.simulator.collectives import Communicator
from tests.simulator.model import STREAM, Model, Parameter

COPY_IN_STREAM, GATHER_STREAM, REDUCE_STREAM = 17, 18, 22


@dataclass
class Sharded:
    """Writes what FSDP does around the units of a model."""

    model: Model
    communicator: Communicator
    gathered: set[int] = field(default_factory=set)  # units whose gather was started and not yet awaited
    whole: set[int] = field(default_factory=set)  # units whose parameters are there
    copied_out: str = ""  # the event of the last copy, in forward
    reduced: str = ""  # the event of the last reduction

    def __post_init__(self) -> None:
        settings = self.model.settings
        layers = range(settings.layers)
        self.units = [list(layers[first : first + settings.unit_layers]) for first in layers[:: settings.unit_layers]]
        self.low = settings.precision == "bf16"

    def parameters(self, unit: int) -> list[Parameter]:
        return [parameter for parameter in self.model.parameters.values() if parameter.layer in self.units[unit]]

    def _elements(self, unit: int) -> int:
        """Of a unit, padded so that every rank has the same part."""
        ranks = self.model.settings.ranks
        return sum(-(-parameter.elements // ranks) * ranks for parameter in self.parameters(unit))

    def _annotated(self, name: str, cost: float):  # type: ignore[no-untyped-def]
        return self.model.script.event(f"FSDP::{name}", cost * self.model.host.module_us, "user_annotation")

    def _on(self, stream: int, name: str, elements: float, moved_bytes: float) -> None:
        kernel = self.model.kernels.pointwise(name, moved_bytes, int(elements))
        self.model.script.launch("compute", kernel.name, stream, kernel.duration_us, grid=kernel.grid)

    def gather(self, unit: int, phase: str) -> None:
        """Start to gather a unit."""
        if unit in self.whole or unit in self.gathered:
            return
        script, model = self.model.script, self.model
        self.gathered.add(unit)
        elements = self._elements(unit)
        part = elements / model.settings.ranks
        with script.place(f"unit {unit} {phase}"), self._annotated(f"all_gather (layers.{unit})", 12.0):
            with model.operator("fsdp::all_gather_copy_in", cost=4.0):
                self._on(COPY_IN_STREAM, "split_copy", part, (6.0 if self.low else 8.0) * part)
            script.record(f"copied in {unit}", COPY_IN_STREAM)
            script.wait(f"copied in {unit}", GATHER_STREAM)
            dtype = "BFloat16" if self.low else "Float"
            self.communicator.start(script, "all_gather", elements, dtype, GATHER_STREAM)
            script.record(f"gathered {unit}", GATHER_STREAM)

    def wait_for(self, unit: int, backward: bool) -> None:
        """The compute stream waits for a unit, and copies it out."""
        if unit in self.whole:
            return
        script, model = self.model.script, self.model
        phase = "backward" if backward else "forward"
        elements = self._elements(unit)
        with script.place(f"unit {unit} {phase}"):
            if not backward and self.copied_out:
                script.wait(self.copied_out, COPY_IN_STREAM)
                script.wait(self.copied_out, GATHER_STREAM)
            with self._annotated(f"all_gather_copy_out (layers.{unit})", 8.0):
                script.wait(f"gathered {unit}", STREAM)
                with model.operator("fsdp::split_with_sizes_copy", cost=4.0):
                    self._on(STREAM, "split_copy", elements, 2.0 * (2 if self.low else 4) * elements)
            event = f"copied out {unit} {phase}"
            script.record(event, STREAM)
            if backward:
                script.wait(event, COPY_IN_STREAM)
                script.wait(event, GATHER_STREAM)
            else:
                self.copied_out = event
        self.gathered.discard(unit)
        self.whole.add(unit)

    def root_before_forward(self) -> None:
        """Gathers wait for what the compute stream did before: the optimizer's step."""
        with self._annotated("root_pre_forward", 4.0):
            self.model.script.record("before forward", STREAM)
            self.model.script.wait("before forward", COPY_IN_STREAM)
            self.model.script.wait("before forward", GATHER_STREAM)

    def before_forward(self, unit: int) -> None:
        prefetch = self.model.settings.prefetch
        with self._annotated(f"pre_forward (layers.{unit})", 6.0):
            self.gather(unit, "forward")
            self.wait_for(unit, backward=False)
            for ahead in range(unit + 1, min(len(self.units), unit + 1 + prefetch)):
                self.gather(ahead, "forward")

    def after_forward(self, unit: int) -> None:
        with self._annotated(f"post_forward (layers.{unit})", 4.0):
            if self.model.settings.reshard:
                self.whole.discard(unit)

    def before_backward(self, unit: int) -> None:
        with self._annotated(f"pre_backward (layers.{unit})", 6.0):
            self.gather(unit, "backward")
            self.wait_for(unit, backward=True)
            for ahead in range(unit - 1, max(-1, unit - 1 - max(1, self.model.settings.prefetch)), -1):
                self.gather(ahead, "backward")

    def after_backward(self, unit: int, *, reduced: bool = True, kept: bool = False, added: bool = False) -> None:
        """Free the unit, and reduce its gradients in fp32.

        `reduced`: else they are kept whole, in fp32. `kept`: earlier passes kept theirs. `added`: earlier passes
        reduced theirs, to which the shards are added.
        """
        script, model = self.model.script, self.model
        elements = self._elements(unit)
        self.whole.discard(unit)
        if self.low and (kept or not reduced):
            with script.place(f"unit {unit} kept"), self._annotated(f"post_backward_accumulate (layers.{unit})", 3.0):
                for parameter in self.parameters(unit):
                    with model.operator("aten::add_" if kept else "aten::to", parameter.shape):
                        moved = (10.0 if kept else 6.0) * parameter.elements
                        model.pointwise("add" if kept else "cast", parameter.elements, moved)
        if not reduced:
            return
        with script.place(f"unit {unit}"), self._annotated(f"post_backward_reduce (layers.{unit})", 15.0):
            if self.reduced:
                script.wait(self.reduced, STREAM)
            with model.operator("fsdp::chunk_cat", cost=5.0):
                self._on(STREAM, "chunk_cat", elements, (6.0 if self.low else 8.0) * elements)
            script.record(f"gradients {unit}", STREAM)
            script.wait(f"gradients {unit}", REDUCE_STREAM)
            self.communicator.start(script, "reduce_scatter", elements, "Float", REDUCE_STREAM)
            if added:
                for parameter in self.parameters(unit):
                    part = -(-parameter.elements // model.settings.ranks)
                    with script.place(parameter.name), model.operator("aten::add_", (part,), (part,)):
                        self._on(REDUCE_STREAM, "add", part, 12.0 * part)
            self.reduced = f"reduced {unit}"
            script.record(self.reduced, REDUCE_STREAM)

    def finish(self) -> None:
        """The root's callback at the end of backward; the next step starts with sharded parameters."""
        with self._annotated("root_post_backward_callback", 4.0):
            if self.reduced:
                self.model.script.wait(self.reduced, STREAM)
        self.reduced = self.copied_out = ""
        self.whole.clear()
