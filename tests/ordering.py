"""In which order files of tests run beside each other: each process takes the next one when it is through with one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import accumulate
from pathlib import Path

# These take 20 to 70 s of a core each, as much as so many others: begun late, one of them would run alone at the end.
DEAREST = {
    *("measure/test_real_figures.py", "present/test_tui.py", "present/test_tui_run.py", "rules/test_recorded.py"),
}
AS_MUCH_AS = 20


def ordered(files: Iterable[Path], recording: Collection[Path], long: Collection[Path]) -> list[Path]:
    """Quick files last. Those that record wait for processes, and run beside long ones, which compute meanwhile."""
    files = sorted(files, key=lambda file: not _is_dearest(file))  # stable
    records = [file for file in files if file in recording]
    computes = [file for file in files if file in long and file not in recording]
    places = {**dict(_places(records)), **dict(_places(computes))}
    return sorted(files, key=lambda file: places.get(file, 1.0))


def _places(files: list[Path]) -> Iterator[tuple[Path, float]]:
    """Which share of the time of all of them each is begun after."""
    weights = [AS_MUCH_AS if _is_dearest(file) else 1 for file in files]
    for file, begun in zip(files, accumulate(weights, initial=0), strict=False):
        yield file, begun / sum(weights)


def _is_dearest(file: Path) -> bool:
    return "/".join(file.parts[-2:]) in DEAREST
