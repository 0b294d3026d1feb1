"""dptune: the tuning advisor for PyTorch data-parallel training.

Importing it imports nothing heavy: names are loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dptune.advice import Advice, Change, Evidence, Report, Saving
    from dptune.capture.injected.api import profile
    from dptune.errors import CaptureError, DptuneError, RunError, TraceError, UsageError
    from dptune.measured import Measured, Missing
    from dptune.rule import Rule, RunView, Threshold

__version__ = "0.1.0.dev0"

_HOME = {
    "Advice": "dptune.advice",
    "CaptureError": "dptune.errors",
    "Change": "dptune.advice",
    "DptuneError": "dptune.errors",
    "Evidence": "dptune.advice",
    "Measured": "dptune.measured",
    "Missing": "dptune.measured",
    "Report": "dptune.advice",
    "Rule": "dptune.rule",
    "RunError": "dptune.errors",
    "RunView": "dptune.rule",
    "Saving": "dptune.advice",
    "Threshold": "dptune.rule",
    "TraceError": "dptune.errors",
    "UsageError": "dptune.errors",
    "profile": "dptune.capture.injected.api",
}

__all__ = [
    "Advice",
    "CaptureError",
    "Change",
    "DptuneError",
    "Evidence",
    "Measured",
    "Missing",
    "Report",
    "Rule",
    "RunError",
    "RunView",
    "Saving",
    "Threshold",
    "TraceError",
    "UsageError",
    "__version__",
    "profile",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'dptune' has no attribute '{name}'")
    try:
        return getattr(importlib.import_module(_HOME[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        what = f"dptune.{name} needs torch, and there is none in this environment: pip install 'dptune[profile]'"
        raise ImportError(what, name="torch") from None
