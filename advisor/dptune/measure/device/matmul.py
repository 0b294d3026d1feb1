"""Time in matrix products and convolutions: in fp32, and on tensor cores."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dptune.measure.device.operator_kinds import operator_shares
from dptune.measure.device.precisions import has_tensor_cores, is_fp32, is_tensor_core, is_unclassified
from dptune.measure.intervals import Intervals
from dptune.measure.views import RankView
from dptune.measured import MatmulFigures
from dptune.runfile.facts import DeviceFacts
from dptune.trace.events import Device
from dptune.trace.kernels import KERNEL_CATEGORIES

_SHARES = ("fp32_share", "tensor_core_share", "unclassified_share")
_ON_GPU = "operators compute on a CPU only: this run computes on another device"
_NONE = "no matrix product and no convolution ran in the steps"
_ON_CPU = "precision is known from GPU kernel names only: this run computes on the CPU"


def matmul(views: Sequence[RankView], device: DeviceFacts | None) -> MatmulFigures:
    """Shares of the steps' windows, over all ranks and devices; unions, as everywhere."""
    on_cpu = (
        device.kind == "cpu"
        if device
        else all(rank_device.operations.on_cpu for v in views for rank_device in v.devices)
    )
    if not views:
        why = "no trace was recorded"
        return MatmulFigures(missing=dict.fromkeys((*_SHARES, "tensor_cores", "operator_shares"), why))
    if on_cpu and any(v.devices for v in views):
        shares = operator_shares(views)
        missing = dict.fromkeys(_SHARES, _ON_CPU) | ({} if shares else {"operator_shares": _NONE})
        return MatmulFigures(tensor_cores=False, operator_shares=shares or None, missing=missing)
    tensor_cores = has_tensor_cores(*_identity(views, device))
    missing = {"operator_shares": _ON_GPU}
    if tensor_cores is None:
        missing["tensor_cores"] = "the trace does not name the device: record with `dptune profile`"
    whole = sum(window.length_ns for v in views for rank_device in v.devices for window in rank_device.windows)
    if not whole:
        why = next((v.no_steps for v in views if v.no_steps), "no step was recorded")
        return MatmulFigures(tensor_cores=tensor_cores, missing=missing | dict.fromkeys(_SHARES, why))
    kernels = sum(_time(v, lambda _: True) for v in views)
    if not kernels:
        missing |= {"unclassified_share": "no kernel ran in the steps"}
    return MatmulFigures(
        fp32_share=sum(_time(v, is_fp32) for v in views) / whole,
        tensor_core_share=sum(_time(v, is_tensor_core) for v in views) / whole,
        unclassified_share=sum(_time(v, is_unclassified) for v in views) / kernels if kernels else None,
        tensor_cores=tensor_cores,
        missing=missing,
    )


def _time(view: RankView, wanted: Callable[[str], bool]) -> int:
    columns = view.columns
    total = 0
    for device in view.devices:
        ran = device.operations.rows
        rows = ran[columns.of_category(KERNEL_CATEGORIES, ran) & columns.named(wanted, ran)]
        time = Intervals.union(columns.ts_ns[rows], columns.ends(rows))
        total += sum(time.within(window.start_ns, window.end_ns).total_ns for window in device.windows)
    return total


def _identity(views: Sequence[RankView], device: DeviceFacts | None) -> tuple[str, int | None]:
    """Name and compute capability's major number of the device the run computes on."""
    if device is not None and device.name:
        major = device.capability.partition(".")[0]
        return device.name, int(major) if major else None
    listed = device_of(views[0])
    return (listed.name, listed.compute_major) if listed else ("", None)


def device_of(view: RankView) -> Device | None:
    """The device of the file's list that this rank ran on; the first where the list does not say."""
    by_index = {str(device.index): device for device in view.trace.devices}
    used = [ran.operations.device.partition(":")[2] for ran in view.devices]
    used_devices = [by_index[index] for index in used if index in by_index]
    return next(iter([*used_devices, *view.trace.devices]), None)
