"""Kernels, collectives and copies: of the steps, or of the whole recording where no rank has steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dptune.measure.across_ranks import Across, across
from dptune.measure.communication import collectives
from dptune.measure.device import accounts, copies, kernels
from dptune.measure.steps.windows import Step
from dptune.measure.views import RankView
from dptune.measured import CollectiveFigures, CopyFigures, KernelFigures
from dptune.trace.run import Run


@dataclass(frozen=True)
class Tables:
    """The figures, None where there are none; `views` are the ranks that kernels and copies are of.

    `whole`: of the whole recording.
    """

    kernels: KernelFigures | None
    collectives: list[CollectiveFigures] | None
    copies: list[CopyFigures] | None
    views: list[RankView]
    whole: bool


def tables(
    run: Run, views: Sequence[RankView], accounted: Sequence[RankView], together: Across, detail: RankView | None
) -> Tables:
    """Of the ranks with steps; where there are none, of all whose trace is not known to lack work of the device."""
    stepped, counted = _stepped(views), _stepped(accounted)
    whole = not counted
    if whole:
        undivided = [_undivided(view) for view in accounted if not view.losses_fatal]
        stepped = counted = [view for view in undivided if view is not None]
        together = across(run, counted) if counted else together
    account = accounts.total([device for rank in together.devices.values() for device in rank])
    read = [view for view in counted if view.whole]
    return Tables(
        kernels=kernels.kernels(((view, device) for view in read for device in view.devices), account),
        collectives=collectives.collectives(together.calls, together.collectives, stepped) if counted else None,
        copies=copies.copies(read, detail) if read else None,
        views=read,
        whole=whole and bool(read),
    )


def _stepped(views: Sequence[RankView]) -> list[RankView]:
    return [view for view in views if not view.no_steps]


def _undivided(view: RankView) -> RankView | None:
    """The rank with everything that its devices did as one step; None where nothing they did has a duration."""
    devices = [
        replace(
            device,
            windows=[Step(0, *device.operations.span_ns)],
            launched_in=np.zeros(len(device.operations.rows), dtype=np.int64),
        )
        for device in view.devices
        if device.operations.span_ns[0] < device.operations.span_ns[1]
    ]
    if not devices:
        return None
    begins, ends = zip(*(device.operations.span_ns for device in devices), strict=True)
    return replace(view, steps=[Step(0, min(begins), max(ends))], devices=devices, no_steps="")
