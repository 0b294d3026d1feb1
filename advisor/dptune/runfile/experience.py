"""Functions of the script that collect experience for reinforcement learning, by what they were found doing."""

from __future__ import annotations

from collections.abc import Sequence

from dptune.runfile.facts import Facts
from dptune.runfile.work_kinds import acts, kind_of


def collects(facts: Sequence[Facts], name: str, file: str) -> bool:
    """Whether the function says so by its name, or acts in an environment in the stack samples of untraced steps."""
    if kind_of(name) == "experience":
        return True
    functions: set[str] = set()
    through: set[str] = set()
    windows = [window for rank_facts in facts if (window := rank_facts.window("untraced"))]
    for sample in (sample for window in windows for sample in window.sampled):
        lines = [line.rpartition(" (") for line in sample.path]
        at = next(
            (
                at
                for at, (function, _, where) in enumerate(lines)
                if function.rpartition(".")[2] == name.rpartition(".")[2] and where.rpartition(":")[0] == file
            ),
            None,
        )
        if at is not None:
            functions |= {function for function, _, _ in lines[at + 1 :]}
            through |= {sample.through}
    return acts(functions, through)
