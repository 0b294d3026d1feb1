"""Bytes -> columns; ranks -> a run.

`load` reads whatever a user names. It is imported when first used, so that `dptune --help` needs no numpy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dptune.trace.columns import Columns
    from dptune.trace.events import Trace
    from dptune.trace.loading.gathering import load
    from dptune.trace.run import RankTrace, Run

__all__ = ["Columns", "RankTrace", "Run", "Trace", "load"]

_HOMES = {
    "Columns": "dptune.trace.columns",
    "RankTrace": "dptune.trace.run",
    "Run": "dptune.trace.run",
    "Trace": "dptune.trace.events",
    "load": "dptune.trace.loading.gathering",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
