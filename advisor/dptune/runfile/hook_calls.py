"""Forward hooks of the script whose results no step reads."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class HookCallFacts:
    """A forward hook that computes in every watched step, and whose results nothing outside of it reads.

    `function` is its name, `where` its first line. `modules`: on how many modules it is registered; `operators` what
    it calls, what takes longest first; `calls` their number per step, of `steps` watched steps; `arrays`: whether it
    converts tensors to NumPy arrays.
    """

    function: str
    where: str
    modules: int = 0
    operators: list[str] = field(default_factory=list)
    calls: int = 0
    steps: int = 0
    arrays: bool = False
