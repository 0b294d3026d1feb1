from __future__ import annotations

import subprocess
from types import SimpleNamespace
from typing import Any

import pytest

from dptune.agents import processes

from .. import in_process  # noqa: TID252 - tests are no installed package


class Here:
    """In place of a process that is started: the command in this one, which has ended."""

    def __init__(self, words: list[str], **how: Any) -> None:
        assert how["start_new_session"]
        self._done = in_process.dptune(*words[3:])
        self.returncode = self._done.returncode

    def __enter__(self) -> Here:
        return self

    def __exit__(self, *of: object) -> None:
        pass

    def communicate(self) -> tuple[str, str]:
        """What it wrote."""
        return self._done.stdout, self._done.stderr

    def poll(self) -> int:
        """Its status."""
        return self.returncode


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands run in this process, but for those of a server that is started."""
    pipes = {name: getattr(subprocess, name) for name in ("PIPE", "DEVNULL")}
    monkeypatch.setattr(processes, "subprocess", SimpleNamespace(Popen=Here, **pipes))
