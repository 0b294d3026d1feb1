"""Which rank a trace file belongs to, and how that is known."""

from __future__ import annotations

import re
from pathlib import Path

from dptune.trace.events import Trace
from dptune.trace.run import MOST_RANKS

FACTS = "the run folder"
DISTRIBUTED_INFO = "distributedInfo in the trace"
FILE_NAME = "the file names"
FOLDER_NAME = "the folder names"
ORDER = "file order: the traces name no rank"

_RANK = re.compile(r"(?<![a-z])rank[-_.=]?(\d+)(?!\d)", re.IGNORECASE)
_WINDOW = re.compile(r"(.+_\d+)\.\d{13,19}\.pt\.trace\.json(?:\.gz)?")
_WORKER = re.compile(r"^worker[-_]?(\d+)\.", re.IGNORECASE)


def rank_of(trace: Trace, path: Path) -> tuple[int, str] | None:
    """The rank and what says so: distributedInfo, then the file's name, then the folders'; None where nothing does."""
    if trace.distributed.rank is not None and trace.distributed.rank >= 0:
        return trace.distributed.rank, DISTRIBUTED_INFO
    named = rank_in_name(path.name)
    if named is not None:
        return named, FILE_NAME
    for folder in reversed(path.parts[:-1]):
        match = _RANK.search(folder)
        number = _number(match[1]) if match else None
        if number is not None:
            return number, FOLDER_NAME
    return None


def rank_in_name(name: str) -> int | None:
    """The rank in a file's name, as torchtitan, HTA's examples, tensorboard's worker names and people write it."""
    match = _RANK.search(name) or _WORKER.search(name)
    return _number(match[1]) if match else None


def process_in_name(name: str) -> str | None:
    """`host_pid` in a file's name, as tensorboard_trace_handler writes it; None for names that a script gives."""
    match = _WINDOW.fullmatch(name)
    return match[1] if match and rank_in_name(name) is None else None


def beyond(name: str) -> bool:
    """Whether the number in a file's name is above that of any rank."""
    match = _RANK.search(name) or _WORKER.search(name)
    return match is not None and _number(match[1]) is None


def _number(digits: str) -> int | None:
    """The rank; None for a number above MOST_RANKS, which is not a rank."""
    return int(digits) if len(digits) <= len(str(MOST_RANKS)) and int(digits) <= MOST_RANKS else None
