"""What this process reports to the launcher: its step, where it is before the first one, and its stacks."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dptune.capture.injected.messages import say
from dptune.capture.injected.observe import process_rank
from dptune.capture.injected.observe.places import users_line
from dptune.capture.injected.record.plan import OVER, STACKS_SIGNAL, UNRECORDED, Plan

_PERIOD_S = 0.3
_PERIOD_AFTER_S = 5.0
_ROOM = 1024  # bytes; JSON padded with blanks


class Live:
    """A daemon thread that writes `<live>/pid-N.json` when something changed, so that the training thread never writes.

    Where nobody watches (the plan names no folder) it does nothing.
    """

    def __init__(self, plan: Plan, beats: Callable[[], int]) -> None:
        """`beats` grows whenever the script shows life: a backward pass, a step of any optimizer."""
        self._folder = None if plan.live is None else Path(plan.live)
        self._rank: int | None = None
        self._stays = False
        self._step = 0
        self._phase = "starting"
        self._beats = beats
        self._file: int | None = None
        self._thread: threading.Thread | None = None
        self._reported: dict[str, Any] = {}

    def start(self) -> None:
        """Begin to tell, and to answer the signal that asks for stacks; once in each process."""
        if self._folder is None or (self._thread is not None and self._thread.is_alive()):
            return  # a forked child has no threads but its own
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
        self._offer_stacks(self._folder)
        self._reported, self._file = {}, None
        self._thread = threading.Thread(target=self._tell, name="dptune-live", daemon=True)
        self._thread.start()

    def claim(self, rank: int, stays: bool) -> None:
        """This process has become that rank of the recording; `stays`: it is not ended when that is complete."""
        self._rank, self._stays = rank, stays
        self.start()

    def name_unrecorded(self) -> None:
        """This process trains and is not recorded: the launcher says so at the end, or where nobody watches this one.

        Of its command only the script is named: arguments may hold secrets.
        """
        script = Path(sys.argv[0]).name if sys.argv and sys.argv[0] not in ("", "-c") else "a program without a file"
        if self._folder is None:
            say(f"{script} (process {os.getpid()}) trains but is not recorded: it was started by the script")
            return
        with contextlib.suppress(OSError):
            (self._folder / f"{UNRECORDED}{os.getpid()}").write_text(script, encoding="utf-8")

    def say(self, step: int, phase: str) -> None:
        """Note the step and phase; the thread writes it."""
        self._step, self._phase = step, phase
        if phase in OVER:
            self._write()

    def _tell(self) -> None:
        while True:  # also after the recording: the launcher waits for signs of life until the script ends
            self._write()
            time.sleep(_PERIOD_S if self._phase not in OVER else _PERIOD_AFTER_S)

    def _write(self) -> None:
        if self._folder is None:
            return
        status = {
            "rank": process_rank.rank() if self._rank is None else self._rank,
            "pid": os.getpid(),
            "step": self._step,
            "beat": self._beats(),
            "phase": self._phase,
            "where": self._where(),
            "claimed": self._rank is not None,
            "stays": self._stays,
        }
        if status == self._reported:
            return
        text = json.dumps(status).ljust(_ROOM).encode()
        with contextlib.suppress(OSError):
            if self._file is None:
                self._file = self._open(text)
            elif len(text) == _ROOM:
                os.lseek(self._file, 0, os.SEEK_SET)
                os.write(self._file, text)
            self._reported = status

    def _open(self, text: bytes) -> int:
        """A file that appears whole, and is then written over in place: that goes on when the disk is full."""
        assert self._folder is not None
        path = self._folder / f"pid-{os.getpid()}.json"
        part = path.with_suffix(".part")
        file = os.open(part, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | getattr(os, "O_CLOEXEC", 0))
        os.write(file, text)
        os.replace(part, path)  # noqa: PTH105 - atomic on every platform
        return file

    def _where(self) -> str | None:
        """`file:line` of the user's code that the main thread is in, before the first step."""
        main = threading.main_thread().ident
        if self._step or main is None:
            return None
        return users_line(sys._current_frames().get(main))

    def _offer_stacks(self, folder: Path) -> None:
        """faulthandler answers in C: also while the interpreter is held or blocked."""
        if STACKS_SIGNAL is None:
            return
        with contextlib.suppress(OSError, RuntimeError, ValueError):
            sink = os.open(folder / f"pid-{os.getpid()}.stacks", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
            faulthandler.register(STACKS_SIGNAL, file=sink, all_threads=True, chain=False)
