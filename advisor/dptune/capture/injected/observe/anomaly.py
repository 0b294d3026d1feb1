"""Where the script turns anomaly detection on."""

from __future__ import annotations

import contextlib
import functools
import sys
from typing import Any

import torch
from torch.autograd import anomaly_mode

from dptune.capture.injected.observe.places import OURS, users_line


class Anomaly:
    """The last line that turned it on, for the rest of the run or for a block, and how many times any did."""

    def __init__(self) -> None:
        self.where: str | None = None
        self.times = 0

    def install(self) -> None:
        """Wrap what turns it on."""
        self._watch(anomaly_mode.set_detect_anomaly, "__init__")
        self._watch(anomaly_mode.detect_anomaly, "__enter__")

    def _watch(self, kind: Any, method: str) -> None:
        turn_on = getattr(kind, method)

        @functools.wraps(turn_on)
        def watched(this: Any, *args: Any, **kwargs: Any) -> Any:
            result = turn_on(this, *args, **kwargs)
            with contextlib.suppress(Exception):
                frame = sys._getframe(1)
                if torch.is_anomaly_enabled() and not frame.f_code.co_filename.startswith(OURS):
                    self.where, self.times = users_line(frame), self.times + 1
            return result

        setattr(kind, method, watched)
