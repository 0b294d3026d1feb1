"""Where in a function of the script the training thread was found most, in steps without the profiler."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from dptune.runfile.facts import Facts

_LEAST_LOOKS = 3  # fewer may be chance
_FRAME = re.compile(r"(?:.*\.)?(?P<name>[^.]+) \((?P<file>.+):(?P<line>\d+)\)")


def hottest_line(facts: Sequence[Facts], name: str, file: str, calling: str = "") -> str | None:
    """`file:line` within the function of that name, over all ranks; None where it was found there too rarely.

    `calling`: only while that line itself calls a library's function of this name.
    """
    spent: Counter[str] = Counter()
    looks: Counter[str] = Counter()
    for sample in (one for own in facts if (window := own.window("unprofiled")) for one in window.sampled):
        frames = [_FRAME.fullmatch(frame) for frame in sample.path]
        frame = next((one for one in reversed(frames) if one and (one["name"], one["file"]) == (name, file)), None)
        if calling and (frame is not frames[-1] or calling not in sample.through.split(".")):
            continue
        if frame is not None:
            spent[frame["line"]] += sum(sample.spent_ns)
            looks[frame["line"]] += sample.looks
    lines = [line for line, _ in spent.most_common() if looks[line] >= _LEAST_LOOKS]
    return f"{file}:{lines[0]}" if lines else None
