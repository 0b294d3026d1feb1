"""How an argument of DistributedDataParallel is passed where a library makes the module."""

from __future__ import annotations

from dptune.advice import Change, Location
from dptune.rule import DdpFacts, RunView, line_of_argument

Value = bool | int | float | str | None

_ACCELERATE = "Accelerator(..., kwargs_handlers=[DistributedDataParallelKwargs({argument})])"
_LIGHTNING = "Trainer(..., strategy=DDPStrategy({argument}))"
_CALLS = {
    "transformers": "TrainingArguments(..., ddp_{argument})",
    "accelerate": _ACCELERATE,
    "lightning": _LIGHTNING,
    "pytorch_lightning": _LIGHTNING,
}
# The prefix of the argument's name, the class that takes it, and what takes an object of that class in turn.
_OF_STRATEGY = ("", "DDPStrategy", ("Trainer", "strategy"))
_SET_IN: dict[str, tuple[str, str, tuple[str, str] | None]] = {
    "transformers": ("ddp_", "TrainingArguments", None),
    "accelerate": ("", "DistributedDataParallelKwargs", ("Accelerator", "kwargs_handlers")),
    "lightning": _OF_STRATEGY,
    "pytorch_lightning": _OF_STRATEGY,
}
_OF_TRAINING_ARGUMENTS = ("broadcast_buffers", "bucket_cap_mb", "find_unused_parameters")


def change(run: RunView, ddp: DdpFacts, argument: str, now: Value, then: Value) -> Change:
    """The change of an argument: at the script's call, or in the settings of the library that makes the module."""
    package = ddp.through.partition(".")[0]
    call = _CALLS.get(package, "")
    if package == "transformers" and argument not in _OF_TRAINING_ARGUMENTS:
        call = ""
    knob = f"ddp.{argument}"
    if not call:
        return Change(knob=knob, now=now, then=then, at=Location.parse(ddp.where))
    snippet = call.format(argument=f"{argument}={then}")
    return Change(knob=knob, now=now, then=then, at=_where(run, ddp, argument), snippet=snippet)


def _where(run: RunView, ddp: DdpFacts, argument: str) -> Location | None:
    """The line of the script that passes the argument to the library, or the call that lacks it."""
    calls = run.facts[0].library_calls if run.facts else []
    prefix, name, within = _SET_IN[ddp.through.partition(".")[0]]
    return Location.parse(line_of_argument(calls, name, prefix + argument, within))
