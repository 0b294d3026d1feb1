"""What an input may come to: figures or one sentence, in bounded time; and where json.loads reads it, those figures."""

from __future__ import annotations

import gzip
import json
import re
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from dptune.errors import DptuneError
from dptune.measure import measure
from dptune.trace import load
from dptune.trace.events import Trace
from dptune.trace.kineto.body import SECOND

from ..trace import plain  # noqa: TID252 - tests are no installed package

LIMIT_SECONDS = 10  # of computing
PATIENCE_SECONDS = 120  # of waiting, on a machine that has other work
_TIMERS = ((signal.ITIMER_PROF, signal.SIGPROF, LIMIT_SECONDS), (signal.ITIMER_REAL, signal.SIGALRM, PATIENCE_SECONDS))
# What json.loads takes and dptune mends or leaves out: lone surrogates, numbers of any length and beyond float64.
_TOLERATED = re.compile(rb"\\u[dD][89a-fA-F]|\xed[\xa0-\xbf]|\d{4000}|1e[49]")
_NUMBERS = ("ts_ns", "dur_ns", "stream", "device", "correlation", "external_id", "total_bytes")
# Mutations at one place, and how many events they touch at most.
TOUCHED = {"flip": 8, "insert": 2, "delete": 9, "number": 1, "string": 1, "bracket": 2, "nest": 1, "planted": 1}


@dataclass
class Outcome:
    """What one input came to. `wrong` is what must not be; `refusal` the kind of the message; `compared` cells."""

    wrong: list[str] = field(default_factory=list)
    refusal: str = ""
    events: int = 0
    partial: bool = False
    compared: int = 0
    seconds: float = 0.0


class TooSlow(BaseException):
    """An input took too long; no handler of the code under test may catch it."""


def judged(path: Path, data: bytes, kind: str, base: bytes) -> Outcome:
    """Load and measure a file that holds `data`, made of the sound piece `base` by mutations of that kind."""
    outcome = Outcome()
    planted = kind == "planted"
    path.write_bytes(data)
    before = [signal.signal(number, _too_slow) for _, number, _ in _TIMERS]
    for timer, _, seconds in _TIMERS:
        signal.setitimer(timer, seconds)
    began = time.perf_counter()
    try:
        run = load([path])
        measure(run).model_dump_json()
    except DptuneError as error:
        outcome.refusal = _kind(error, path)
        outcome.wrong += _untidy(error)
    except TooSlow:
        outcome.wrong.append(f"took more than {LIMIT_SECONDS} s, or did not end")
    except Exception as error:
        at = error.__traceback__
        while at is not None and at.tb_next is not None:
            at = at.tb_next
        where = "" if at is None else f" at {Path(at.tb_frame.f_code.co_filename).name}:{at.tb_lineno}"
        outcome.wrong.append(f"{type(error).__name__}: {error}{where}"[:300])
    else:
        trace = run.ranks[0].light
        outcome.events, outcome.partial = trace.events, bool(trace.partial)
        _stop()
        outcome.seconds = time.perf_counter() - began
        _compare(outcome, trace, data, planted)
        if base and kind in TOUCHED:
            _compare_with_base(outcome, trace, base, TOUCHED[kind])
    finally:
        _stop()
        for (_, number, _), handler in zip(_TIMERS, before, strict=True):
            signal.signal(number, handler)
    outcome.seconds = outcome.seconds or time.perf_counter() - began
    if planted and outcome.refusal:
        outcome.wrong.append("a sound file was refused")
    return outcome


def _stop() -> None:
    for timer, _, _ in _TIMERS:
        signal.setitimer(timer, 0)


def _compare(outcome: Outcome, trace: Trace, data: bytes, planted: bool) -> None:
    """Where json.loads takes the text, the figures have to be the same, or the file said to be partial."""
    try:
        text = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
        text = text.decode(json.detect_encoding(text), "surrogatepass").encode("utf-8", "surrogatepass")
        given = plain.document(text)
        read = plain.reading(given)
    except (ValueError, KeyError, TypeError, RecursionError, OSError, EOFError, gzip.zlib.error):
        if planted:
            outcome.wrong.append("the planted file is not sound")
        return
    if SECOND in trace.partial:  # json.loads takes the events of the last
        return
    if planted or not (trace.partial or _TOLERATED.search(text)):
        differ, outcome.compared = plain.differences(trace, read)
        outcome.wrong += differ
        return
    columns = trace.columns
    if len(columns) < len(read.arguments) and not _told(trace):
        outcome.wrong.append("events are missing, and nothing says so")
    row_of = dict(zip(read.columns["position"], range(len(read.arguments)), strict=True))
    rows = [row_of.get(position, -1) for position in columns.position.tolist()]
    if -1 in rows:
        outcome.wrong.append("an event that json.loads does not find")
        return
    outcome.compared = len(rows) * len(_NUMBERS)
    for name in _NUMBERS:
        expected = np.array([read.columns[name][row] for row in rows], dtype=np.int64)
        if (getattr(columns, name) != expected).any():
            outcome.wrong.append(f"{name} of a partial file")


def _compare_with_base(outcome: Outcome, trace: Trace, base: bytes, touched: int) -> None:
    """One local damage: no event but the few that it touched is made up, or lost without a word."""
    expected = _events_of(base)
    columns = trace.columns
    names = [columns.name(row) for row in range(len(columns))]
    found = Counter(zip(columns.ts_ns.tolist(), columns.dur_ns.tolist(), names, strict=True))
    if (found - expected).total() > touched:
        outcome.wrong.append(f"{(found - expected).total()} events are made up")
    if (expected - found).total() > touched and not _told(trace):
        outcome.wrong.append(f"{(expected - found).total()} events are lost, and nothing says so")


@cache
def _events_of(base: bytes) -> Counter[tuple[int, int, str]]:
    columns = plain.reading(plain.document(base)).columns
    return Counter(zip(columns["ts_ns"], columns["dur_ns"], columns["name_id"], strict=True))


def _told(trace: Trace) -> bool:
    """Whether it is said that events are missing."""
    return bool(trace.partial) or any(
        finding.code in ("events-unreadable", "events-cut", "elements-skipped") for finding in trace.findings
    )


def _untidy(error: DptuneError) -> list[str]:
    """What is wrong with an error's words."""
    wrong = []
    for what, words in (("message", error.message), ("hint", error.hint)):
        if not words.strip() or len(words) > 600 or "Traceback" in words or not words.isprintable():
            wrong.append(f"the {what} of the error: {words[:200]!r}")
    return wrong


def _kind(error: DptuneError, path: Path) -> str:
    words = error.message.replace(str(path), "FILE").replace(path.name, "FILE")
    return f"{type(error).__name__}: {re.sub(r'[0-9][0-9,.]*', 'N', words)}"


def _too_slow(*_: Any) -> None:
    raise TooSlow
