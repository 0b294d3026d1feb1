"""Files that the script saves, by rank: ranks that save the same file overwrite each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass
class SavedFileFacts:
    """A file that the process wrote with `torch.save`: its path without links, the script's line, and how often.

    `began_ns` and `ended_ns`: of the last write, by the clock of the host. `times` is 0 for a call that was found in
    the source of the training loop and not reached by the recording.
    """

    path: str
    where: str | None = None
    times: int = 0
    began_ns: int = 0
    ended_ns: int = 0


@dataclass
class SharedFile:
    """A file that several ranks of a host wrote or will write.

    `times`: the fewest writes of a rank. `overlaps`: whether two of them wrote it at the same time.
    """

    path: str
    where: str | None
    ranks: list[int]
    times: int
    overlaps: bool


def shared_files(saved: Sequence[tuple[int, str, Sequence[SavedFileFacts]]]) -> list[SharedFile]:
    """The shared files of (rank, host, files) tuples: written ones first, those of most ranks before others."""
    writers: dict[tuple[str, str], list[tuple[int, SavedFileFacts]]] = {}
    for rank, host, files in saved:
        for file in files:
            writers.setdefault((host, file.path), []).append((rank, file))
    found = []
    for (_, path), of_path in writers.items():
        if len({rank for rank, _ in of_path}) > 1:
            files = sorted((file for _, file in of_path), key=lambda file: file.began_ns)
            overlaps = any(later.began_ns < earlier.ended_ns for earlier, later in pairwise(files))
            ranks = sorted({rank for rank, _ in of_path})
            where = next((file.where for file in files if file.where), None)
            found.append(SharedFile(path, where, ranks, min(file.times for file in files), overlaps))
    return sorted(found, key=lambda file: (not file.times, -len(file.ranks), file.path))
