"""What patches need of a recording, and whether the first recommendation of a report can be applied as one here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dptune.advice import Report
    from dptune.runfile.facts import Facts


def can_patch(report: Report, root: Path) -> bool:
    """Whether the script of the first change is in `root`, which its lines are relative to, and can be patched."""
    advice = next((advice for advice in report.advice if advice.rule == report.headline.rule), None)
    changes = [change for change in advice.changes if change.at] if advice else []
    if not changes or not all((root / change.at.file).is_file() for change in changes if change.at):
        return False
    from dptune.patch.diff import patches  # slow to import

    return bool(patches(changes, root).diff)


def facts_in(folder: Path) -> list[Facts]:
    """What the processes of the recording in a run folder noted, rank by rank."""
    from dptune.runfile import json_files
    from dptune.runfile.facts import Facts

    return [json_files.read(path, Facts) for path in sorted(folder.glob("rank-*.facts.json"))]
