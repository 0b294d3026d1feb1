"""Records which files the script saves with `torch.save`: ranks may write the same one."""

from __future__ import annotations

import contextlib
import functools
import os
import stat
import sys
import time
from typing import Any

import torch

from dptune.capture.injected.observe.places import users_line
from dptune.capture.injected.observe.save_calls import save_calls
from dptune.runfile.saved_files import SavedFileFacts

_FILES = 64


class SavedFiles:
    """By path, the line that saves it, how often, and when last."""

    def __init__(self) -> None:
        self._files: dict[str, SavedFileFacts] = {}
        self._ahead: dict[str, str] = {}  # lines that will save, by path

    def install(self) -> None:
        """Wrap `torch.save`."""
        save = torch.save

        @functools.wraps(save)
        def watched(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
            began_ns = time.time_ns()
            saved = save(obj, f, *args, **kwargs)
            with contextlib.suppress(Exception):
                self._note(f, began_ns, users_line(sys._getframe(1)))
            return saved

        torch.save = torch.serialization.save = watched

    def facts(self) -> list[SavedFileFacts]:
        """The facts of regular files, in the order of their first writes; then of files that only the source shows."""
        with contextlib.suppress(Exception):  # sources may be anything
            self._ahead = save_calls(sys._getframe(1)) or self._ahead
        ahead = [
            SavedFileFacts(path, line)
            for path, line in self._ahead.items()
            if path not in self._files and (os.path.isfile(path) or not os.path.exists(path))  # noqa: PTH110, PTH113
        ]
        return [*self._files.values(), *ahead[:_FILES]]

    def _note(self, file: Any, began_ns: int, where: str | None) -> None:
        name = file if isinstance(file, (str, os.PathLike)) else getattr(file, "name", None)
        if not isinstance(name, (str, os.PathLike)):
            return
        path = os.path.realpath(name)
        if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116 - as cheap as can be
            return
        facts = self._files.get(path)
        if facts is None:
            if len(self._files) >= _FILES:
                return
            facts = self._files[path] = SavedFileFacts(path, where)
        facts.times += 1
        facts.began_ns, facts.ended_ns = began_ns, time.time_ns()
