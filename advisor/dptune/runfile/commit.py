"""Commits, as git has them where a run is started."""

from __future__ import annotations

import subprocess
from pathlib import Path

_TIMEOUT_S = 5.0
_DIGITS = 12


def checked_out(folder: Path | None = None) -> str:
    """The first digits of the commit, with `+` if tracked files differ from it; "" outside of a git repository."""
    commit = _git(folder, "rev-parse", f"--short={_DIGITS}", "HEAD")
    return f"{commit}+" if commit and _git(folder, "status", "--porcelain", "--untracked-files=no") else commit


def commit_of(revision: str, folder: Path | None = None) -> str:
    """The first digits of the commit that git knows by that name, as `HEAD` or a branch; "" where there is none."""
    return _git(folder, "rev-parse", "--verify", f"--short={_DIGITS}", "--end-of-options", f"{revision}^{{commit}}")


def _git(folder: Path | None, *words: str) -> str:
    try:
        done = subprocess.run(
            ["git", *words], cwd=folder, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
