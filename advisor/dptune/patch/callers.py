"""The file that calls a function of another file of the script."""

from __future__ import annotations

import re
from itertools import islice
from pathlib import Path

from dptune.patch.source import EditError

_MOST_FILES = 500
_LARGEST_BYTES = 2**20


def caller_of(root: Path, file: str, function: str) -> tuple[str, bytes]:
    """The one other file below `root` that imports a function of `file`: its path and content; empty without one.

    Raises EditError where several do, or where files cannot be read, or too many would have to be.
    """
    try:
        return _found(root, file, function)
    except OSError as error:
        raise EditError(f"cannot look for callers of `{function}` below {root}: {error.strerror}") from error


def _found(root: Path, file: str, function: str) -> tuple[str, bytes]:
    paths = (path for path in sorted(root.rglob("*.py")) if path.is_file() and not path.is_symlink())
    visible = (path for path in paths if not any(part.startswith(".") for part in path.relative_to(root).parts))
    files = list(islice(visible, _MOST_FILES + 1))
    if len(files) > _MOST_FILES:
        raise EditError(f"`{function}` is not called in {file}, and {root} has too many files to look for its callers")
    module = re.escape(Path(file).stem)
    imports = re.compile(
        rf"^[ \t]*from\s+[\w.]*\b{module}\s+import\s[^#\n]*(?:\([^)]*)?\b{re.escape(function)}\b".encode(), re.M
    )
    found = []
    for path in files:
        if path.relative_to(root).as_posix() == file or path.stat().st_size > _LARGEST_BYTES:
            continue
        text = path.read_bytes()
        if imports.search(text):
            found.append((path.relative_to(root).as_posix(), text))
        elif re.search(rf"\b{re.escape(function)}\b".encode(), text) and re.search(rf"\b{module}\b".encode(), text):
            raise EditError(f"{path.relative_to(root)} uses `{function}` in a way that cannot be followed")
    if len(found) > 1:
        names = " and ".join(name for name, _ in found[:2])
        raise EditError(f"`{function}` is used by {names}: edit them by hand")
    return found[0] if found else ("", b"")
