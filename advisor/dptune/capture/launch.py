"""What is started, and the environment it gets."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dptune.capture import interpreter
from dptune.capture.injected.record import plan as plans
from dptune.capture.interpreter import Interpreter
from dptune.capture.job import Job
from dptune.capture.torchrun import Torchrun
from dptune.errors import CaptureError
from dptune.knobs import ENVIRONMENT
from dptune.runfile import paths
from dptune.runfile.record import typed_command

# torchrun's and deepspeed's option; accelerate's counts all nodes, which is more than enough
_ASKS_FOR = re.compile(r"--(?:nproc[-_]per[-_]node|num_processes|num_gpus|ntasks-per-node)[= ](\d{1,5})\b")
_TRACE = ("a trace or a report", "`dptune report {path}` reads it")
_NO_SCRIPTS = {
    ".ipynb": (
        "a notebook",
        "in a cell, use `with dptune.profile() as prof:` and call `prof.step()` after each step; or convert it: "
        "`jupyter nbconvert --to script {path}`",
    ),
    ".json": _TRACE,
    ".gz": _TRACE,
}
_INJECTED = Path(__file__).parent / "injected"


@dataclass(frozen=True)
class Script:
    """What to run: `train.py args...`, or with `module` the words after `python -m`."""

    target: str
    arguments: tuple[str, ...] = ()
    module: bool = False

    @classmethod
    def of(cls, words: Sequence[str]) -> Script:
        """The script that words after `python` name, which are one at least."""
        module = words[0] == "-m" and len(words) > 1
        return cls(words[1 if module else 0], tuple(words[2 if module else 1 :]), module)

    @property
    def words(self) -> list[str]:
        """The script as words after `python`."""
        return [*(["-m"] if self.module else []), self.target, *self.arguments]

    @property
    def name(self) -> str:
        """A short name for the run folder."""
        if self.module:
            return self.target.rsplit(".", 1)[-1]
        return Path(self.target).stem or Path(self.target).resolve().name or "script"

    @property
    def program(self) -> str | None:
        """The program that the first word names, by its path or on PATH; None where it is a script for Python."""
        path = Path(self.target)
        if self.module or (path / "__main__.py").is_file():
            return None
        if not path.is_file():
            return shutil.which(self.target)
        itself = self.target if path.parent != Path() else f"{os.curdir}{os.sep}{path.name}"
        return itself if os.access(path, os.X_OK) and interpreter.runs_by_itself(path) else None

    def check(self) -> None:
        """Raise CaptureError where there is nothing for Python to run."""
        path, usage = Path(self.target), "give the script to run, then its own arguments: train.py --epochs 3"
        if path.is_file() and not self.module and path.suffix in _NO_SCRIPTS:
            what, hint = _NO_SCRIPTS[path.suffix]
            raise CaptureError(f"{path} is {what}, not a script", hint.format(path=path))
        if self.module or path.is_file() or (path / "__main__.py").is_file():
            return
        if (path / paths.RUN_JSON).is_file():
            raise CaptureError(
                f"{path} is a recording, not a script",
                f"`dptune report {path}` shows it, `dptune tune --run {path}` starts from it",
            )
        what = f"{path} is a folder without __main__.py" if path.is_dir() else f"no such script: {self.target}"
        raise CaptureError(what, usage)


@dataclass(frozen=True)
class Launch:
    """A command to start, by whom it starts ranks (as run.json has it), and what is known of them before.

    `words` are started, `shown` stand in run.json; `ranks` are those expected on this node.
    """

    by: str
    words: tuple[str, ...]
    shown: tuple[str, ...]
    name: str
    interpreter: Interpreter | None = None
    torchrun: Torchrun | None = None
    job: Job | None = None
    ranks: tuple[int, ...] = ()
    world_size: int | None = None
    local_ranks: int = 1

    @property
    def typed(self) -> list[str]:
        """The command to copy: `shown`, under torchrun where that starts the ranks."""
        of = self.torchrun or Torchrun()
        return typed_command(self.shown, self.by, of.nproc_per_node, of.nnodes)


def alone(script: Script, python: Interpreter) -> Launch:
    """`python train.py ...`."""
    words = (python.path, *script.words)
    return Launch("dptune", words, _shown(script), script.name, python, ranks=(0,), world_size=None)


def under_torchrun(script: Script, python: Interpreter, torchrun: Torchrun) -> Launch:
    """The same under torchrun, on this node."""
    agent = (python.path, str(_INJECTED / "launch_workers.py"), *torchrun.words, *script.words)
    local, first = torchrun.local_ranks, 0
    if torchrun.several_nodes:
        first = -1 if torchrun.node_rank is None else torchrun.node_rank * local
    ranks = tuple(range(first, first + local)) if first >= 0 and isinstance(torchrun.nproc_per_node, int) else ()
    world = torchrun.world_size
    return Launch(
        "torchrun", agent, _shown(script), script.name, python, torchrun, None, ranks, world, local_ranks=local
    )


def as_rank(script: Script, python: Interpreter, job: Job) -> Launch:
    """`python train.py ...` again, as the rank that a launcher has started dptune for."""
    words, world = (python.path, *script.words), job.world_size
    return Launch("launcher", words, _shown(script), script.name, python, None, job, (job.rank,), world)


def own_command(script: Script, python: Interpreter | None) -> Launch:
    """The user's own launcher, as it is; `script` is its command line."""
    words = tuple(script.words)
    here = Path(script.target).is_file() and script.program is not None  # a bare name would be looked for on PATH
    started = (script.program or script.target, *words[1:]) if here else words
    return Launch("command", started, words, _command_name(words), python, local_ranks=_ranks_in(words))


def environment(plan: plans.Plan, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """The user's environment with the plan in it and the injected folder ahead on PYTHONPATH."""
    inherited = dict(os.environ if base is None else base)
    kept = {name: value for name, value in inherited.items() if name not in removed(plan.settings)}
    return {**kept, **additions(plan, inherited)}


def additions(plan: plans.Plan, base: Mapping[str, str]) -> dict[str, str]:
    """What is added to the user's environment."""
    logs = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": f"{plan.folder}/nccl.%h.%p.log"} if plan.nccl_log else {}
    return {plans.VARIABLE: plan.as_environment(), **logs, **beside_the_plan(base, plan.settings)}


def removed(settings: Mapping[str, Any]) -> list[str]:
    """The variables of the environment that are to be unset: `default` is none."""
    return [
        name.removeprefix(ENVIRONMENT)
        for name, value in settings.items()
        if name.startswith(ENVIRONMENT) and value is None
    ]


def beside_the_plan(base: Mapping[str, str], settings: Mapping[str, Any]) -> dict[str, str]:
    """The same without the plan itself."""
    named = {
        name.removeprefix(ENVIRONMENT): str(value)
        for name, value in settings.items()
        if name.startswith(ENVIRONMENT) and value is not None
    }
    users = {name: value for name, value in base.items() if name not in removed(settings)} | named
    added = {**named, "PYTHONPATH": os.pathsep.join(_joined(str(_INJECTED / "site"), users.get("PYTHONPATH")))}
    if "KINETO_LOG_LEVEL" not in users:
        added["KINETO_LOG_LEVEL"] = "99"  # Kineto writes a line to stderr for each window otherwise
    return added


def mark(plan: plans.Plan) -> str:
    """The entry of the environment by which a process of this recording is known."""
    return f"{plans.VARIABLE}={plan.as_environment()}"


def _shown(script: Script) -> tuple[str, ...]:
    return ("python", *script.words)


def _ranks_in(words: Sequence[str]) -> int:
    """How many ranks a launcher's command line asks for on a node, where it says so; else 1."""
    found = _ASKS_FOR.search(" ".join(words))
    return max(1, int(found[1])) if found else 1


def _command_name(words: Sequence[str]) -> str:
    """A short name for the run folder: the script's, where one of the words is a script, else the program's."""
    scripts = [word for word in words[1:] if word.endswith(".py")]
    return Path(scripts[0] if scripts else words[0]).stem


def _joined(first: str, rest: str | None) -> Sequence[str]:
    return (first, rest) if rest else (first,)
