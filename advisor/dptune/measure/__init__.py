"""Columns -> figures.

`measure` turns a Run into a Measured. It is imported when first used, so that `dptune --help` needs no numpy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dptune.measure.figures import measure

__all__ = ["measure"]


def __getattr__(name: str) -> Any:
    if name == "measure":
        return import_module("dptune.measure.figures").measure
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
