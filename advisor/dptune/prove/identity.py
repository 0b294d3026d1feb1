"""What a side is, beside its settings: its code, and what runs it. Trials of other code are not its trials."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from dptune.capture.launch import Launch
from dptune.runfile.paths import made_by_dptune
from dptune.runfile.redaction import redacted_environment

_CODE = {".py", ".pyx", ".sh", ".yaml", ".yml", ".toml", ".cfg", ".ini"}
_WHERE_NAMED = ".json"  # scripts write such files, too
_LARGEST_BYTES = 2**20
_MOST_FILES = 5000
_NOT_CODE = {"__pycache__", "node_modules"}


def digest(folder: Path, launch: Launch, run: Path) -> str:
    """A digest of the code in a folder, torch's version, and the variables that change how training computes.

    `run` is left out: it is where trials write. JSON counts where the command names the file.
    """
    whole = hashlib.sha256()
    for word in (launch.interpreter.torch if launch.interpreter else None, *sorted(redacted_environment().items())):
        whole.update(repr(word).encode())
    for path in _code(folder, run.resolve(), " ".join(launch.shown)):
        try:
            content = path.read_bytes()
        except OSError:
            continue
        whole.update(str(path.relative_to(folder)).encode(errors="surrogateescape") + b"\0")
        whole.update(hashlib.sha256(content).digest())
    return whole.hexdigest()[:16]


def _code(folder: Path, run: Path, command: str) -> Iterator[Path]:
    seen = 0
    for place, folders, files in os.walk(folder):
        here = Path(place)
        if made_by_dptune(here):
            folders.clear()
            continue
        folders[:] = sorted(
            name
            for name in folders
            if name not in _NOT_CODE
            and not name.startswith(".")
            and (here / name).resolve() != run
            and not (here / name / "pyvenv.cfg").exists()
        )
        for name in sorted(files):
            path = here / name
            counts = path.suffix in _CODE or (path.suffix == _WHERE_NAMED and name in command)
            if counts and path.is_file() and path.stat().st_size <= _LARGEST_BYTES:
                yield path
                seen += 1
        if seen > _MOST_FILES:
            return
