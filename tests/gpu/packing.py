"""What comes back from a card: one JSON file, and the run folders in a few archives of bounded size."""

from __future__ import annotations

import tarfile
from collections.abc import Sequence
from pathlib import Path

MOST_ARCHIVES = 6
MOST_BYTES = 15 * 2**20  # of an archive: some ways to carry files take 16 MiB
_KEPT = ("run.json", "links.json")


def pack(runs: Path, target: Path) -> dict[str, list[str]]:
    """Archives `traces-N.tar` of the run folders, the smallest first; which folders each holds, and what was left out.

    Traces are compressed already. A folder is whole or absent.
    """
    folders = sorted((path for path in runs.iterdir() if path.is_dir()), key=_bytes) if runs.is_dir() else []
    packed: dict[str, list[str]] = {}
    left, number, room = list(folders), 0, 0
    archive: tarfile.TarFile | None = None
    while left and _bytes(left[0]) <= MOST_BYTES:
        if archive is None or _bytes(left[0]) > room:
            if archive is not None:
                archive.close()
            if number == MOST_ARCHIVES:
                break
            number, room = number + 1, MOST_BYTES
            archive = tarfile.open(target / f"traces-{number}.tar", "w")
            packed[f"traces-{number}.tar"] = []
        folder = left.pop(0)
        for path in _files(folder):
            archive.add(path, f"{folder.name}/{path.name}", recursive=False)
        room -= _bytes(folder)
        packed[f"traces-{number}.tar"].append(folder.name)
    if archive is not None:
        archive.close()
    return {**packed, "left out": [folder.name for folder in left]} if left else packed


def _files(folder: Path) -> Sequence[Path]:
    return [path for path in sorted(folder.iterdir()) if path.name in _KEPT or path.name.startswith(("rank-", "nccl."))]


def _bytes(folder: Path) -> int:
    """With the archive's own block and padding for each file."""
    return sum(path.stat().st_size + 1024 for path in _files(folder))
