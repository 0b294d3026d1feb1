"""What operations wait for at least: the latency of their launch, and the gap behind the operation before.

An operation that is launched shortly before another ends may begin late for either reason. Its launch is the reason if
it begins as soon after that as operations do on an idle device, and later after the one before it on its stream than
operations do that were launched long ago; it then follows that one after the usual gap as soon as the host is faster.
What ended just before on another stream was no reason either, unless the stream is known to wait for that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dptune.measure.device.critical import Walk
from dptune.measure.host.launches import UNLAUNCHED
from dptune.measure.intervals import Ints, Mask

_FEWEST = 10  # operations that show a latency or a gap: gaps are 0.8 to 1.7 us on A100, H100, H200 and V100 GPUs
_MOST = 90  # percentile: 13 us on eight H100s (nanogpt_8xh100), where the median is 8.7 us
_GAPS = 2.0  # usual gaps: nine in ten are 0.7 to 1.5 times the median one there
_NOTHING = -1


@dataclass(frozen=True, eq=False)
class Latencies:
    """By operation of a walk. `late`: its launch is the reason for its begin, though another ended after that.

    `followed`: it waits for the end of what it was found to wait for, and begins `since_ns` after that at least. It
    begins `launch_ns` after its launch at least, and `gap_ns` after the one before it on its stream.
    """

    late: Mask
    followed: Mask
    since_ns: Ints
    launch_ns: Ints
    gap_ns: int

    @classmethod
    def of(cls, walk: Walk, awaited: Mapping[int, Sequence[int]], launch_ns: Ints) -> Latencies:
        """`awaited` are by place of an operation those of other streams that it is known to wait for; `launch_ns`: when
        each was launched, by the clock of the device.
        """
        over, called = walk.all_waited_for
        launched = walk.launch != UNLAUNCHED
        since_call_ns = np.where(launched, walk.begin - launch_ns, 0)
        idle_ns = since_call_ns[called != UNLAUNCHED]
        enough = len(idle_ns) >= _FEWEST
        usual_ns, most_ns = np.percentile(idle_ns, (50, _MOST)).astype(np.int64).tolist() if enough else (0, 0)
        ended = (over != _NOTHING) & (walk.end[over] <= walk.begin)
        since_ns = np.where(ended, walk.begin - walk.end[over], 0)
        soon = ended & launched & (since_call_ns >= 0) & (since_call_ns <= most_ns)
        queued = ended & (walk.before == over)
        gap_ns = _usual(since_ns[queued & ~soon]) or _usual(since_ns[queued])
        late = queued & soon & (since_ns > _GAPS * gap_ns) & (gap_ns > 0)
        since_ns[late] = gap_ns
        free = np.zeros(len(over), dtype=np.bool_)
        for place in np.flatnonzero(soon & ~queued).tolist():
            free[place] = over[place] not in awaited.get(place, ())
        return cls(late | free, ended & ~free, since_ns, np.clip(since_call_ns, 0, usual_ns), gap_ns)


def _usual(gaps_ns: Ints) -> int:
    """The median, 0 of too few."""
    return int(np.median(gaps_ns)) if len(gaps_ns) >= _FEWEST else 0
