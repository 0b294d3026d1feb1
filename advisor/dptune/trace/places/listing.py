"""What lies in a folder and in those below it, and what of that cannot be looked at."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from dptune.errors import RunError
from dptune.trace.places.remote import Remote


@dataclass
class Listing:
    """`files` is all that is no folder, pipes and broken links too; `links` lead to folders elsewhere.

    `unread` are the folders that could not be listed, and why.
    """

    files: set[Path] = field(default_factory=set)
    links: list[Path] = field(default_factory=list)
    unread: list[RunError] = field(default_factory=list)


def listed(folder: Path) -> Listing:
    """What lies in a folder. Raises RunError where nothing of it can be listed."""
    if isinstance(folder, Remote):
        return Listing({path for path in folder.rglob("*") if path.is_file()})
    found = Listing()
    errors: list[OSError] = []
    for above, folders, files in os.walk(folder, onerror=errors.append):
        found.files |= {Path(above, name) for name in files}
        inside = (Path(above, name) for name in sorted(folders))
        found.links += [path for path in inside if path.is_symlink() and _leads_out(path)]
    found.unread = [unreadable(Path(error.filename), error) for error in errors]
    if found.unread and not found.files:
        raise found.unread[0]
    return found


def unreadable(path: Path, error: OSError) -> RunError:
    """Why the system does not let a path be read."""
    return RunError(f"cannot read {path}: {error.strerror or error}", "check the path and its permissions")


def _leads_out(link: Path) -> bool:
    """Whether a link leads to a folder that it is not in."""
    here, there = link.parent.resolve(), link.resolve()
    return there != here and there not in here.parents
