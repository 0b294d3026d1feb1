"""Knobs with only an upper bound of the saving: what they affect takes no time then."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from dptune.knobs import Value
from dptune.measured import Missing
from dptune.whatif.cpu.communication import without_buffers
from dptune.whatif.cpu.model import Pass, RankStep, StepModel
from dptune.whatif.cpu.unit_changes import parameter_dtype


def bounded(settings: Mapping[str, Value]) -> list[str]:
    """Those of the changes with only an upper bound of the saving."""
    return [name for name, value in settings.items() if name in BOUNDS and _is_bounded(name, value)]


def _is_bounded(name: str, value: Value) -> bool:
    """Of a knob in BOUNDS: whether the value is one that could save something."""
    return is_off(value) == (name in _SAVES_WHEN_OFF)


def is_off(value: Value) -> bool:
    """Whether a setting is off: it leaves things as torch has them."""
    return value is False or value in ("off", "highest")


def _no_updates(model: StepModel) -> StepModel:
    return replace(
        model, steps={rank: [replace(step, after_ns=0.0) for step in steps] for rank, steps in model.steps.items()}
    )


def _no_compute(model: StepModel) -> StepModel:
    return replace(model, steps=model.each_pass(lambda pass_: pass_.scaled(0.0)))


def _shorter_elements(model: StepModel) -> StepModel:
    """Units gather elements of two bytes, and compute with them in no time."""
    return _no_compute(parameter_dtype(model, "bf16"))


def _no_others(model: StepModel) -> StepModel:
    """What is communicated outside of backward passes takes no time: buffers where they are sent."""
    if not model.others:
        raise Missing("no communication outside of backward passes")

    if model.buffers_ns:
        return without_buffers(model)

    def of(rank: int, step: RankStep) -> RankStep:
        left, passes = model.others_ns.get(rank, 0.0), []
        for pass_ in step.passes:
            passes.append(replace(pass_, forward_ns=max(0.0, pass_.forward_ns - left), sent_ns=0.0))
            left = max(0.0, left - pass_.forward_ns)
        return RankStep(tuple(passes), max(0.0, step.after_ns - left))

    return replace(model, steps={rank: [of(rank, step) for step in steps] for rank, steps in model.steps.items()})


def _no_loader(model: StepModel) -> StepModel:
    steps = model.each_pass(lambda pass_: replace(pass_, loader_ns=0.0))
    return replace(model, steps=steps, supply_ns={}, restart_ns=0.0)


def _no_hooks(model: StepModel) -> StepModel:
    def of(pass_: Pass) -> Pass:
        times = (pass_.backward_ns - pass_.hooks_ns) / pass_.backward_ns if pass_.backward_ns else 1.0
        ready = tuple(time * times for time in pass_.ready_ns)
        return replace(pass_, backward_ns=pass_.backward_ns * times, ready_ns=ready, hooks_ns=0.0)

    return replace(model, steps=model.each_pass(of), copy_ns_per_byte=0.0)


BOUNDS: dict[str, Callable[[StepModel], StepModel]] = {
    "optimizer.fused": _no_updates,
    "optimizer.foreach": _no_updates,
    "loader.prefetch_factor": _no_loader,
    "loader.pin_memory": _no_loader,
    "precision.autocast": _no_compute,
    "precision.float32_matmul": _no_compute,
    "fsdp.param_dtype": _shorter_elements,
    "ddp.gradient_as_bucket_view": _no_hooks,
    "ddp.broadcast_buffers": _no_others,
}
_SAVES_WHEN_OFF = frozenset({"ddp.broadcast_buffers"})
