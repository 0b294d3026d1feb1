"""Steps that run an optimizer, or communicate, where no other step does: the others are then micro-batches of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dptune.measure.steps.windows import OUTSIDE
from dptune.measure.views import RankView
from dptune.trace.kernels import OPTIMIZER_KERNEL_NAME, Work


def exclusive(views: Sequence[RankView], numbers: set[int]) -> set[int]:
    """Of these steps those that run an optimizer, or communicate, where none of the others does."""
    found: set[int] = set()
    for own in views if numbers else ():
        for device in own.devices:
            ran = device.operations
            optimizer = own.columns.named(OPTIMIZER_KERNEL_NAME.search, ran.rows)
            for wanted in (ran.work == Work.COMMUNICATION, optimizer):
                places = np.unique(device.launched_in[wanted & (device.launched_in != OUTSIDE)])
                holding = {own.steps[at].number for at in places.tolist()}
                found |= holding if holding <= numbers else set()
    return found


def communicating(view: RankView) -> set[int]:
    """The numbers of the steps of a rank that communicate."""
    places = [
        device.launched_in[(device.operations.work == Work.COMMUNICATION) & (device.launched_in != OUTSIDE)]
        for device in view.devices
    ]
    return {view.steps[at].number for at in np.unique(np.concatenate(places)).tolist()} if places else set()
