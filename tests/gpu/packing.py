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
    archives: list[list[Path]] = []
    left_out = []
    room = 0
    for folder in folders:
        size = _bytes(folder)
        if size > room and len(archives) < MOST_ARCHIVES and size <= MOST_BYTES:
            archives.append([])
            room = MOST_BYTES
        if size > room:
            left_out.append(folder.name)
            continue
        archives[-1].append(folder)
        room -= size
    packed = {}
    for number, members in enumerate(archives, 1):
        name = f"traces-{number}.tar"
        with tarfile.open(target / name, "w") as archive:
            for path in (path for folder in members for path in _files(folder)):
                archive.add(path, f"{path.parent.name}/{path.name}", recursive=False)
        packed[name] = [folder.name for folder in members]
    return {**packed, "left out": left_out} if left_out else packed


def _files(folder: Path) -> Sequence[Path]:
    return [path for path in sorted(folder.iterdir()) if path.name in _KEPT or path.name.startswith(("rank-", "nccl."))]


def _bytes(folder: Path) -> int:
    """With the archive's own block and padding for each file."""
    return sum(path.stat().st_size + 1024 for path in _files(folder))
