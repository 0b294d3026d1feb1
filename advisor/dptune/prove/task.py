"""What is to be proven."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from dptune.capture.launch import Launch
from dptune.knobs import Value, of_change
from dptune.prove import sequential
from dptune.prove.identity import Files
from dptune.prove.result import Side, SideName
from dptune.prove.trial import Bounds

# What a change may do to the losses of the first passes: nothing but reorder sums, round to 16 bits, or show each pass
# other samples or other random numbers.
Numerics = Literal["same", "changes", "other draws"]
# A worker has a generator of its own, and compiled kernels draw random numbers of their own, for example for dropout.
_OTHER_DRAWS = frozenset({"loader.batch_size", "loader.num_workers", "compile.model"})


def numerics_of(changed: Iterable[str]) -> Numerics:
    """The most that changing these knobs may do."""
    names = set(changed)
    if names & _OTHER_DRAWS:
        return "other draws"
    return "changes" if any(of_change(name).numerics == "changes" for name in names) else "same"


@dataclass(frozen=True)
class Task:
    """How each side is started and set, and from which folder it is copied (None: it runs in `directory`, or here).

    `patched` are files that B has otherwise, by their path below its folder, and `written` the settings that these
    make: they are not set from outside. `recorded`: whether what A is has run there before, so that a copy in which
    it fails lacks something.
    `a` and `b` say what they are, without secrets; `command` is what is run, where that is not what was recorded.
    `code` is that of each side when it was asked for, `written_since` what of it is newer than the recording. `limit`:
    by what share B may take longer; where it is set, that is what trials are to tell. `within`: how far either way the
    difference may be from what they tell, as a share of A's time; where it is set, they go on until they do.
    """

    a: Side
    b: Side
    launches: dict[SideName, Launch]
    settings: dict[SideName, dict[str, Value]]
    sources: dict[SideName, Path | None]
    directory: Path | None = None
    recorded: bool = False
    patched: Mapping[str, bytes] = field(default_factory=dict)
    written: frozenset[str] = frozenset()
    numerics: Numerics = "same"
    advice: str = ""
    command: str = ""
    code: dict[SideName, Files] = field(default_factory=dict)
    written_since: list[str] = field(default_factory=list)
    bounds: Bounds = field(default_factory=Bounds)
    budget_s: float = 1800.0
    most: int = sequential.LOOKS[-1]
    limit: float | None = None
    within: float | None = None

    def side(self, name: SideName) -> Side:
        """One side."""
        return self.a if name == "A" else self.b

    def from_outside(self, name: SideName) -> dict[str, Value]:
        """What is set from outside of one side."""
        if name == "A":
            return self.settings["A"]
        return {knob: value for knob, value in self.settings["B"].items() if knob not in self.written}

    @property
    def changed(self) -> set[str]:
        """The knobs that B sets otherwise than A."""
        a, b = self.settings["A"], self.settings["B"]
        return {name for name, value in b.items() if a.get(name, ...) != value}
