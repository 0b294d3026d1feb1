"""The command that runs the user's script under observation, and the environment it gets."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dptune.capture.injected import plan as plans

_INJECTED = Path(__file__).parent / "injected"


@dataclass(frozen=True)
class Script:
    """What to run: `train.py args...`, or with `module` the words after `python -m`."""

    target: str
    arguments: tuple[str, ...] = ()
    module: bool = False

    @property
    def words(self) -> list[str]:
        """The script as words after `python`."""
        return [*(["-m"] if self.module else []), self.target, *self.arguments]

    @property
    def name(self) -> str:
        """A short name for the run folder."""
        return self.target.rsplit(".", 1)[-1] if self.module else Path(self.target).stem


def command(python: str, script: Script, processes: int) -> list[str]:
    """`python train.py ...`, or with several processes the same under torchrun on this machine."""
    if processes == 1:
        return [python, *script.words]
    torchrun = ["--standalone", "--nproc-per-node", str(processes)]
    return [python, str(_INJECTED / "launch_workers.py"), *torchrun, *script.words]


def environment(plan: plans.Plan, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """The user's environment with the plan in it and the injected folder, alone, ahead on PYTHONPATH."""
    variables = dict(os.environ if base is None else base)
    variables[plans.VARIABLE] = plan.as_environment()
    variables["PYTHONPATH"] = os.pathsep.join(_joined(str(_INJECTED / "site"), variables.get("PYTHONPATH")))
    variables.setdefault("KINETO_LOG_LEVEL", "99")  # Kineto writes a line to stderr for each window otherwise
    return variables


def _joined(first: str, rest: str | None) -> Sequence[str]:
    return (first, rest) if rest else (first,)
