"""Logs of NCCL Inspector, a plugin of NCCL: JSON objects one after another, each a completed collective of one rank.

The format is that of `plugins/profiler/inspector` in NCCL, version v4.0: `header` names the communicator and the rank
in it, `metadata` the host and process, `coll_perf` the collective with its number in the communicator, size and time.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dptune.errors import TraceError

MOST_BYTES = 2**32  # of a file
_START_BYTES = 8192
_VERSION = b'"inspector_output_format_version"'
_LONGEST = 2**20  # characters of one object
_DECODER = json.JSONDecoder()


@dataclass(frozen=True)
class InspectedCall:
    """A completed collective on one rank. `rank` is its rank in the communicator, which has `ranks` of them.

    `exec_us` includes the time in which this rank waited for later ones. `algbw` and `busbw` are 1e9 bytes per second,
    as NCCL computes them from that time.
    """

    communicator: str
    name: str
    rank: int
    ranks: int
    nodes: int
    host: str
    pid: int
    kind: str
    sequence: int
    message_bytes: int
    exec_us: float
    busbw_gb_per_s: float


def is_inspector_log(path: Path) -> bool:
    """Whether a file starts as a log of NCCL Inspector does."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            start = file.read(_START_BYTES)
    except OSError:
        return False
    return start.lstrip()[:1] == b"{" and _VERSION in start


def read_log(path: Path) -> tuple[list[InspectedCall], int]:
    """The collectives of a log, and how many objects could not be read. Raises TraceError where none could."""
    calls: list[InspectedCall] = []
    unread = 0
    try:
        if path.stat().st_size > MOST_BYTES:
            raise TraceError(f"{path} is larger than {MOST_BYTES:,} bytes", "pass a part of it")
        for found in _objects(path):
            call = _call(found)
            if call is not None:
                calls.append(call)
            elif not (isinstance(found, dict) and ("p2p_perf" in found or "proxy_op" in found)):
                unread += 1
    except OSError as error:
        raise TraceError(f"cannot read {path}: {error.strerror or error}", "check the path") from None
    if not calls:
        raise TraceError(f"{path} holds no collective of NCCL Inspector", "leave it out")
    return calls, unread


def _objects(path: Path) -> Iterator[object]:
    """The JSON objects of a file, on a line each or over lines up to a closing bracket; None for a damaged one."""
    pending: list[str] = []
    size = 0
    with path.open(encoding="utf-8", errors="replace") as file:
        while line := file.readline(_LONGEST):
            if line.startswith("{") and pending:  # the one before never ended
                yield None
                pending, size = [], 0
            pending.append(line)
            size += len(line)
            if line.startswith("}") or size >= _LONGEST or (len(pending) == 1 and line.rstrip().endswith("}")):
                yield from _decoded("".join(pending))
                pending, size = [], 0
    yield from _decoded("".join(pending))


def _decoded(text: str) -> Iterator[object]:
    """The objects of a text, one after another; None where it is damaged."""
    at = len(text) - len(text.lstrip())
    while at < len(text):
        try:
            found, at = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):
            yield None
            return
        yield found
        while at < len(text) and text[at].isspace():
            at += 1


def _call(found: object) -> InspectedCall | None:
    """A collective; None where a field of it is missing or impossible."""
    parts = [found.get(name) if isinstance(found, dict) else None for name in ("header", "metadata", "coll_perf")]
    header, metadata, perf = (part if isinstance(part, dict) else {} for part in parts)
    whole = [
        _whole(part.get(key))
        for part, key in (
            (header, "rank"),
            (header, "n_ranks"),
            (perf, "coll_sn"),
            (perf, "coll_msg_size_bytes"),
        )
    ]
    exec_us, busbw = _number(perf.get("coll_exec_time_us")), _number(perf.get("coll_busbw_gbs"))
    kind, communicator = perf.get("coll"), header.get("id")
    if not isinstance(kind, str) or not isinstance(communicator, str | int) or exec_us is None or busbw is None:
        return None
    if any(number is None for number in whole):
        return None
    rank, ranks, sequence, message_bytes = (number or 0 for number in whole)
    return InspectedCall(
        communicator=str(communicator)[:40],
        name="" if header.get("comm_name") in (None, "", "unknown") else str(header["comm_name"])[:80],
        rank=rank,
        ranks=ranks,
        nodes=_whole(header.get("nnodes")) or 1,
        host=str(metadata.get("hostname") or "")[:255],
        pid=_whole(metadata.get("pid")) or 0,
        kind=kind[:40],
        sequence=sequence,
        message_bytes=message_bytes,
        exec_us=exec_us,
        busbw_gb_per_s=busbw,
    )


def _whole(given: object) -> int | None:
    return given if type(given) is int and 0 <= given < 2**63 else None


def _number(given: object) -> float | None:
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given < math.inf:
        return None
    return float(given)
