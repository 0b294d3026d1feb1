"""From where to where a copy goes, and whether its host memory is pinned, by the name of its event."""

from __future__ import annotations

import re
from typing import Literal

from dptune.trace.by_name import once_per_name

Direction = Literal["h2d", "d2h", "d2d", "p2p", "h2h", "unknown"]
ON_DEVICES = ("d2d", "p2p")  # no host memory takes part

# Names: CUPTI as libkineto writes them ("Memcpy HtoD (Pinned -> Device)"), and roctracer's ("CopyHostToDevice").
_DIRECTIONS: tuple[tuple[re.Pattern[str], Direction], ...] = (
    (re.compile(r"HtoD|HostToDevice", re.IGNORECASE), "h2d"),
    (re.compile(r"DtoH|DeviceToHost", re.IGNORECASE), "d2h"),
    (re.compile(r"PtoP|PeerToPeer", re.IGNORECASE), "p2p"),
    (re.compile(r"DtoD|DeviceToDevice", re.IGNORECASE), "d2d"),
    (re.compile(r"HtoH|HostToHost", re.IGNORECASE), "h2h"),
)


@once_per_name
def copy_kind(name: str) -> tuple[Direction, bool | None]:
    """Direction, and whether the host memory is pinned: None where the name does not say."""
    direction: Direction = next((word for pattern, word in _DIRECTIONS if pattern.search(name)), "unknown")
    pinned = True if "Pinned" in name else False if "Pageable" in name else None
    return direction, pinned
