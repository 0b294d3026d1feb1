"""links.json: latency and bandwidth of the links between ranks, from a message size sweep by `dptune links`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from dptune.runfile import json_files

SCHEMA_VERSION = "0.1"
NO_SWEEP = "no sweep for "  # how the reason starts where no backend of a sweep fits the run
LINKS_JSON = "links.json"
_MOST_BYTES = 2**63 - 1
_LEAST_S, _MOST_S = 1e-9, 86_400.0  # of a call: a nanosecond, a day


@dataclass
class SizeTimes:
    """Times of calls of one message size, in seconds, median and quartiles over `samples` trains of `calls` in all.

    `message_bytes` is the larger of input and output of one rank.
    """

    message_bytes: int
    median_s: float
    q1_s: float
    q3_s: float
    samples: int
    calls: int


@dataclass
class SweepFit:
    """time = alpha + bytes / beta; beta as algorithm and as bus bandwidth (busbw of nccl-tests), 1e9 bytes per second.

    `low` and `high` are the extremes over fits of the same samples: with any size left out, or all at a quartile.
    `residual_share` is the median over sizes of |measured - fitted| / measured; `confidence` is high, medium or low.
    """

    alpha_us: float
    alpha_low_us: float
    alpha_high_us: float
    algbw_gb_per_s: float
    busbw_gb_per_s: float
    busbw_low_gb_per_s: float
    busbw_high_gb_per_s: float
    residual_share: float
    confidence: str


@dataclass
class KindTimes:
    """One kind (all_reduce, all_gather, reduce_scatter, p2p) among `ranks`, and the fit, or why there is none.

    `queued` are times per call of small messages, when many are queued back to back. `left_out` is why requested sizes
    are missing.
    """

    kind: str
    ranks: list[int] = field(default_factory=list)
    sizes: list[SizeTimes] = field(default_factory=list)
    queued: list[SizeTimes] = field(default_factory=list)
    fit: SweepFit | None = None
    no_fit: str = ""
    left_out: str = ""


@dataclass
class LinkRecord:
    """One sweep. `hosts` and `devices` are those of each rank, in order.

    `ended`: complete | partial (`left_out` of a kind: why) | interrupted | failed (`note`: how) | timed-out.
    """

    schema_version: str = SCHEMA_VERSION
    dptune: str = ""
    measured: str = ""
    torch: str = ""
    backend: str = ""
    world_size: int = 0
    hosts: list[str] = field(default_factory=list)
    devices: list[str] = field(default_factory=list)
    kinds: list[KindTimes] = field(default_factory=list)
    ended: str = "complete"
    note: str = ""


def read(path: Path) -> LinkRecord:
    """Read a sweep. Raises OSError, or ValueError with one sentence on what cannot have been measured."""
    record = json_files.read(path, LinkRecord)
    if not record.backend or not record.kinds:
        raise ValueError(f"{path.name} has no link measurements")
    for kind in record.kinds:
        if not all(0 <= rank < record.world_size for rank in kind.ranks):
            raise ValueError(f"{path.name}: {kind.kind!r} names ranks that a run of {record.world_size} does not have")
        if len({size.message_bytes for size in kind.sizes}) < len(kind.sizes):
            raise ValueError(f"{path.name}: {kind.kind!r} has a message size twice")
        for size in [*kind.sizes, *kind.queued]:
            if not _measurable(size):
                raise ValueError(
                    f"{path.name}: no measurement of {kind.kind!r} has the sizes, times or counts it holds"
                )
    return record


def _measurable(size: SizeTimes) -> bool:
    """False for NaN too."""
    return (
        0 <= size.message_bytes <= _MOST_BYTES
        and size.samples >= 1
        and size.calls >= 1
        and _LEAST_S <= size.q1_s <= size.median_s <= size.q3_s <= _MOST_S
    )


def unmeasured(why: str) -> str:
    """Why the links are not known, and what to do: a sentence without its full stop."""
    if "`dptune links" in why:
        return why
    if why.startswith(NO_SWEEP):
        return f"{why}; `dptune whatif --links FILE` takes measurements of another run"
    return f"{why}; to measure them, run `dptune links` on the same hosts"
