"""A dump of the flight recorder to its entries, whatever wrote it: NCCL or gloo, pickle or JSON.

The format is that of `torch/csrc/distributed/c10d/FlightRecorder.hpp`, versions 2.x: `entries` with a sequence number
in each process group, `pg_config` with the ranks of the groups (gloo leaves it empty), `pg_status` with the last
sequence numbers that were enqueued, started and completed.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from dptune.errors import TraceError
from dptune.measured.collectives import kind_of
from dptune.trace.flight.unpickling import PickleError, plain

MOST_BYTES = 2**30  # of a file: a recorder of 20,000 entries with stacks writes 50 MB
_MOST_RANK = 1_000_000
_RANK = re.compile(r"(\d+)(?=\D*$)")
_START_BYTES = 4096
_KEYS = (b"pg_config", b"entries", b"comm_lib_version", b"nccl_version", b"pg_status")
_PEERS = re.compile(r"(send|recv) (\d{1,9})(?:->|<-)(\d{1,9})$")
_COALESCED = "coalesced"  # what ends a group of calls: the recorder follows the state of this one only
_TORCH = ("/torch/", "\\torch\\")
_AGAIN = "dump it again, or leave it out"


@dataclass(frozen=True)
class Entry:
    """One call of a collective or of a send or receive. Times are ns since the epoch, None where not recorded.

    `sequence` counts the calls of a group from 1, those to one peer apart from collectives. `started_ns` and
    `completed_ns` are when the recorder noticed; `duration_ms` is measured on the device where timing is enabled.
    `done`: the call is over; a call of a coalesced group has the state of the group. `peers` are sender and
    receiver of a send or receive, numbered in the group. `at` is the innermost line outside of torch.
    """

    group: str
    description: str
    sequence: int
    to_peer: bool
    backend: str
    name: str
    input_sizes: tuple[tuple[int, ...], ...]
    output_sizes: tuple[tuple[int, ...], ...]
    input_dtypes: tuple[str, ...]
    output_dtypes: tuple[str, ...]
    state: str
    done: bool
    created_ns: int | None
    started_ns: int | None
    completed_ns: int | None
    duration_ms: float | None
    at: str = ""
    peers: tuple[int, int] | None = None

    @property
    def kind(self) -> str:
        """all_reduce, all_gather, ..., by the name that the recorder gives."""
        return kind_of(self.name)


@dataclass(frozen=True)
class Dump:
    """The entries of one rank, in the order of its calls; `groups` are the ranks of each group that it lists."""

    rank: int
    source: str
    version: str
    groups: Mapping[str, tuple[int, ...]]
    enqueued: Mapping[str, int]
    completed: Mapping[str, int]
    entries: list[Entry] = field(default_factory=list)


def is_dump(path: Path) -> bool:
    """Whether a file starts as a dump of the flight recorder does."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            start = file.read(_START_BYTES)
    except OSError:
        return False
    opened = start[:1] == b"\x80" or start.lstrip()[:1] == b"{"
    return opened and sum(key in start for key in _KEYS) > 1 and b"traceEvents" not in start


def read_dump(path: Path) -> Dump:
    """Read one dump. Raises TraceError with what is wrong; a pickle is never executed."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise TraceError(f"{path} is larger than {MOST_BYTES:,} bytes", "is it a flight recorder dump?")
        with path.open("rb") as file:
            packed = file.read(1) == b"\x80"
            file.seek(0)
            document = plain(file) if packed else json.loads(file.read())
    except (PickleError, ValueError, RecursionError) as error:
        raise TraceError(f"{path} cannot be read: {str(error) or 'it is nested too deeply'}", _AGAIN) from None
    except OSError as error:
        raise TraceError(f"cannot read {path}: {error.strerror or error}", "check the path") from None
    if not isinstance(document, dict) or not isinstance(document.get("entries"), list):
        raise TraceError(f"{path} holds no list of entries of the flight recorder", _AGAIN)
    number = _RANK.search(path.stem)
    rank = _whole(document.get("rank")) if "rank" in document else int(number[1]) if number else None
    if rank is None or not 0 <= rank <= _MOST_RANK:
        raise TraceError(f"the rank of {path} is not known", "name the file as torch does: its rank at the end")
    status = document.get("pg_status")
    return Dump(
        rank=rank,
        source=str(path),
        version=str(document.get("version", ""))[:20],
        groups=dict(_groups(document.get("pg_config"))),
        enqueued=dict(_status(status, "last_enqueued_collective")),
        completed=dict(_status(status, "last_completed_collective")),
        entries=_coalesced([entry for each in document["entries"] if (entry := _entry(each)) is not None]),
    )


def _coalesced(entries: list[Entry]) -> list[Entry]:
    """The same with the state of each coalesced group in its calls, which have its number."""
    groups = {(each.group, each.to_peer, each.sequence): each for each in entries if each.name == _COALESCED}
    of_group = [groups.get((each.group, each.to_peer, each.sequence), each) for each in entries]
    return [replace(each, state=whole.state, done=whole.done) for each, whole in zip(entries, of_group, strict=True)]


def _groups(config: object) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The ranks of each group; torch writes them as the text of a list."""
    for name, group in config.items() if isinstance(config, dict) else ():
        ranks = group.get("ranks") if isinstance(group, dict) else None
        if isinstance(ranks, str):
            try:
                ranks = ast.literal_eval(ranks) if len(ranks) < 2**24 else None
            except (ValueError, SyntaxError, RecursionError, MemoryError):
                continue
        numbers = [_whole(rank) for rank in ranks] if isinstance(ranks, list | tuple) else []
        known = sorted({number for number in numbers if number is not None and 0 <= number <= _MOST_RANK})
        if known and name:
            yield str(name), tuple(known)


def _status(status: object, key: str) -> Iterator[tuple[str, int]]:
    for name, values in status.items() if isinstance(status, dict) else ():
        number = _whole(values.get(key)) if isinstance(values, dict) else None
        if number is not None:
            yield str(name), number


def _entry(given: object) -> Entry | None:
    """An entry; None where it names no group or no sequence number."""
    if not isinstance(given, dict):
        return None
    group = given.get("process_group")
    backend, colon, name = str(given.get("profiling_name", "")).partition(":")
    backend, name = (backend, name) if colon else ("", backend)
    peers = _PEERS.match(name)
    to_peer = given.get("is_p2p") is True or peers is not None
    sequence = _whole(given.get("p2p_seq_id" if to_peer else "collective_seq_id"))
    if not isinstance(group, list | tuple) or not group or sequence is None:
        return None
    state = str(given.get("state", ""))[:20]
    return Entry(
        group=str(group[0]),
        description=str(group[1]) if len(group) > 1 else "",
        sequence=sequence,
        to_peer=to_peer,
        backend=backend,
        name=name,
        input_sizes=_sizes(given.get("input_sizes")),
        output_sizes=_sizes(given.get("output_sizes")),
        input_dtypes=_words(given.get("input_dtypes")),
        output_dtypes=_words(given.get("output_dtypes")),
        state=state,
        done=given.get("retired") is True or state == "completed",
        created_ns=_time(given.get("time_created_ns")),
        started_ns=_time(given.get("time_discovered_started_ns")),
        completed_ns=_time(given.get("time_discovered_completed_ns")),
        duration_ms=_milliseconds(given.get("duration_ms")),
        at=_line(given.get("frames")),
        peers=None if peers is None else _direction(peers),
    )


def _direction(peers: re.Match[str]) -> tuple[int, int]:
    """Sender and receiver: `send 0->1` and `recv 1<-0` are both from 0 to 1."""
    own, other = int(peers[2]), int(peers[3])
    return (own, other) if peers[1] == "send" else (other, own)


def _milliseconds(given: object) -> float | None:
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given < math.inf:
        return None
    return float(given)


def _line(frames: object) -> str:
    """The innermost line outside of torch, `file:line`; "" where no stack was recorded."""
    for frame in frames if isinstance(frames, list | tuple) else ():
        file, line = (frame.get("filename"), _whole(frame.get("line"))) if isinstance(frame, dict) else (None, None)
        if isinstance(file, str) and line is not None and not any(part in file for part in _TORCH):
            return f"{file}:{line}"
    return ""


def _sizes(given: object) -> tuple[tuple[int, ...], ...]:
    shapes = given if isinstance(given, list | tuple) else ()
    return tuple(
        tuple(number for dimension in shape if (number := _whole(dimension)) is not None)
        for shape in shapes
        if isinstance(shape, list | tuple)
    )


def _words(given: object) -> tuple[str, ...]:
    return tuple(str(word) for word in given) if isinstance(given, list | tuple) else ()


def _time(given: object) -> int | None:
    """A moment; 0 and None stand for none."""
    return _whole(given) or None


def _whole(given: object) -> int | None:
    """A whole number of at most 64 bits, also as text, as JSON dumps of `pg_status` have it."""
    if isinstance(given, str) and re.fullmatch(r"-?\d{1,19}", given):
        given = int(given)
    return given if type(given) is int and -(2**63) <= given < 2**63 else None
