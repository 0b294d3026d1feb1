"""Runs the stages one after another, each in a process group of its own, and writes result.json after each."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import importlib.util
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.gpu import packing, wheels
from tests.gpu.place import kill_marked, last_lines
from tests.gpu.stage import Stage

SCHEMA = 1
_MARK = "GPU_CHECK_STAGE"
_NO_DPTUNE = "dptune is not installed and there are no wheels in {}: run `make gpu-wheels` on a machine with a network"
_PACKING_S = 5.0
_SLOWER_ON_A_CPU = 4  # a rehearsal may run on two cores, beside other tests
_LEAST_S = 10.0  # a stage with less time finds nothing
_MACHINE = """
import json, sys, torch
found = {"torch": torch.__version__, "cuda": torch.version.cuda, "python": sys.version.split()[0]}
if torch.cuda.is_available():
    card = torch.cuda.get_device_properties(0)
    found.update(card=card.name, memory_bytes=card.total_memory, capability=f"{card.major}.{card.minor}")
    found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
print(json.dumps(found))
"""


class Check:
    """One check: its device, where results go, and how much time there is for all of it."""

    def __init__(self, device: str, out: Path, work: Path | None, wheels_at: Path, limit_s: float) -> None:
        self._device, self._out, self._wheels = device, out, wheels_at
        self._deadline = time.monotonic() + limit_s
        name = hashlib.sha256(f"{out} {device} {source()}".encode()).hexdigest()[:12]
        self._work = work or Path(tempfile.gettempdir()) / f"dptune-gpu-check-{name}"
        # a rehearsal computes next to nothing, and threads that wait for each other would take the cores
        self._env = {**os.environ, **({"OMP_NUM_THREADS": "1"} if device == "cpu" else {})}
        self._marks: list[str] = []  # of the stages that run, in the environment of all that they start
        self._result: dict[str, Any] = {"schema": SCHEMA, "device": device, "stages": {}}

    def run(self, stages: Sequence[Stage], again: bool = False, jobs: int = 1) -> int:
        """Run what is not complete, `jobs` stages at once; 0 where everything that was asked for is."""
        self._out.mkdir(parents=True, exist_ok=True)
        self._work.mkdir(parents=True, exist_ok=True)
        self._resume()
        begun = time.monotonic()
        self._prepare()
        self._describe(time.monotonic() - begun)
        left = [stage for stage in stages if again or not self._is_complete(stage)]
        for stage in stages:
            if stage not in left:
                _say(f"{stage.name}: complete already")
        signal.signal(signal.SIGTERM, lambda *_: self._stop())
        with ThreadPoolExecutor(jobs) as pool:
            for stage, found in zip(left, pool.map(self._stage, left), strict=True):
                self._result["stages"][stage.name] = found
                self._write()
        self._result["packed"] = packing.pack(self._work / "runs", self._out)
        self._write()
        for name, found in self._result["stages"].items():
            _say(f"{name:9s} {found['status']:9s} {found['seconds']:6.1f} s  failed: {len(found['failures'])}")
        _say(f"results: {self._out / 'result.json'}")
        return 0 if all(map(self._is_complete, stages)) else 1

    def _stop(self) -> None:
        """End what runs, start nothing more; what was found is written and packed."""
        self._deadline = time.monotonic()
        for mark in self._marks:
            kill_marked(mark)

    def _is_complete(self, stage: Stage) -> bool:
        return self._result["stages"].get(stage.name, {}).get("status") == "complete"

    def _resume(self) -> None:
        """What an earlier run of the same source on the same device found."""
        with contextlib.suppress(OSError, ValueError):
            earlier = json.loads((self._out / "result.json").read_text())
            if earlier.get("source") == source() and earlier.get("device") == self._device:
                self._result["stages"] = earlier["stages"]

    def _prepare(self) -> None:
        """Let stages find dptune: as it is installed, else from the wheels and the tree."""
        root = str(wheels.ROOT)
        paths = [root, self._env.get("PYTHONPATH", "")]
        if importlib.util.find_spec("dptune") is None:
            if not self._wheels.is_dir():
                raise SystemExit(_NO_DPTUNE.format(self._wheels))
            site = self._work / "site"
            if not (site / "dptune").is_dir():
                wheels.install(self._wheels, site)
            paths.insert(0, str(site))
        self._env["PYTHONPATH"] = os.pathsep.join(filter(None, paths))

    def _describe(self, installing_s: float) -> None:
        done = subprocess.run(
            [sys.executable, "-c", _MACHINE], env=self._env, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"torch cannot be imported here: {last_lines(done.stderr)}")
        found = json.loads(done.stdout.splitlines()[-1])
        if self._device == "cuda" and "card" not in found:
            raise SystemExit("torch sees no CUDA device here: run `make gpu-check DEVICE=cpu` to rehearse without one")
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        about = {"when": now, "commit": commit(), "source": source(), "installing_s": round(installing_s, 1)}
        host = {"cores": os.cpu_count(), "kernel": platform.release(), "driver": _driver()}
        self._result.update(about, machine={**found, **host})

    def _stage(self, stage: Stage) -> dict[str, Any]:
        left = self._deadline - time.monotonic() - _PACKING_S
        if left < _LEAST_S:
            return {"status": "no time", "seconds": 0.0, "figures": {}, "failures": {}}
        limit = min(stage.seconds * (_SLOWER_ON_A_CPU if self._device == "cpu" else 1), left)
        kept = self._work / f"stage-{stage.name}.json"
        kept.unlink(missing_ok=True)
        for folder in (self._work / "runs").glob(f"{stage.name}-*"):
            shutil.rmtree(folder)
        _say(f"{stage.name}: at most {limit:.0f} s")
        begun = time.monotonic()
        words = ("--device", self._device, "--out", str(self._work), "--seconds", str(limit))
        log = self._work / f"stage-{stage.name}.log"
        mark = f"{os.getpid()}-{stage.name}"
        self._marks.append(f"{_MARK}={mark}")
        with log.open("wb") as sink:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.gpu.stage", stage.name, *words],
                cwd=wheels.ROOT,
                env={**self._env, _MARK: mark},
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            status = _ended(process, limit + _PACKING_S / 2)
        kill_marked(f"{_MARK}={mark}")  # nothing of it may hold the card, or its cores, beside the next stage
        found: dict[str, Any] = {"figures": {}, "failures": {}}
        with contextlib.suppress(OSError, ValueError):
            found = json.loads(kept.read_text())
        if status:
            found["failures"]["stage"] = last_lines(log.read_text(errors="replace"))
        ended = "overran" if status is None else "failed" if status or found["failures"] else "complete"
        return {"status": ended, "seconds": round(time.monotonic() - begun, 1), **found}

    def _write(self) -> None:
        part = self._out / "result.part"
        part.write_text(json.dumps(self._result, indent=1) + "\n")
        part.replace(self._out / "result.json")


def _ended(process: subprocess.Popen[bytes], limit_s: float) -> int | None:
    """The exit status; None where it had to be killed, with all that it started."""
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def commit() -> str:
    """The commit that is checked; `unknown` in a tree without git."""
    words = ["git", "-C", str(wheels.ROOT), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def source() -> str:
    """A digest of dptune's code and of the check: results of another state are not gone on with."""
    digest = hashlib.sha256()
    for folder in ("advisor", "rules", "tests/gpu"):
        for path in sorted((wheels.ROOT / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _driver() -> str | None:
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    words = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.split("\n")[0].strip()


def _say(text: str) -> None:
    print(f"gpu-check: {text}", flush=True)
