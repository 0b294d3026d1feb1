"""What a stage works with: commands with a time limit, figures that are on disk at once, and traces worth keeping."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.gpu import reports

SCRIPTS = Path(__file__).parent / "scripts"
_LAST_LINES = 30


class CommandError(Exception):
    """A command failed or ran past its limit; the message holds the last lines it printed."""


@dataclass(frozen=True)
class Done:
    """What a command printed and how long it took; with `cut_off`, until it was killed at the deadline."""

    out: str
    err: str
    seconds: float
    status: int = 0
    cut_off: bool = False

    @property
    def last_json(self) -> Any:
        """The last line of the output that is a JSON object."""
        lines = [line for line in self.out.splitlines() if line.startswith("{")]
        if not lines:
            raise CommandError(f"printed no figures: {last_lines(self.out + self.err)}")
        return json.loads(lines[-1])


@dataclass
class Place:
    """A stage's folder, its device and its deadline. `small` asks for the sizes of a rehearsal on a CPU."""

    stage: str
    device: str
    out: Path
    deadline: float
    figures: dict[str, Any] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    @property
    def small(self) -> bool:
        """Whether this is a rehearsal without a card."""
        return self.device == "cpu"

    @property
    def runs(self) -> Path:
        """Where run folders lie until they are packed."""
        return self.out / "runs"

    @property
    def left_s(self) -> float:
        """Seconds until the stage has to end."""
        return self.deadline - time.monotonic()

    def note(self, name: str, value: Any) -> None:
        """Put down a figure; it is on disk when this returns."""
        with self._lock:
            self.figures[name] = value
            self._write()

    def case(self, name: str, measure: Callable[[], Any]) -> None:
        """Note what `measure` returns, or why it failed; the next case goes on either way."""
        begun = time.monotonic()
        found = why = None
        try:
            found = measure()
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
        with self._lock:
            if why is None:
                self.figures[name] = found
            else:
                self.failures[name] = why
            self.figures.setdefault("seconds", {})[name] = round(time.monotonic() - begun, 1)
            self._write()

    def cases(self, measures: Mapping[str, Callable[[], Any]], width: int = 3) -> None:
        """Several cases, `width` at once: scripts take turns on the card (scripts/turn.py), all else overlaps. A
        rehearsal runs one after another, for it has few cores."""
        with ThreadPoolExecutor(1 if self.small else width) as pool:
            list(pool.map(self.case, measures, measures.values()))

    def _write(self) -> None:
        target = self.out / f"stage-{self.stage}.json"
        part = target.with_suffix(".part")
        part.write_text(json.dumps({"figures": self.figures, "failures": self.failures}))
        part.replace(target)

    def run(
        self, words: Sequence[str], env: Mapping[str, str] | None = None, ok: bool = True, partial: bool = False
    ) -> Done:
        """Run a command to its end; at the deadline it is killed with all below it, which raises CommandError, or with
        `partial` returns what it had printed. `ok`: another exit status than 0 raises it, too."""
        begun = time.monotonic()
        process = subprocess.Popen(
            words,
            cwd=self.out,
            env={**os.environ, "GPU_CHECK_TURN": str(self.out / f"{self.stage}.turn"), **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            out, err = process.communicate(timeout=max(1.0, self.left_s))
        except subprocess.TimeoutExpired:
            _kill(process)
            out, err = _left(process)
            if partial:
                return Done(out, err, round(time.monotonic() - begun, 2), -signal.SIGKILL, cut_off=True)
            raise CommandError(f"ran past the stage's time: {last_lines(out + err)}") from None
        except BaseException:
            _kill(process)
            raise
        if ok and process.returncode:
            raise CommandError(f"exit status {process.returncode}: {last_lines(out + err)}")
        return Done(out, err, round(time.monotonic() - begun, 2), process.returncode)

    def script(self, name: str, *options: str, env: Mapping[str, str] | None = None) -> Done:
        """Run one of the training scripts by itself."""
        return self.run([sys.executable, str(SCRIPTS / name), "--device", self.device, *options], env)

    def dptune(self, *words: str, env: Mapping[str, str] | None = None, ok: bool = True) -> Done:
        """Run a dptune command."""
        return self.run([sys.executable, "-m", "dptune", *words], env, ok=ok)

    def record(
        self,
        name: str,
        script: str,
        *options: str,
        windows: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> Path:
        """Record a script into a run folder of that name. `windows` are further options of `dptune profile`."""
        folder = self.runs / f"{self.stage}-{name}"
        small = ("--warmup", "2", "--untraced", "6", "--light", "3", "--detailed", "1")
        usual = ("--warmup", "5", "--untraced", "30", "--light", "6", "--detailed", "1")
        limits = ("--first-step-timeout", "60", "--stall-timeout", "40")
        words = ("profile", "-q", "--run-dir", str(folder), *(small if self.small else usual), *limits, *windows)
        self.dptune(*words, str(SCRIPTS / script), "--device", self.device, *options, env=env)
        return folder

    def predict(self, folder: Path, *knobs: str) -> dict[str, Any]:
        """What `dptune whatif` predicts of a run with these changes, together; `why` where it predicts nothing."""
        words = [word for knob in knobs for word in ("--set", knob)]
        done = self.dptune("whatif", str(folder), *words, "--format", "json", "--no-cache", ok=False)
        if done.out.startswith("{"):
            return reports.prediction(json.loads(done.out))
        return {"why": last_lines(done.err) or f"exit status {done.status}"}

    def report(self, folder: Path) -> dict[str, Any]:
        """The JSON report of a run folder."""
        done = self.dptune("report", str(folder), "--format", "json", "--no-cache")
        report: dict[str, Any] = json.loads(done.out)
        return report


def last_lines(text: str) -> str:
    """The end of what a command printed."""
    return "\n".join(text.strip().splitlines()[-_LAST_LINES:])[-3000:]


def kill_marked(entry: str) -> None:
    """Kill every process that was started with this `NAME=value` in its environment, wherever it is now."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int(folder.name) != os.getpid() and entry.encode() in (folder / "environ").read_bytes().split(b"\0"):
                os.kill(int(folder.name), signal.SIGKILL)


def _kill(process: subprocess.Popen[str]) -> None:
    """With all below it: ranks are in sessions of their own, which no signal to a process group reaches."""
    for pid in [process.pid, *_below(process.pid)]:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def _left(process: subprocess.Popen[str]) -> tuple[str, str]:
    """What a killed command had printed; somebody it left behind may hold its pipes open."""
    try:
        return process.communicate(timeout=5)
    except subprocess.TimeoutExpired as error:
        return tuple((text or b"").decode(errors="replace") for text in (error.output, error.stderr))  # type: ignore[return-value]


def _below(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError):
            parent = int((folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(folder.name))
    found = [pid]
    for each in found:
        found += children.get(each, [])
    return found[1:]
