"""Which calls of several ranks belong together: rows of one call a rank, None where a rank lacks it.

All take the calls of one process group in one step, by rank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from dptune.measure.communication.calls import Call
from dptune.measure.intervals import Ints
from dptune.measured.collectives import collective

Row = list[Call | None]
Key = tuple[str, int | None]
_FARTHEST = 64  # calls that may be missing at the head of a rank's step


def key(call: Call) -> Key:
    """What calls of one collective have in common: the kind, and the size unless each rank sends its own."""
    return call.kind, None if collective(call.kind).uneven else call.message_bytes


def by_sequence(ranks: Sequence[Sequence[Call]]) -> list[Row]:
    """Calls with the same sequence number and kind; of several on one rank call n is call n of the others.

    Where other ranks have another number of them, only the first of each.
    """
    counts = [Counter((call.sequence, call.kind) for call in calls) for calls in ranks]
    by_key: dict[tuple[int | None, str, int], Row] = {}
    for at, calls in enumerate(ranks):
        places: Counter[tuple[int | None, str]] = Counter()
        for call in calls:
            key = call.sequence, call.kind
            place = places[key]
            places[key] += 1
            if not place or all(other[key] in (0, counts[at][key]) for other in counts):
                by_key.setdefault((*key, place), [None] * len(ranks))[at] = call
    return list(by_key.values())


def by_order(ranks: Sequence[Sequence[Call]], base_ns: Sequence[int]) -> tuple[list[Row], bool]:
    """Calls at the same place, of the rank with most calls; and whether all ranks make the same calls.

    Ranks that do not are shifted to where most kinds and sizes agree. `base_ns` is what to add to a rank's times.
    """
    keys = [[key(call) for call in calls] for calls in ranks]
    numbers = {
        call_key: at for at, call_key in enumerate(dict.fromkeys(call_key for rank in keys for call_key in rank))
    }
    codes = [np.array([numbers[call_key] for call_key in rank], dtype=np.int64) for rank in keys]
    ends = [
        np.array([base + call.start_ns + call.dur_ns for call in calls], dtype=np.int64)
        for base, calls in zip(base_ns, ranks, strict=True)
    ]
    longest = _longest(ranks)
    rows: list[Row] = [[None] * len(ranks) for _ in codes[longest]]
    for at, calls in enumerate(ranks):
        shift = 0 if keys[at] == keys[longest] else _shift(codes[at], codes[longest], ends[at], ends[longest])
        for place, call in enumerate(calls, shift):
            if 0 <= place < len(rows) and codes[at][place - shift] == codes[longest][place]:
                rows[place][at] = call
    return rows, all(rank_keys == keys[0] for rank_keys in keys)


def by_time(ranks: Sequence[Sequence[Call]], base_ns: Sequence[int]) -> list[Row]:
    """Calls of one kind and size that ran at the same time as one of the rank with most calls.

    A call of no duration runs for the nanosecond after its start. Every row has a call of the rank with most calls.
    """
    longest = _longest(ranks)
    model = sorted(ranks[longest], key=lambda call: call.start_ns)
    rows: list[Row] = [[None] * len(ranks) for _ in model]
    for at, calls in enumerate(ranks):
        if at == longest:
            for row, call in zip(rows, model, strict=True):
                row[at] = call
            continue
        ahead, place = base_ns[at] - base_ns[longest], 0
        for call in sorted(calls, key=lambda call: call.start_ns):
            start = call.start_ns + ahead
            while place < len(model) and model[place].start_ns + _lasts_ns(model[place]) <= start:
                place += 1
            if place == len(model):
                break
            if model[place].start_ns < start + _lasts_ns(call) and key(model[place]) == key(call):
                rows[place][at] = call
                place += 1
    return rows


def together_ns(row: Row, base_ns: Sequence[int]) -> int:
    """How long all were in the call at once; negative where one had left before another came."""
    spans = [
        (base + call.start_ns, _lasts_ns(call)) for base, call in zip(base_ns, row, strict=True) if call is not None
    ]
    return min(start + lasts for start, lasts in spans) - max(start for start, _ in spans)


def _lasts_ns(call: Call) -> int:
    """How long a call surely ran: traces contain calls of no duration, and negative ones are read as such."""
    return max(call.dur_ns, 1)


def _longest(ranks: Sequence[Sequence[Call]]) -> int:
    return max(range(len(ranks)), key=lambda at: (len(ranks[at]), -at))


def _shift(codes: Ints, model: Ints, ends: Ints, model_ends: Ints) -> int:
    """How many calls the head lacks (negative: has too many).

    Of shifts at which as many kinds and sizes agree, that at which the ends are equally far apart; of those (calls at
    an even pace), that at which they are nearest.
    """

    def fit(shift: int) -> tuple[int, float, float]:
        low, high = max(shift, 0), min(shift + len(codes), len(model))
        agree = codes[low - shift : high - shift] == model[low:high]
        between = (ends[low - shift : high - shift] - model_ends[low:high])[agree]
        apart = float(np.median(between)) if len(between) else 0.0
        return -int(agree.sum()), float(np.abs(between - apart).sum()), abs(apart)

    farthest = min(len(model), _FARTHEST)
    return min(range(-min(len(codes), _FARTHEST) + 1, farthest), key=fit)
