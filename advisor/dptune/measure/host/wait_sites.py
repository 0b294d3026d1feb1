"""Where the script waits for a device: by call, operator, module, function and named range around it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from dptune.measure.device.phases import bounds
from dptune.measure.host.callers import Caller, callers, has_stacks, innermost
from dptune.measure.host.enclosing import NOWHERE
from dptune.measure.intervals import Intervals
from dptune.measure.views import RankView
from dptune.measured import WaitSite

_MOST = 5
_OF_TORCH = re.compile(r"ProfilerStep#|Optimizer\.")  # ranges around much more than one wait
_NO_STACKS = "the window was recorded without Python's stacks"
_NOT_AROUND = "none is around the call"


def wait_sites(stepped: Sequence[RankView], detail: RankView | None) -> list[WaitSite]:
    """Wait sites, longest first, of the detailed window; without one, of the rank that waits longest."""
    if detail is not None:
        return _sites(detail, "detailed")
    return max((_sites(view, "light") for view in stepped), key=lambda found: sum(site.share for site in found))


def _sites(view: RankView, window: str) -> list[WaitSite]:
    columns, rows = view.columns, view.host.blocked.waiting
    steps = Intervals.union(*bounds(view.steps))
    held = steps.lengths(columns.ts_ns[rows], columns.ends(rows))
    rows, held = rows[held > 0], held[held > 0]
    named = columns.rows({"user_annotation"}, lambda name: not _OF_TORCH.match(name))
    ranges = [None if row == NOWHERE else columns.name(row) for row in innermost(columns, named, rows).tolist()]
    spent: dict[tuple[str, Caller, str | None], list[int]] = defaultdict(list)
    for row, caller, name, ns in zip(rows.tolist(), callers(columns, rows), ranges, held.tolist(), strict=True):
        spent[columns.name(row), caller, name].append(ns)
    longest = sorted(spent, key=lambda key: (-sum(spent[key]), str(key)))[:_MOST]
    return [_site(view, window, *key, spent[key], steps.total_ns) for key in longest]


def _site(
    view: RankView, window: str, call: str, caller: Caller, annotation: str | None, held: Sequence[int], whole_ns: int
) -> WaitSite:
    unknown = _NOT_AROUND if has_stacks(view.columns) else _NO_STACKS
    figures: dict[str, tuple[Any, str]] = {
        "operator": (caller.operator, _NOT_AROUND),
        "module": (caller.module, unknown),
        "function": (caller.function, unknown),
        "annotation": (annotation, _NOT_AROUND),
    }
    return WaitSite.of(
        figures,
        rank=view.rank,
        window=window,
        call=call,
        calls_per_step=len(held) / max(1, len(view.steps)),
        held_ns=sum(held),
        share=sum(held) / whole_ns,
    )
