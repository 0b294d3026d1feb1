"""Warnings of torch about data-parallel training, with the line of the script that brought them about.

They are noted on their way to where Python shows them, which stays as it is: what a filter hides is not noted.
"""

from __future__ import annotations

import contextlib
import functools
import re
import sys
import warnings
from typing import Any

from dptune.capture.injected.observe.places import TORCHS, users_line
from dptune.runfile.torch_warnings import WarningFacts

_MOST = 20  # different warnings
_LENGTH = 400
# By the file that a warning is raised in, or that C++ names in its text.
_OF_DDP = re.compile(r"[/\\](nn[/\\]parallel|distributed)[/\\]|DistributedDataParallel|\bDDP\b")
_TRIGGERED = re.compile(r"\s*\(Triggered internally at .*?\)", re.DOTALL)


class Warned:
    """The first warnings of each text."""

    def __init__(self) -> None:
        self._found: dict[str, WarningFacts] = {}

    def install(self) -> None:
        """Wrap the function that shows a warning, in C and in Python."""
        show = getattr(warnings, "_showwarnmsg", None)
        if show is None:
            return

        @functools.wraps(show)
        def noted(message: Any) -> None:
            with contextlib.suppress(Exception):
                if not issubclass(message.category, (DeprecationWarning, FutureWarning)):
                    self._note(str(message.message), str(message.filename))
            show(message)

        warnings._showwarnmsg = noted  # type: ignore[attr-defined]

    def facts(self) -> list[WarningFacts]:
        """What was noted so far."""
        return list(self._found.values())

    def _note(self, text: str, file: str) -> None:
        by_torch = file.startswith(TORCHS) or _TRIGGERED.search(text)
        if not by_torch or not (_OF_DDP.search(text) or _OF_DDP.search(file.removeprefix(TORCHS[:-1]))):
            return
        said = " ".join(_TRIGGERED.sub("", text).split())[:_LENGTH]
        known = self._found.get(said)
        if known is not None:
            known.times += 1
        elif len(self._found) < _MOST:
            self._found[said] = WarningFacts(said, users_line(sys._getframe(2)))
