"""What is installed, asked once in a process of tests: each report asks for all entry points, 0.014 s of its 0.1."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoints


def asked_once(entry_points: Callable[..., EntryPoints]) -> Callable[..., EntryPoints]:
    """The same answers; asked again only while a test has added a folder to sys.path."""
    first, kept = {*sys.path}, functools.cache(entry_points)

    def answer(**by: str) -> EntryPoints:
        return kept(**by) if first.issuperset(sys.path) else entry_points(**by)

    return answer
