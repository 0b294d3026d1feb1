"""Changes of knobs, as changes of a step model. What a model cannot tell raises Missing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from dptune.knobs import Value
from dptune.measured import Missing
from dptune.whatif.buckets import Caps
from dptune.whatif.model import RankStep, StepModel

Changing = Callable[[StepModel, Value], StepModel]


def changed(model: StepModel, settings: Mapping[str, Value]) -> StepModel:
    """The model after all changes together; raises Missing for a knob that no model tells of."""
    for name, value in settings.items():
        if name not in CHANGES:
            raise Missing(f"no step model tells what {name} does")
        model = CHANGES[name](model, value)
    return model


def _bucket_cap(model: StepModel, value: Value) -> StepModel:
    return replace(model, caps=Caps.of(None if value is None else float(value)))


def _bucket_caps(model: StepModel, value: Value) -> StepModel:
    return replace(model, caps=Caps.of(each_mb=[float(one) for one in str(value).split(",")]))


def _first_bucket(model: StepModel, value: Value) -> StepModel:
    return replace(model, caps=Caps.of(first_bytes=int(float(value or 0) * 2**20)))


def _no_sync(model: StepModel, value: Value) -> StepModel:
    """All passes but the last exchange nothing; or each as the last one does."""

    def of(step: RankStep) -> RankStep:
        *before, last = step.passes
        if not last.ready_ns:
            raise Missing("the last backward pass of a step exchanges nothing")
        ready = () if value else last.ready_ns
        return replace(step, passes=(*(replace(one, ready_ns=ready) for one in before), last))

    return replace(model, steps={rank: [of(step) for step in steps] for rank, steps in model.steps.items()})


def _comm_hook(model: StepModel, value: Value) -> StepModel:
    """Half of the bytes, and a cast each way, which reads and writes as a copy back does."""
    if value == "none":
        return model
    if value not in ("fp16", "bf16"):
        raise Missing(f"no step model tells what the hook {value} does")
    cast = model.copy_ns_per_byte
    return replace(
        model,
        wire_share=0.5,
        prepare_ns_per_byte=cast,
        copy_ns_per_byte=model.copy_ns_per_byte + cast,
    )


CHANGES: dict[str, Changing] = {
    "ddp.bucket_cap_mb": _bucket_cap,
    "ddp.bucket_cap_mb_list": _bucket_caps,
    "ddp.first_bucket_mb": _first_bucket,
    "ddp.no_sync": _no_sync,
    "ddp.comm_hook": _comm_hook,
}
