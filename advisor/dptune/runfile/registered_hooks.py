"""Hooks on modules that training steps register."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_LEAST_STEPS = 8  # that left hooks: fewer may be a list that is being built
_LEAST_SHARE = 0.4  # of all optimizer steps: a loop with two optimizers registers hooks beside every second one


@dataclass
class RegisteredHookFacts:
    """Hooks that one line of the script registers on modules after the first optimizer step, and that are still there.

    `kept`: how many; `in_steps`: in how many of the `of_steps` optimizer steps since they were registered.
    """

    where: str
    kept: int = 0
    in_steps: int = 0
    of_steps: int = 0


def left_by_steps(hooks: Sequence[RegisteredHookFacts]) -> RegisteredHookFacts | None:
    """The line whose hooks become more from step to step, most first; None without."""
    growing = [
        line for line in hooks if line.in_steps >= _LEAST_STEPS and line.in_steps >= _LEAST_SHARE * line.of_steps
    ]
    return max(growing, key=lambda line: line.kept, default=None)
