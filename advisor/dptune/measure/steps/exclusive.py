"""Steps that run an optimizer, or communicate, where no other step does: the others are then micro-batches of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dptune.measure.intervals import Mask
from dptune.measure.steps.windows import OUTSIDE
from dptune.measure.views import DeviceView, RankView
from dptune.trace.kernels import OPTIMIZER_KERNEL_NAME, Work


def exclusive(views: Sequence[RankView], numbers: set[int]) -> set[int]:
    """Of these steps those that run an optimizer, or communicate, where none of the others does."""
    found: set[int] = set()
    for view in views if numbers else ():
        for device in view.devices:
            optimizer = (
                device.record.updating
                if device.record is not None
                else view.columns.named(OPTIMIZER_KERNEL_NAME.search, device.operations.rows)
            )
            for wanted in (device.operations.work == Work.COMMUNICATION, optimizer):
                holding = _launching(view, device, wanted)
                found |= holding if holding <= numbers else set()
    return found


def communicating(view: RankView) -> set[int]:
    """The numbers of the steps of a rank that communicate."""
    found: set[int] = set()
    for device in view.devices:
        found |= _launching(view, device, device.operations.work == Work.COMMUNICATION)
    return found


def _launching(view: RankView, device: DeviceView, wanted: Mask) -> set[int]:
    """The numbers of the steps that launch any of the wanted operations."""
    places = device.launched_in[wanted & (device.launched_in != OUTSIDE)]
    return {view.steps[at].number for at in np.unique(places).tolist()}
