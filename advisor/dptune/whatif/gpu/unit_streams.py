"""All-gathers that fully_shard issues from streams of its own: they wait for copies out, and for no kernel between.

torch (FSDPParamGroup): a unit is copied in on one stream and gathered on another. Neither waits for the script's stream
but at the start of a forward pass. In a forward pass both wait for the copy out before the last one, so one gather is
ahead of the unit that computes; in a backward pass for the last one. Only the unit's own copy out waits for a gather. A
host that is slower than the device hides all this: each operation then begins as it is launched.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from dptune.measure.device.critical import Walk
from dptune.measure.host.enclosing import NOWHERE, Ranges
from dptune.measure.host.launches import UNLAUNCHED
from dptune.measure.intervals import Ints
from dptune.trace.kernels import RANGE_CATEGORIES
from dptune.whatif.gpu.gathers import COPIES_OUT, IN_BACKWARD, ISSUES, unit_of


class UnitGather(NamedTuple):
    """Places of operations: the copy out that a gather waits for, and the one that waits for it; None if unknown."""

    after: int | None
    before: int | None


def gathers_of_units(walk: Walk, collectives: Ints, compute_stream: int) -> Mapping[int, UnitGather]:
    """By place of such a gather what it waits for and what waits for it.

    Those are left out that are issued from the compute stream, or whose copies in were not recorded.
    """
    columns = walk.columns
    issuing, copying = (columns.rows(RANGE_CATEGORIES, pattern.match) for pattern in (ISSUES, COPIES_OUT))
    if not len(issuing) or not len(copying):
        return {}
    (launched,) = np.nonzero(walk.launch != UNLAUNCHED)
    launched = launched[np.argsort(columns.ts_ns[walk.launch[launched]], kind="stable")]
    called_ns, thread = columns.ts_ns[walk.launch[launched]], columns.thread[walk.launch[launched]]
    issued = Ranges.of_rows(columns, issuing).at(thread, called_ns)
    copied = Ranges.of_rows(columns, copying).at(thread, called_ns)
    gathering = np.isin(launched, collectives)
    on_compute_stream = columns.queue[walk.rows[launched]] == compute_stream
    own = np.setdiff1d(issued[~gathering & ~on_compute_stream], issued[on_compute_stream])
    last = np.flatnonzero((copied != NOWHERE) & (np.append(copied[1:], NOWHERE) != copied))
    first = np.flatnonzero((copied != NOWHERE) & (np.append(NOWHERE, copied[:-1]) != copied))
    backward = Ranges.of_rows(columns, columns.rows(RANGE_CATEGORIES, IN_BACKWARD.match))
    in_backward = backward.at(thread[last], called_ns[last]) != NOWHERE
    units = [unit_of(COPIES_OUT, columns.name(row)) for row in copying[copied[first]].tolist()]
    found = {}
    for at in np.flatnonzero(gathering & (issued != NOWHERE) & np.isin(issued, own)).tolist():
        unit = unit_of(ISSUES, columns.name(int(issuing[issued[at]])))
        number = int(np.searchsorted(last, at))
        user = next((place for place in range(number, len(units)) if units[place] == unit), None)
        number -= 1 if number == 0 or in_backward[number - 1] else 2
        found[int(launched[at])] = UnitGather(
            int(launched[last[number]]) if number >= 0 else None, None if user is None else int(launched[first[user]])
        )
    return found
