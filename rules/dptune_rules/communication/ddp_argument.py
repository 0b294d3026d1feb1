"""How an argument of DistributedDataParallel is passed where a library makes the module."""

from __future__ import annotations

from dptune.advice import Change, Location
from dptune.rule import DdpFacts

Value = bool | int | float | str | None

_ACCELERATE = "Accelerator(..., kwargs_handlers=[DistributedDataParallelKwargs({argument})])"
_LIGHTNING = "Trainer(..., strategy=DDPStrategy({argument}))"
_CALLS = {
    "transformers": "TrainingArguments(..., ddp_{argument})",
    "accelerate": _ACCELERATE,
    "lightning": _LIGHTNING,
    "pytorch_lightning": _LIGHTNING,
}
_OF_TRAINING_ARGUMENTS = ("broadcast_buffers", "bucket_cap_mb", "find_unused_parameters")


def change(ddp: DdpFacts, argument: str, now: Value, then: Value) -> Change:
    """The change of an argument: at the script's call, or in the settings of the library that makes the module."""
    package = ddp.through.partition(".")[0]
    call = _CALLS.get(package, "")
    if package == "transformers" and argument not in _OF_TRAINING_ARGUMENTS:
        call = ""
    knob = f"ddp.{argument}"
    if not call:
        return Change(knob=knob, now=now, then=then, at=Location.parse(ddp.where))
    return Change(knob=knob, now=now, then=then, snippet=call.format(argument=f"{argument}={then}"))
