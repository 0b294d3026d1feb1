"""What `dptune --version` prints: versions, as a bug report needs them."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from importlib import metadata

# What dptune stands on, and what it is often used with; none of them is imported for this.
PACKAGES = ("numpy", "pydantic", "msgspec", "isal", "rich", "textual", "torch", "traceinsight", "fsspec")


def lines() -> Iterator[str]:
    """dptune's own version first, by itself."""
    from dptune import __version__

    yield f"dptune {__version__}"
    yield f"Python {platform.python_version()} ({sys.executable}), {platform.platform()}"
    found = {name: _version(name) for name in PACKAGES}
    yield ", ".join(f"{name} {version}" for name, version in found.items() if version)
    absent = [name for name, version in found.items() if not version]
    if absent:
        yield f"not installed: {', '.join(absent)}"


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
