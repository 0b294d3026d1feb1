"""Weights that a script keeps to use later, without a copy."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class KeptWeightFacts:
    """The result of a module's `state_dict()` that is kept while the module trains on.

    `module` is the module's class, `where` the script's line that calls `state_dict`. `tensors` that
    were looked at all still exist `steps` optimizer steps later and share memory with the parameters of the module;
    `steps` is 0 where the recording did not see that, but the source shows it. `held_by` is what the source
    assigns the result to, and `used_where` the line that reads it later, with `load_state_dict` or `torch.save`; None
    where the source shows none.
    """

    module: str = ""
    where: str | None = None
    tensors: int = 0
    steps: int = 0
    held_by: str = ""
    used_where: str | None = None
