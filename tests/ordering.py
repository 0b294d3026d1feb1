"""In which order files of tests run beside each other: each process takes the next one when it is through with one."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

# These take 20 to 70 s of a core each: begun late, one of them would run alone at the end.
DEAREST = {"test_html.py", "test_inferred.py", "test_recorded.py", "test_tui.py", "test_tui_run.py"}


def ordered(files: Iterable[Path], recording: Collection[Path], long: Collection[Path]) -> list[Path]:
    """Quick files last. Those that record wait for processes, and run beside long ones, which compute meanwhile."""
    files = sorted(files, key=lambda file: file.name not in DEAREST)  # stable
    records = [file for file in files if file in recording]
    computes = [file for file in files if file in long and file not in recording]
    places = {file: number / len(kind) for kind in (records, computes) for number, file in enumerate(kind)}
    return sorted(files, key=lambda file: places.get(file, 1.0))
