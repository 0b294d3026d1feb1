"""A sweep of the links from start to end: start the ranks, hear what rank 0 measures, end what hangs."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from dptune import __version__
from dptune.capture import processes
from dptune.capture.interpreter import Interpreter
from dptune.capture.launch import Launch, Script
from dptune.capture.signals import Signals
from dptune.errors import CaptureError
from dptune.runfile.links import KindTimes, LinkRecord, SizeTimes

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "p2p")
_VARIABLE = "DPTUNE_SWEEP"  # by which the processes of a sweep are known
_SCRIPT = Path(__file__).parent / "injected" / "sweep.py"
_SAMPLES = "samples.jsonl"
_START_S = 60.0  # until every rank has imported torch and met the others
_LAST_S = 1.5  # of a bound on all of it, for the ranks to end in
_GRACE_S = 0.5  # then, before they are killed
_LOOK_EVERY_S = 0.2

Show = Callable[[str, SizeTimes], None]


@dataclass(frozen=True)
class SweepRequest:
    """What to measure: kinds, sizes in bytes, the backend ("": nccl where there are GPUs), how long and how often.

    `limit_s`: all of it, starting included, is over within that time; None without such a bound.
    """

    kinds: Sequence[str]
    sizes: Sequence[int]
    backend: str
    repeats: int
    seconds: float
    timeout_s: float
    limit_s: float | None = None

    @property
    def script(self) -> Script:
        """What each rank runs, but for where its samples go."""
        options = {
            "kinds": ",".join(self.kinds),
            "sizes": ",".join(map(str, self.sizes)),
            "backend": self.backend,
            "repeats": self.repeats,
            "seconds": self.seconds,
            "timeout": self.timeout_s,
        }
        return Script(str(_SCRIPT), tuple(f"--{name}={value}" for name, value in options.items()))


def on_this_host(python: Interpreter, ranks: int, asked: SweepRequest) -> Launch:
    """That many ranks of the sweep here, started without a launcher."""
    words = (python.path, *asked.script.words, f"--ranks={ranks}")
    return Launch("dptune", words, words, "links", python, world_size=ranks, local_ranks=ranks)


def sweep(
    started: Launch, asked: SweepRequest, show: Show, more: Mapping[str, str] | None = None, errors: Path | None = None
) -> LinkRecord | None:
    """Measure; None where rank 0 runs under another launcher, which has the result. Raises CaptureError without any.

    `more` is added to the environment; `errors` takes what the ranks print on standard error.
    """
    begun = time.monotonic()
    until = [f"--until={time.time() + asked.limit_s - _LAST_S}"] if asked.limit_s else []
    with (
        tempfile.TemporaryDirectory(prefix="dptune-links-") as folder,
        errors.open("wb") if errors else contextlib.nullcontext() as sink,
        Signals() as signals,
    ):
        samples = Path(folder) / _SAMPLES
        seat = {} if started.job is None else {"RANK": str(started.job.rank), "WORLD_SIZE": str(started.job.world_size)}
        environment = {"OMP_NUM_THREADS": "1", **os.environ, **(more or {}), **seat, _VARIABLE: folder}
        try:
            process = subprocess.Popen(
                [*started.words, f"--samples={samples}", *until],
                env=environment,
                stdout=sys.__stderr__ if sys.__stderr__ else subprocess.DEVNULL,  # ours carries the table alone
                stderr=sink,
            )
        except OSError as error:
            raise CaptureError(f"cannot start {started.words[0]}: {error.strerror}") from None
        record = LinkRecord(
            dptune=__version__,
            measured=datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
            kinds=[KindTimes(kind) for kind in asked.kinds],
        )
        signals.hold()
        try:
            limit_s = asked.limit_s or _START_S + asked.seconds + 2 * asked.timeout_s
            _watch(process, samples, record, begun + limit_s, signals, show)
            if record.ended == "timed-out":
                record.note = f"the ranks did not {'end' if record.backend else 'start'} within {limit_s:g} s"
        finally:
            processes.end(process, f"{_VARIABLE}={folder}", _GRACE_S if asked.limit_s else processes.GRACE_S)
    if not any(kind_times.sizes for kind_times in record.kinds):
        if record.ended == "complete" and not record.backend:
            return None
        raise _nothing(record)
    return record


def _watch(
    process: subprocess.Popen[bytes],
    samples: Path,
    record: LinkRecord,
    deadline: float,
    signals: Signals,
    show: Show,
) -> None:
    """Take in what is written until the ranks have ended, or are ended, and say how in the record."""
    read = 0
    while True:
        over = process.poll() is not None
        read = _take_in(samples, read, record, show)
        if over:
            break
        if signals.wait(_LOOK_EVERY_S) is not None:
            record.ended, record.note = "interrupted", "a signal to dptune"
            return
        if time.monotonic() > deadline:
            record.ended = "timed-out"
            return
    if process.returncode and signals.came():  # a terminal sends it to the ranks, too
        record.ended, record.note = "interrupted", "a signal to dptune"
    elif process.returncode:
        record.ended, record.note = "failed", f"the ranks exited with status {process.returncode}: see above"
    elif any(kind.left_out for kind in record.kinds):
        record.ended = "partial"


def _take_in(samples: Path, read: int, record: LinkRecord, show: Show) -> int:
    """Put the whole lines from byte `read` on into the record; the byte after them."""
    try:
        with samples.open("rb") as file:
            file.seek(read)
            text = file.read()
    except OSError:
        return read
    whole = text[: text.rfind(b"\n") + 1]
    for line in whole.splitlines():
        with contextlib.suppress(ValueError):  # a full disk cut it
            _add(json.loads(line), record, show)
    return read + len(whole)


def _add(said: dict[str, Any], record: LinkRecord, show: Show) -> None:
    if "kind" not in said:
        for name in ("backend", "world_size", "torch", "hosts", "devices"):
            setattr(record, name, said[name])
        return
    kind = next(kind_times for kind_times in record.kinds if kind_times.kind == said["kind"])
    if "left_out" in said:
        kind.left_out = said["left_out"]
        return
    if "queued_seconds" in said:
        kind.queued.append(_size(said, said["queued_seconds"]))
        return
    size = _size(said, said["seconds"])
    kind.ranks = said["ranks"]
    kind.sizes.append(size)
    show(kind.kind, size)


def _size(said: dict[str, Any], seconds: list[float]) -> SizeTimes:
    q1, _, q3 = quantiles(seconds, n=4, method="inclusive") if len(seconds) > 1 else seconds * 3
    return SizeTimes(said["message_bytes"], median(seconds), q1, q3, len(seconds), said["calls"])


def _nothing(record: LinkRecord) -> CaptureError:
    """Why nothing was measured."""
    if record.ended == "interrupted":
        return CaptureError("interrupted before anything was measured", exit_status=130)
    why = record.note or "; ".join(f"{kind.kind}: {kind.left_out}" for kind in record.kinds)
    return CaptureError(
        f"nothing was measured: {why}", "choose another backend with --backend, or allow more time with --timeout"
    )
