"""What comes back from a card: one JSON file, and the run folders in a few archives of bounded size."""

from __future__ import annotations

import tarfile
from collections.abc import Sequence
from pathlib import Path

MOST_ARCHIVES = 4  # and result.json: some ways to carry files take 64 MiB in all
MOST_BYTES = 15 * 2**20  # of an archive: some take 16 MiB
_KEPT = ("run.json", "links.json")
# The most telling first: what has real NCCL kernels, what was planted, what lengths are known of.
_WORTH = ("ranks-nccl", "pairs", "known", "planted", "link", "ranks", "predict", "verify", "capture")


def worth(name: str) -> tuple[int, str]:
    """By which run folders are sorted."""
    return next((place for place, start in enumerate(_WORTH) if name.startswith(start)), len(_WORTH)), name


def pack(runs: Path, target: Path) -> dict[str, list[str]]:
    """Archives `traces-N.tar` of the run folders, the most telling first; which folders each holds, and what was left
    out.

    Traces are compressed already. A folder is whole or absent.
    """
    folders = sorted((path for path in runs.iterdir() if path.is_dir()), key=_order) if runs.is_dir() else []
    archives: list[list[Path]] = []
    rooms: list[int] = []
    left_out = []
    for folder in folders:
        size = _bytes(folder)
        number = next((n for n, room in enumerate(rooms) if size <= room), len(archives))
        if number == MOST_ARCHIVES or size > MOST_BYTES:
            left_out.append(folder.name)
            continue
        if number == len(archives):
            archives.append([])
            rooms.append(MOST_BYTES)
        archives[number].append(folder)
        rooms[number] -= size
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


def _order(folder: Path) -> tuple[int, int, str]:
    return worth(folder.name)[0], _bytes(folder), folder.name


def _bytes(folder: Path) -> int:
    """With the archive's own block and padding for each file."""
    return sum(path.stat().st_size + 1024 for path in _files(folder))
