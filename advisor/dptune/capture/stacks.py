"""Where every process of a recording waits: each is asked for its stacks, and answers even while it is blocked."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dptune.capture import processes
from dptune.capture.injected.record.plan import STACKS_SIGNAL
from dptune.capture.progress import RankStatus, everyone
from dptune.runfile.ranks import spans
from dptune.runfile.redaction import redacted_command

_LONGEST_WAIT_S = 5.0
_SETTLED_S = 0.3
_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<function>.*)$')
_NOT_THE_USERS = re.compile(
    r"site-packages|dist-packages|/lib/python3\.\d+/|/torch/|dptune/capture/injected|^<(?:frozen|eval_with_key)"
)


@dataclass(frozen=True)
class Waiting:
    """Where one process waits, in words, and its stacks as text. `rank` is None where nobody can say it."""

    rank: int | None
    pid: int
    where: str
    stacks: str = ""


def waiting(live: Path, entry: str) -> list[Waiting]:
    """Every process of the recording on this machine that is a rank or may become one; `entry` is its mark."""
    carrying, said = set(processes.carrying(entry)), everyone(live)
    claimed = {status.rank for status in said if status.claimed}
    speaks = {status.pid for status in said} & carrying
    ranks = [status for status in said if status.claimed or (status.rank not in claimed and status.pid in speaks)]
    texts = _ask([rank.pid for rank in ranks if rank.pid in speaks], live)
    guesses = Counter(status.rank for status in ranks)
    found = [
        _waiting(status, texts.get(status.pid, ""), guesses) if status.pid in speaks else _gone(status)
        for status in ranks
    ]
    silent = [_silent(pid) for pid in _leaves(carrying, speaks)]
    found += [
        process for process in silent if not claimed or (process.rank is not None and process.rank not in claimed)
    ]
    return sorted(found, key=lambda one: (one.rank is None, one.rank or 0, one.pid))


def in_words(found: Sequence[Waiting], expected: Sequence[int]) -> str:
    """`rank 0: train.py:12, in barrier; rank 1: ...`: ranks that wait at the same place are grouped."""
    ranks: dict[str, list[int]] = {}
    for process in found:
        if process.rank is not None:
            ranks.setdefault(process.where, []).append(process.rank)
    places = [f"{'rank' if len(set(r)) == 1 else 'ranks'} {spans(r, ',')}: {where}" for where, r in ranks.items()]
    places += [f"process {process.pid}: {process.where}" for process in found if process.rank is None]
    missing = sorted(set(expected) - {process.rank for process in found})
    if missing and all(process.rank is not None for process in found):
        ranks_missing = f"{'rank' if len(missing) == 1 else 'ranks'} {spans(missing, ',')}"
        places.append(f"{ranks_missing}: never reached the rendezvous")
    return "; ".join(places) or "no process is left to report its stack"


def as_text(found: Sequence[Waiting]) -> str:
    """The content of stacks.txt."""
    parts = []
    for process in found:
        name = f"process {process.pid}" if process.rank is None else f"rank {process.rank} (process {process.pid})"
        parts.append(f"== {name}: {process.where}\n\n{process.stacks.strip() or 'no stacks: no answer'}\n")
    return "\n".join(parts)


def place(stacks: str) -> str | None:
    """The user's line and the innermost call of the thread that trains: `train.py:12, in barrier`."""
    threads = [frames for block in re.split(r"\n(?=\S)", stacks) if (frames := _frames(block))]
    for frames in reversed(threads):  # faulthandler writes the main thread last
        for depth, (file, line, _) in enumerate(frames):
            if not _NOT_THE_USERS.search(file):
                return f"{_short(file)}:{line}" + (f", in {frames[0][2]}" if depth else "")
    return None


def _waiting(status: RankStatus, text: str, guesses: Counter[int]) -> Waiting:
    certain = status.claimed or guesses[status.rank] == 1
    where = place(text) or status.where or "outside the script"
    return Waiting(status.rank if certain else None, status.pid, where, text)


def _gone(status: RankStatus) -> Waiting:
    return Waiting(status.rank, status.pid, "its process is on another machine or has ended")


def _silent(pid: int) -> Waiting:
    """A process that has not imported torch: what it is, and which rank its launcher calls it."""
    rank = next((entry[5:].decode() for entry in processes.environ(pid) if entry.startswith(b"RANK=")), "")
    command = " ".join(redacted_command(processes.words(pid)))[:100]
    return Waiting(int(rank) if rank.isdecimal() else None, pid, f"torch is not imported yet ({command})")


def _leaves(carrying: set[int], known: set[int]) -> list[int]:
    """Processes that have nothing below them, and no process that has spoken above or below."""
    below = {pid: set(processes.descendants(pid)) for pid in carrying}
    of_known = set().union(*(below[pid] for pid in known)) if known else set()
    return sorted(pid for pid in carrying - known - of_known if not below[pid] & carrying)


def _ask(pids: Sequence[int], live: Path) -> dict[int, str]:
    asked = [pid for pid in pids if _signal(pid, live)]
    deadline, before, still_since = time.monotonic() + _LONGEST_WAIT_S, -1, 0.0
    while asked and time.monotonic() < deadline:
        sizes = [_size(live, pid) for pid in asked]
        if sum(sizes) != before:
            before, still_since = sum(sizes), time.monotonic()
        elif all(sizes) and time.monotonic() - still_since > _SETTLED_S:
            break
        time.sleep(0.05)
    return {pid: _path(live, pid).read_text(encoding="utf-8", errors="replace") for pid in asked}


def _signal(pid: int, live: Path) -> bool:
    """Only a process that has said it can answer: any other would be ended by the signal."""
    if STACKS_SIGNAL is None or not _path(live, pid).exists():
        return False
    with contextlib.suppress(OSError):
        os.kill(pid, STACKS_SIGNAL)
        return True
    return False


def _path(live: Path, pid: int) -> Path:
    return live / f"pid-{pid}.stacks"


def _size(live: Path, pid: int) -> int:
    with contextlib.suppress(OSError):
        return _path(live, pid).stat().st_size
    return 0


def _frames(block: str) -> list[tuple[str, str, str]]:
    """Innermost first."""
    return [(m["file"], m["line"], m["function"]) for m in map(_FRAME.match, block.splitlines()) if m]


def _short(file: str) -> str:
    here = str(Path.cwd())
    return file.removeprefix(here + os.sep)
