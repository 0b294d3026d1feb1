"""What the GPU of one rank spends more time on than those of the others, in the same steps: kernels and copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from dptune.measure.intervals import Ints
from dptune.measure.steps.windows import OUTSIDE
from dptune.measure.views import RankView
from dptune.measured import IDLE, DeviceFigures, LagDifference
from dptune.trace.kernels import Work

DeviceTimeline = Mapping[int, Sequence[DeviceFigures]]  # by rank
NO_HOST = "this is device work"
_KINDS: tuple[tuple[Literal["kernels", "copies"], str, Work], ...] = (
    ("kernels", "compute_ns", Work.COMPUTE),
    ("copies", "copy_ns", Work.COPY),
)


def longer(
    views: Mapping[int, RankView], spent: DeviceTimeline, rank: int, lag_ns: Mapping[int, float], least_share: float
) -> list[LagDifference]:
    """What takes the device of `rank` longer, by the account: what runs beside compute costs nothing."""
    found = []
    total_ns = sum(lag_ns.values())
    for kind, class_ns, work in _KINDS:
        mine, others = _per_step(spent, rank, (class_ns,), lag_ns)
        grew = np.minimum(np.maximum(mine - others, 0), list(lag_ns.values()))
        share = float(grew.sum()) / total_ns if total_ns else 0.0
        if share >= least_share:
            found.append(
                LagDifference(
                    kind=kind,
                    name=_most(views, rank, work),
                    rank_ns=round(float(np.median(mine))),
                    others_ns=round(float(np.median(others))),
                    share=share,
                    missing=dict.fromkeys(("at", "within", "detail", "detail_rank_ns", "detail_others_ns"), NO_HOST),
                )
            )
    return found


def idle_share(spent: DeviceTimeline, rank: int, lag_ns: Mapping[int, float]) -> float:
    """The share of the lag in which the device of `rank` was idle longer than the others: what its host can explain."""
    mine, others = _per_step(spent, rank, IDLE, lag_ns)
    lag = np.array(list(lag_ns.values()))
    return float(np.minimum(np.maximum(mine - others, 0), lag).sum() / lag.sum()) if lag.sum() > 0 else 0.0


def _per_step(
    spent: DeviceTimeline, rank: int, classes: Sequence[str], steps: Mapping[int, float]
) -> tuple[Ints, Ints]:
    """By step the time of a rank in classes of the account, and the median of the others."""

    def of(devices: Sequence[DeviceFigures]) -> list[int]:
        by_step = dict.fromkeys(steps, 0)
        for device in devices:
            for step in device.steps:
                if step.number in by_step:
                    by_step[step.number] += sum(getattr(step.account, name) for name in classes)
        return list(by_step.values())

    others = [of(devices) for other, devices in spent.items() if other != rank and devices]
    usual = np.median(others, axis=0) if others else np.array(of(spent[rank]))
    return np.array(of(spent[rank]), dtype=np.int64), usual.round().astype(np.int64)


def _most(views: Mapping[int, RankView], rank: int, work: Work) -> str:
    """The name of the operation whose time on the rank is the most above the median of the others."""
    mine = _by_name(views[rank], work)
    others = [_by_name(view, work) for other, view in views.items() if other != rank]
    return max(
        mine, key=lambda name: mine[name] - float(np.median([each.get(name, 0) for each in others] or [0])), default=""
    )


def _by_name(view: RankView, work: Work) -> dict[str, int]:
    """Time of the operations launched in steps, a step, by name."""
    columns = view.columns
    total = np.zeros(len(columns.names), dtype=np.int64)
    for device in view.devices:
        rows = device.operations.rows[(device.operations.work == work) & (device.launched_in != OUTSIDE)]
        np.add.at(total, columns.name_id[rows], columns.dur_ns[rows])
    return {columns.names[at]: int(total[at]) // max(view.windows, 1) for at in np.flatnonzero(total).tolist()}
