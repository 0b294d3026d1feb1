"""What items wait for, by number -> their edges, by place in order of time."""

from __future__ import annotations

import numpy as np

from dptune.measure.intervals import Ints, Mask
from dptune.whatif.gpu.columns import Columns
from dptune.whatif.gpu.graph import OF_HOST, Kind
from dptune.whatif.gpu.items import Waits


def edges_of(waits: Waits, collectives: Waits, places: Ints, recorded_ns: Ints, fixed: Mask) -> Columns:
    """The edges of items by place: those to earlier ones. Of a `fixed` one only the host's.

    `collectives` are those of matched collectives, of which all ranks have what is left after the last rank's begin:
    `places` are by number of an item, `recorded_ns` and `fixed` by place.
    """
    moved = _earlier(waits, places)
    kept = ~fixed[moved.item] | np.isin(moved.kind, [*OF_HOST])
    moved = _tight(moved.chosen(kept), recorded_ns, fixed)
    communicating = _earlier(collectives, places)
    communicating = _collectives(communicating.chosen(~fixed[communicating.item]), places, collectives, recorded_ns)
    joined = Waits.joined([moved, communicating])
    found = joined.chosen(np.lexsort((joined.turn, joined.item)))
    lag_ns, kind = found.lag_ns.astype(np.float64), found.kind.astype(np.uint8)
    return Columns(len(places), found.item, found.awaited, lag_ns, kind, found.message)


def _earlier(waits: Waits, places: Ints) -> Waits:
    """The same by place, in order: those for earlier items."""
    moved = Waits(places[waits.item], places[waits.awaited], *waits.columns[2:])
    moved = moved.chosen(moved.awaited < moved.item)
    return moved.chosen(np.lexsort((moved.turn, moved.item)))


def _tight(waits: Waits, recorded_ns: Ints, fixed: Mask) -> Waits:
    """The last wait of each item as long as it was, where what was waited for was not recorded in time."""
    if not len(waits.item):
        return waits
    items, first, several = np.unique(waits.item, return_index=True, return_counts=True)
    over_ns = recorded_ns[waits.awaited] + waits.lag_ns
    last_ns = np.maximum.reduceat(over_ns, first)
    late = ~fixed[items] & (last_ns < recorded_ns[items])
    is_last = np.flatnonzero(over_ns == np.repeat(last_ns, several))
    _, firsts = np.unique(waits.item[is_last], return_index=True)
    longer = is_last[firsts][late]
    lag_ns = waits.lag_ns.copy()
    lag_ns[longer] = recorded_ns[waits.item[longer]] - recorded_ns[waits.awaited[longer]]
    return Waits(waits.item, waits.awaited, lag_ns, *waits.columns[3:])


def _collectives(waits: Waits, places: Ints, collectives: Waits, recorded_ns: Ints) -> Waits:
    """Those of collectives, as long as from the last rank's begin on.

    Where the clocks are too far off to tell who came last, one from the rank's own begin.
    """
    if not len(waits.item):
        return waits
    ends, first, several = np.unique(waits.item, return_index=True, return_counts=True)
    took_ns = recorded_ns[ends] - np.maximum.reduceat(recorded_ns[waits.awaited], first)
    lasting = np.repeat(took_ns > 0, several)
    known = Waits(waits.item, waits.awaited, np.repeat(took_ns, several), *waits.columns[3:]).chosen(lasting)
    if lasting.all():
        return known
    # The begin of an operation is numbered just before its end.
    own = dict(zip(places[collectives.item].tolist(), places[collectives.item - 1].tolist(), strict=True))
    odd = ends[took_ns <= 0]
    begun = np.array([own[end] for end in odd.tolist()], dtype=np.int64)
    alone = Waits.of(odd, begun, recorded_ns[odd] - recorded_ns[begun], Kind.WAIT, 0)
    return Waits.joined([known, alone])
