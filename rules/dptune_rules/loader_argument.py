"""How an argument of a DataLoader is passed where a library makes the loader."""

from __future__ import annotations

from dptune.advice import Change, Location
from dptune.rule import LoaderFacts, RunView, line_of_argument

_OF_TRAINING_ARGUMENTS = {
    "num_workers": "dataloader_num_workers",
    "persistent_workers": "dataloader_persistent_workers",
    "pin_memory": "dataloader_pin_memory",
    "batch_size": "per_device_train_batch_size",
}


def loader_change(
    run: RunView, loader: LoaderFacts | None, argument: str, now: bool | int | None, then: bool | int
) -> Change:
    """The change of an argument: where the script makes the loader, or in the arguments of transformers' Trainer."""
    knob = f"loader.{argument}"
    if loader is None:
        return Change(knob=knob, now=now, then=then)
    name = _OF_TRAINING_ARGUMENTS.get(argument) if loader.through.startswith("transformers.") else None
    if name is None:
        return Change(knob=knob, now=now, then=then, at=Location.parse(loader.where))
    at = line_of_argument(run.facts[0].library_calls if run.facts else [], "TrainingArguments", name)
    snippet = f"TrainingArguments(..., {name}={then})"
    return Change(knob=knob, now=now, then=then, at=Location.parse(at or loader.where), snippet=snippet)
