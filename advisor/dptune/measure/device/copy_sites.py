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

MOST = 5  # sites that are reported, of each kind of copy

_NO_STACKS = "the window was recorded without Python's stacks"
_NO_OPERATOR = "no operator is around the call"
_NO_MODULE = "no nn.Module is around the call"
_NO_FUNCTION = "no function of the script's is around the call: autograd runs backward on a thread of its own"
_NO_BYTES = "the trace does not show how many bytes were copied"


@dataclass(frozen=True, eq=False)
class CopyRows:
    """The copies of one kind on one device of one rank, in one window.

    By copy: `rows`, the row of its `launch`, the index of its host step in `steps`, and whether it `held` the thread.
    """

    view: RankView
    window: Literal["light", "detailed"]
    rows: Ints
    launch: Ints
    steps: Ints
    held: Mask


def sites(copies: CopyRows) -> list[CopySite]:
    """Those with the most time, the longest first."""
    columns = copies.view.columns
    calls, which = np.unique(copies.launch, return_inverse=True)
    known = callers(columns, calls)
    alike: dict[tuple[Caller, int], list[int]] = {}
    for at, size in enumerate(columns.total_bytes[copies.rows].tolist()):
        alike.setdefault((known[which[at]], size), []).append(at)
    total = {key: int(columns.dur_ns[copies.rows[places]].sum()) for key, places in alike.items()}
    longest = sorted(alike, key=lambda key: (-total[key], str(key)))[:MOST]
    stacks = has_stacks(columns)
    windows = {at for device in copies.view.devices for at in np.unique(device.launched_in).tolist() if at >= 0}
    return [_site(copies, windows, *key, alike[key], total[key], stacks) for key in longest]


def _site(
    copies: CopyRows, windows: set[int], caller: Caller, size: int, places: Sequence[int], total_ns: int, stacks: bool
) -> CopySite:
    figures: dict[str, tuple[Any, str]] = {
        "operator": (caller.operator, _NO_OPERATOR),
        "module": (caller.module, _NO_MODULE if stacks else _NO_STACKS),
        "function": (caller.function, _NO_FUNCTION if stacks else _NO_STACKS),
        "copy_bytes": (None if size == NONE else size, _NO_BYTES),
    }
    return CopySite.of(
        figures,
        rank=copies.view.rank,
        window=copies.window,
        calls_per_step=len(places) / copies.view.windows,
        every_step=len(windows) > 1 and set(copies.steps[list(places)].tolist()) == windows,
        total_ns=total_ns,
        blocking_calls=int(copies.held[list(places)].sum()),
    )
