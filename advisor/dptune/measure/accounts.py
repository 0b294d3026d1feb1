"""The accounts of every rank, device and step, and their sum."""

from __future__ import annotations

from dptune.measure.balance import account
from dptune.measure.views import DeviceView, RankView
from dptune.measured import Account, DeviceFigures, StepAccount


def device_figures(view: RankView, device: DeviceView) -> DeviceFigures:
    """One device: its steps, and the whole recording from its first operation to the end of its last."""
    own = device.operations
    steps = [
        StepAccount(
            number=window.number,
            start_ns=window.start_ns,
            account=account(window.start_ns, window.end_ns, own.time, view.loading),
        )
        for window in device.windows
    ]
    return DeviceFigures(
        device=own.device,
        steps=steps,
        whole=account(*own.span_ns, own.time, view.loading),
        device_operations=len(own.rows),
        kernels=own.kernels,
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
