"""What this rank tells the launcher while it runs: which step it is at, or where it is before the first one."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path

from dptune.capture.injected import identity
from dptune.capture.injected.places import users_line
from dptune.capture.injected.plan import Plan
from dptune.runfile.paths import LIVE

_PERIOD_S = 0.3


class Live:
    """A daemon thread that writes `live/rank-N.json` a few times a second, so that the training thread never writes."""

    def __init__(self, plan: Plan) -> None:
        self._folder = plan.path / LIVE
        self._rank: int | None = None
        self._step = 0
        self._phase = "starting"
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to tell; once."""
        if self._thread is None or not self._thread.is_alive():  # a forked child has no threads but its own
            self._folder.mkdir(parents=True, exist_ok=True)
            self._thread = threading.Thread(target=self._tell, name="dptune-live", daemon=True)
            self._thread.start()

    def say(self, step: int, phase: str) -> None:
        """Note the step and phase; the thread writes it."""
        self._step, self._phase = step, phase
        if phase == "done":
            self._write()

    def claim(self, rank: int) -> bool:
        """Take this rank's place in the run; False where another process of the run has it."""
        self._rank = rank
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            os.close(os.open(self._folder / f"rank-{rank:05d}.claim", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        self.start()
        return True

    def _tell(self) -> None:
        while self._phase != "done":
            self._write()
            time.sleep(_PERIOD_S)

    def _write(self) -> None:
        rank = identity.rank() if self._rank is None else self._rank
        path = Path(self._folder / f"rank-{rank:05d}.json")
        told = {"rank": rank, "pid": os.getpid(), "step": self._step, "phase": self._phase, "where": self._where()}
        part = path.with_suffix(f".{os.getpid()}.part")
        try:
            part.write_text(json.dumps(told), encoding="utf-8")
            os.replace(part, path)  # noqa: PTH105 - atomic on every platform
        except OSError:
            return  # the folder is gone: the launcher has finished

    def _where(self) -> str | None:
        """`file:line` of the user's code that the main thread is in, before the first step."""
        main = threading.main_thread().ident
        if self._step or main is None:
            return None
        return users_line(sys._current_frames().get(main))
