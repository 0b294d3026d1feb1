"""Which Python runs the user's script: one that has torch, which may not be the one dptune itself lives in."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from dptune.errors import CaptureError

_LOWEST_PYTHON = (3, 10)
_ASK = """
import json, sys, importlib.util
try:
    from importlib.metadata import version
    torch = version("torch") if importlib.util.find_spec("torch") else None
except Exception:
    torch = "unknown" if importlib.util.find_spec("torch") else None
print(json.dumps([list(sys.version_info[:3]), torch]))
"""


@dataclass(frozen=True)
class Interpreter:
    """A Python and the torch it has, by version; `torch` is None where it has none."""

    path: str
    python: tuple[int, ...]
    torch: str | None


def choose(asked: str | None) -> Interpreter:
    """The Python asked for, else the active environment's, else dptune's own, else PATH's: the first that has torch.

    Raises CaptureError with what to install where none has it.
    """
    if asked is not None:
        found = _ask(shutil.which(asked) or asked)
        if found is None:
            raise CaptureError(f"--python: '{asked}' is not a working Python", "give the path of a Python executable")
        candidates: Iterable[Interpreter] = [found]
    else:  # each is started to be asked, and none after the first that has torch
        candidates = filter(None, map(_ask, _candidates()))
    without = []
    for interpreter in candidates:
        if interpreter.torch is not None:
            if interpreter.python < _LOWEST_PYTHON:
                version = ".".join(map(str, interpreter.python))
                raise CaptureError(f"{interpreter.path} is Python {version}: recording needs 3.10 or later")
            return interpreter
        without.append(interpreter)
    one_per_folder = {Path(interpreter.path).parent: interpreter.path for interpreter in reversed(without)}
    looked_at = ", ".join(reversed(one_per_folder.values())) or "no Python was found"
    raise CaptureError(
        f"no torch to record with ({looked_at})",
        "pip install 'dptune[profile]', or choose the Python with torch: dptune profile --python PATH ...",
    )


def of_program(path: str) -> Interpreter | None:
    """The Python that a program runs in, where it is a Python script, else the active one; None without torch."""
    script_python = _named_in(path)
    for candidate in [script_python] if script_python else _candidates():
        found = _ask(candidate)
        if found is not None and found.torch is not None:
            return found
    return None


def runs_by_itself(path: Path) -> bool:
    """Whether an executable file is a program of its own: a binary, or a script whose first line names no Python."""
    try:
        with path.open("rb") as file:
            start = file.read(2048)
    except OSError:
        return False
    if start.startswith(b"\x7fELF"):
        return True
    first, second, *_ = [*start.decode(errors="replace").splitlines()[:2], "", ""]
    return first.startswith("#!") and "python" not in first and not second.startswith("'''exec'")


def _named_in(path: str) -> str | None:
    """The Python in a script's first line, or in the second as pip writes it where the first would be too long."""
    if re.fullmatch(r"python[\d.]*(\.exe)?", Path(path).name):
        return path
    try:
        with open(path, "rb") as script:
            start = script.read(2048).decode(errors="replace").splitlines()[:2]
    except OSError:
        return None
    if not start or not start[0].startswith("#!"):
        return None
    found = re.search(r"^#!\s*(?:\S*/env\s+(?:-\S+\s+)?)?(\S*python[\d.]*)", start[0])
    found = found or re.search(r"""^'''exec' "?([^"]*python[\d.]*)"? """, start[-1])
    return shutil.which(found[1]) if found else None


def _candidates() -> list[str]:
    environments = [os.environ[name] for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if os.environ.get(name)]
    paths = [str(Path(folder) / ("Scripts/python.exe" if os.name == "nt" else "bin/python")) for folder in environments]
    paths += [sys.executable, *filter(None, (shutil.which("python"), shutil.which("python3")))]
    return list(dict.fromkeys(path for path in paths if Path(path).exists()))


def _ask(path: str) -> Interpreter | None:
    try:
        answer = subprocess.run([path, "-c", _ASK], capture_output=True, text=True, timeout=60, check=True)
        version, torch = json.loads(answer.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None
    return Interpreter(path, tuple(version), torch)
