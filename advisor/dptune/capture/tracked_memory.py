"""Peak memory by torch's own trackers: asked of the user's Python, which has torch, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from dptune.capture.interpreter import choose
from dptune.errors import UsageError

_SCRIPT = Path(__file__).parent / "injected" / "tracked_memory.py"
_MOST_S = 1800.0  # for all requests
_LAST_LINE = 200


@dataclass(frozen=True)
class TrackedMemoryRequest:
    """How the model of `function` (FILE:NAME) is wrapped, for one rank of a device mesh of these sizes.

    `paths` are the modules that are units, but for the root; empty: the blocks of class `block`. `units`: into how many
    these are merged, None: each is one. `buckets`: DDP keeps gradients in buckets beside the gradients themselves.
    `copies`: collectives of units allocate as much again, as gloo's do. `reshard` is `reshard_after_forward`; dtypes
    are by torch's names.
    """

    function: str
    batch: int
    mesh: tuple[int, ...]
    sharded: bool
    paths: tuple[str, ...] = ()
    block: str = ""
    units: int | None = None
    reshard: bool | int | None = None
    param_dtype: str | None = None
    reduce_dtype: str | None = None
    checkpointing: bool = False
    buckets: bool = False
    copies: bool = False


@dataclass(frozen=True)
class TrackedMemory:
    """The peak in bytes, and what it consists of by torch's names; or `why` there is none."""

    peak_bytes: int | None = None
    parts: dict[str, int] = field(default_factory=dict)
    why: str = ""


def check(function: str) -> str:
    """The same with an absolute path; raises UsageError where it is not FILE:NAME with a file that exists."""
    path, _, name = function.rpartition(":")
    if not path or not name.isidentifier():
        raise UsageError(f"--model: '{function:.80}' is not FILE:FUNCTION", "like --model train.py:build")
    if not Path(path).is_file():
        raise UsageError(f"--model: there is no file '{path}'", "like --model train.py:build")
    return f"{Path(path).resolve()}:{name}"


def track(requests: Sequence[TrackedMemoryRequest], python: str | None = None) -> list[TrackedMemory]:
    """An answer to each, in order. Raises CaptureError where no Python has torch."""
    interpreter = choose(python)
    with tempfile.TemporaryDirectory(prefix="dptune-tracked-") as folder:
        asked, answers = Path(folder) / "requests.json", Path(folder) / "answers.json"
        asked.write_text(json.dumps([asdict(request) for request in requests]))
        why = ""
        try:
            done = subprocess.run(
                [interpreter.path, str(_SCRIPT), str(asked), str(answers)],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_MOST_S,
                check=False,
            )
            if done.returncode:
                last = (done.stderr.strip().splitlines() or ["no message"])[-1]
                why = f"torch's tracker exited with status {done.returncode}: {last:.{_LAST_LINE}}"
        except subprocess.TimeoutExpired:
            why = f"torch's tracker did not end within {_MOST_S:g} s"
        except OSError as error:
            why = f"cannot start {interpreter.path}: {error.strerror}"
        if why or not answers.exists():
            return [TrackedMemory(why=why or "torch's tracker wrote no answer")] * len(requests)
        return [TrackedMemory(**answer) for answer in json.loads(answers.read_text())]
