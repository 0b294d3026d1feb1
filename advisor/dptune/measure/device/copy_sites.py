"""Where copies are asked for: by operator, nn.Module, function and size, and whether every step does it again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from dptune.measure.host.callers import Caller, callers, has_stacks
from dptune.measure.intervals import Ints, Mask
from dptune.measure.views import RankView
from dptune.measured import CopySite
from dptune.trace.columns import NONE

MOST = 5  # sites that are told, of each kind of copy

_NO_STACKS = "the window was recorded without Python's stacks"
_NO_OPERATOR = "no operator is around the call"
_NO_MODULE = "no nn.Module is around the call"
_NO_FUNCTION = "no function of the script's is around the call: autograd runs backward on a thread of its own"
_NO_BYTES = "the trace does not say how many bytes were copied"


@dataclass(frozen=True, eq=False)
class Told:
    """The copies of one kind on one device of one rank, in one window.

    By copy: `rows`, the row of its `launch`, the index of its host step in `steps`, and whether it `held` the thread.
    """

    view: RankView
    window: Literal["lean", "rich"]
    rows: Ints
    launch: Ints
    steps: Ints
    held: Mask


def sites(told: Told) -> list[CopySite]:
    """Those with the most time, the longest first."""
    columns = told.view.columns
    calls, which = np.unique(told.launch, return_inverse=True)
    known = callers(columns, calls)
    alike: dict[tuple[Caller, int], list[int]] = {}
    for at, size in enumerate(columns.total_bytes[told.rows].tolist()):
        alike.setdefault((known[which[at]], size), []).append(at)
    total = {key: int(columns.dur_ns[told.rows[places]].sum()) for key, places in alike.items()}
    longest = sorted(alike, key=lambda key: (-total[key], str(key)))[:MOST]
    stacks = has_stacks(columns)
    windows = {at for device in told.view.devices for at in np.unique(device.launched_in).tolist() if at >= 0}
    return [_site(told, windows, *key, alike[key], total[key], stacks) for key in longest]


def _site(
    told: Told, windows: set[int], caller: Caller, size: int, places: Sequence[int], total_ns: int, stacks: bool
) -> CopySite:
    figures: dict[str, tuple[Any, str]] = {
        "operator": (caller.operator, _NO_OPERATOR),
        "module": (caller.module, _NO_MODULE if stacks else _NO_STACKS),
        "function": (caller.function, _NO_FUNCTION if stacks else _NO_STACKS),
        "copy_bytes": (None if size == NONE else size, _NO_BYTES),
    }
    return CopySite.of(
        figures,
        rank=told.view.rank,
        window=told.window,
        calls_per_step=len(places) / told.view.windows,
        every_step=len(windows) > 1 and set(told.steps[list(places)].tolist()) == windows,
        total_ns=total_ns,
        blocking_calls=int(told.held[list(places)].sum()),
    )
