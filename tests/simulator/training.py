"""The script of one rank: what it does in every step."""

from __future__ import annotations

from contextlib import nullcontext

from tests.simulator.actions import COPY, Action, Begin, Busy, End, Graph, Launch, Record, Script, Thread, Wait
from tests.simulator.collectives import Communicator
from tests.simulator.ddp import Reducer
from tests.simulator.fsdp import Sharded
from tests.simulator.hooks import Hooks
from tests.simulator.kernels import Kernels
from tests.simulator.machine import Machine
from tests.simulator.model import STREAM, Model, Parameter
from tests.simulator.optimizing import optimizer_step
from tests.simulator.settings import Settings, Straggler


def scripts(machine: Machine, settings: Settings) -> list[list[Action]]:
    """Of all ranks. Ranks that do the same share a script."""
    common = _Loop(machine, settings, 0, None).actions()
    straggler = settings.straggler
    if straggler is None:
        return [common] * settings.ranks
    if straggler.rank < 0:
        return [_Loop(machine, settings, 0, straggler).actions()] * settings.ranks
    late = _Loop(machine, settings, straggler.rank, straggler).actions()
    return [late if rank == straggler.rank else common for rank in range(settings.ranks)]


class _Loop:
    """The training loop of a rank."""

    def __init__(self, machine: Machine, settings: Settings, rank: int, straggler: Straggler | None) -> None:
        self.machine = machine
        self.settings = settings
        self.straggler = straggler
        self.script = Script()
        times = settings.compute_times
        if straggler is not None and straggler.kind == "compute":
            times *= straggler.compute_times
        self.model = Model(settings, Kernels(machine.device, times), machine.host, self.script)
        self.communicator = Communicator(settings.ranks, machine.link, machine.host)

    def actions(self) -> list[Action]:
        settings, script = self.settings, self.script
        script.thread("main")
        reducer: Reducer | Hooks | None = None
        if settings.strategy == "ddp":
            reducer = Reducer(self.model, self.communicator)
        elif settings.strategy == "hooks":
            reducer = Hooks(self.model, self.communicator)
        sharded = Sharded(self.model, self.communicator) if settings.strategy == "fsdp" else None
        for micro in range(settings.micro_batches):
            with script.place(f"micro-batch {micro}"):
                self._batch()
                self._late()
                first = len(script.actions)
                if reducer is not None:
                    self._replicated(reducer, micro)
                if sharded is not None:
                    self._sharded(sharded, micro)
                if settings.graphs:
                    script.actions[first:] = _captured(script.actions[first:], script.site("graph"))
                script.thread("main")
                if settings.losses_read:
                    self._read_number()
        optimizer_step(self.model, list(self.model.parameters.values()))
        return script.actions

    def _late(self) -> None:
        straggler = self.straggler
        if self.settings.pause_us:
            self.script.busy(self.settings.pause_us, "pause", sleeps=True)
        if straggler is not None and straggler.kind == "host":
            rotates = self.settings.ranks if straggler.rank < 0 else 0
            self.script.busy(straggler.host_us, "sleep", sleeps=True, rotates=rotates, spread=straggler.spread)

    def _batch(self) -> None:
        """The next batch, from the loader or made on the device."""
        settings, script, model, device = self.settings, self.script, self.model, self.machine.device
        shape = (settings.batch, settings.tokens, settings.width)
        if settings.loader is None:
            with model.operator("aten::randn", shape, (), (), (), cost=2.0):
                elements = settings.rows * settings.width
                model.pointwise("fill", elements, 4.0 * elements)
            return
        loader = settings.loader
        kind = "_MultiProcessingDataLoaderIter" if loader.workers else "_SingleProcessDataLoaderIter"
        with script.event(f"enumerate(DataLoader)#{kind}.__next__", 4 * self.machine.host.module_us, "user_annotation"):
            script.next_batch(loader.decode_us * settings.batch, loader.workers, loader.prefetch)
        moved = loader.sample_bytes * settings.batch
        rate = device.pinned_gb_per_s if loader.pinned else device.pageable_gb_per_s
        dims = (settings.batch, loader.sample_bytes // 4)
        with (
            model.operator("aten::to", dims, (), (), (), dtype="float"),
            model.operator("aten::_to_copy", dims, (), (), (), dtype="float"),
            model.operator("aten::copy_", dims, dims, (), dtype="float"),
        ):
            script.launch(
                COPY,
                f"Memcpy HtoD ({'Pinned' if loader.pinned else 'Pageable'} -> Device)",
                STREAM,
                device.least_kernel_us + moved / rate / 1e3,
                copied_bytes=moved,
                call="cudaMemcpyAsync",
            )
            if not loader.pinned:
                script.synchronize(STREAM)

    def _read_number(self) -> None:
        """`.item()`: a copy to the host, which waits for it."""
        model, script = self.model, self.script
        with model.operator("aten::item", ()), model.operator("aten::_local_scalar_dense", ()):
            script.launch(COPY, "Memcpy DtoH (Device -> Pageable)", STREAM, 1.5, copied_bytes=4, call="cudaMemcpyAsync")
            script.synchronize(STREAM)

    def _reads_in_layers(self, layer: int) -> None:
        if layer < self.settings.losses_read - 1:
            self._read_number()

    def _replicated(self, reducer: Reducer | Hooks, micro: int) -> None:
        settings, script, model = self.settings, self.script, self.model
        reduced = not settings.no_sync or micro == settings.micro_batches - 1
        cost_us = 3 * self.machine.host.module_us
        wrapped = script.event("DistributedDataParallel.forward", cost_us, "user_annotation")
        with script.place("model"), nullcontext() if isinstance(reducer, Hooks) else wrapped:
            for layer in range(settings.layers):
                model.block(layer)
                self._reads_in_layers(layer)
        model.loss()
        script.thread("autograd")
        if reduced:
            reducer.prepare()

        def gradient(parameter: Parameter) -> None:
            reducer.gradient(parameter, added=micro > 0, reduced=reduced)

        with script.place("backward"):
            model.backward(0, gradient)
            if reduced:
                reducer.finish()

    def _sharded(self, sharded: Sharded, micro: int) -> None:
        settings, script, model = self.settings, self.script, self.model
        reduced = not settings.no_sync or micro == settings.micro_batches - 1
        kept = settings.no_sync and micro > 0  # whole gradients of the passes before
        marks: list[int] = []
        sharded.root_before_forward()
        with script.place("model"):
            for unit, layers in enumerate(sharded.units):
                marks.append(model.mark())
                sharded.before_forward(unit)
                for layer in layers:
                    model.block(layer)
                    self._reads_in_layers(layer)
                sharded.after_forward(unit)
        end = model.mark()
        model.loss()
        script.thread("autograd")

        def gradient(parameter: Parameter) -> None:
            name = "torch::autograd::AccumulateGrad"
            with (
                script.event(f"autograd::engine::evaluate_function: {name}", model.host.node_us),
                script.event(name, 0.5 * model.host.node_us, arguments={"Input Dims": [list(parameter.shape)]}),
            ):
                if kept and not sharded.low:
                    with model.operator("aten::add_", parameter.shape, parameter.shape, (), dtype="float"):
                        model.pointwise("add", parameter.elements, 12.0 * parameter.elements)

        with script.place("backward"):
            model.backward(end, gradient)
            for unit in reversed(range(len(sharded.units))):
                sharded.before_backward(unit)
                model.backward(marks[unit], gradient)
                sharded.after_backward(unit, reduced=reduced, kept=kept, added=not settings.no_sync and micro > 0)
            sharded.finish()


def _captured(actions: list[Action], site: int) -> list[Action]:
    """One launch instead of what the host did; what it launches stays."""
    kept: list[Launch | Record | Wait] = []
    for action in actions:
        match action:
            case Launch() | Record() | Wait():
                kept.append(action)
            case Begin() | End() | Busy() | Thread():
                pass
            case _:
                raise ValueError(f"no graph can be captured with {action}")
    return [Graph(kept, site)]
