"""The accounts of every rank, device and step, and their sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dptune.measure.device import idle
from dptune.measure.device.timeline import Split, Timeline, timeline
from dptune.measure.views import DeviceView, RankView
from dptune.measured import Account, DeviceFigures, StepAccount


def device_timeline(view: RankView, device: DeviceView, split: Split) -> Timeline:
    """The timeline of a device over its whole recording and all its steps."""
    operations = device.operations
    start_ns = min([operations.span_ns[0], *(window.start_ns for window in device.windows)])
    end_ns = max([operations.span_ns[1], *(window.end_ns for window in device.windows)])
    if device.record is not None:
        return device.record.timeline(start_ns, end_ns, split)
    return timeline(
        start_ns,
        end_ns,
        operations.time,
        split,
        lambda gaps: idle.causes(gaps, view.columns, operations, view.host),
    )


def device_figures(device: DeviceView, spent: Timeline) -> DeviceFigures:
    """One device: its steps, and the whole recording from its first operation to the end of its last."""
    operations, windows = device.operations, device.windows
    accounts = spent.accounts(
        np.array([window.start_ns for window in windows], dtype=np.int64),
        np.array([window.end_ns for window in windows], dtype=np.int64),
    )
    return DeviceFigures(
        device=operations.device,
        steps=[
            StepAccount(number=window.number, start_ns=window.start_ns, account=account)
            for window, account in zip(windows, accounts, strict=True)
        ],
        whole=spent.account(*operations.span_ns),
        device_operations=device.record.operations if device.record else len(operations.rows),
        kernels=operations.kernels,
    )


def total(devices: list[DeviceFigures]) -> Account | None:
    """The sum over steps and devices; None where no device has a step."""
    accounts = [step.account for device in devices for step in device.steps]
    if not accounts:
        return None
    summed = accounts[0]
    for each in accounts[1:]:
        summed = summed + each
    return summed


def mean_step_ns(account: Account | None, devices: Mapping[int, Sequence[DeviceFigures]]) -> int | None:
    """The mean window of the account, which is the sum over all of them; None without one."""
    windows = sum(len(device.steps) for rank in devices.values() for device in rank)
    return None if account is None else round(account.window_ns / windows)
