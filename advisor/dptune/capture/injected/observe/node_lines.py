"""The script's line that made a function of the autograd graph, where torch has noted it as in its anomaly mode."""

from __future__ import annotations

import re
from typing import Any

from dptune.capture.injected.observe.places import users_place

_FRAME = re.compile(r'\s*File "(.+)", line ([0-9]+), in ')


def node_line(node: Any) -> str | None:
    """The innermost line of the script; None where torch has not noted any."""
    for frame in reversed(node.metadata.get("traceback_") or []):
        found = _FRAME.match(frame)
        place = users_place(found[1], int(found[2])) if found else None
        if place is not None:
            return place
    return None
