"""Time in matrix products and convolutions: in fp32, on tensor cores, on unaligned operands, in transposed layouts."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence

from dptune.measure.device.alignment import is_unaligned, unaligned_products
from dptune.measure.device.architectures import architecture_of, latest
from dptune.measure.device.kernel_kinds import kernel_kind
from dptune.measure.device.operator_kinds import operator_shares
from dptune.measure.device.phases import bounds
from dptune.measure.device.precisions import has_tensor_cores, is_fp32, is_tensor_core, is_unclassified
from dptune.measure.efficiency.peaks import common
from dptune.measure.intervals import Intervals, Ints
from dptune.measure.views import DeviceView, RankView
from dptune.measured import MatmulFigures
from dptune.runfile.facts import DeviceFacts
from dptune.trace.collective_kernels import MOST_CHARACTERS
from dptune.trace.events import Device
from dptune.trace.kernels import KERNEL_CATEGORIES, MTIA_CATEGORIES

_SHARES = (
    "fp32_share",
    "fp32_convolution_share",
    "tensor_core_share",
    "unclassified_share",
    "unaligned_share",
    "unaligned_sized_share",
    "layout_share",
    "layout_calls",
)
_LAYOUT = re.compile(r"nchwToNhwc|nhwcToNchw", re.IGNORECASE)
_MOST = 8  # unaligned products that are listed
_READ_FROM = 0.01  # of the steps: the sizes of fewer unaligned products are not read
_ON_GPU = "operators compute on a CPU only: this run computes on another device"
_NONE = "no matrix product and no convolution ran in the steps"
_NO_SIZES = "few products are unaligned, or the trace lacks the sizes of operators"
_ON_CPU = "precision is known from GPU kernel names only: this run computes on the CPU"
_ON_MTIA = "names of MTIA's kernels do not show on which units they ran"


def matmul(
    views: Sequence[RankView],
    device: DeviceFacts | None,
    detail: RankView | None = None,
    device_names: Collection[str] = (),
) -> MatmulFigures:
    """Shares of the steps' windows, over all ranks and devices; unions, as everywhere.

    `detail` is a window with sizes; without it they are read from the first of `views`. `device_names`: those of all
    ranks.
    """
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
    if tensor_cores is None and any(has_tensor_cores(name, None) for name in device_names):
        tensor_cores = True
    shown = latest(map(architecture_of, views)) if tensor_cores is None else None
    if shown is not None:
        tensor_cores = shown.matrix_units
    if any(has_tensor_cores(name, None) is False for name in device_names):
        tensor_cores = False
    shown_as = shown.text if shown is not None and tensor_cores is None else ""
    missing = {"operator_shares": _ON_GPU}
    if tensor_cores is None:
        missing["tensor_cores"] = "the trace does not name the device: pass `--gpu NAME`"
    whole = sum(window.length_ns for v in views for rank_device in v.devices for window in rank_device.windows)
    if not whole:
        why = next((v.no_steps for v in views if v.no_steps), "no step was recorded")
        return MatmulFigures(tensor_cores=tensor_cores, missing=missing | dict.fromkeys(_SHARES, why))
    kernels = sum(_time(v, lambda _: True) for v in views)
    if not kernels and any(len(v.columns.rows(MTIA_CATEGORIES)) for v in views):
        return MatmulFigures(tensor_cores=tensor_cores, missing=missing | dict.fromkeys(_SHARES, _ON_MTIA))
    if not kernels:
        missing |= {"unclassified_share": "no kernel ran in the steps"}
    unaligned_share = sum(_time(v, is_unaligned) for v in views) / whole
    products = []
    if unaligned_share >= _READ_FROM:
        products = unaligned_products(detail or next(v for v in views if v.devices))
    sized_share = unaligned_share * sum(product.part for product in products if product.lengths)
    if not any(product.sizes for product in products):
        missing["unaligned_sized_share"] = _NO_SIZES
    return MatmulFigures(
        unaligned_share=unaligned_share,
        unaligned_sized_share=None if "unaligned_sized_share" in missing else sized_share,
        unaligned=products[:_MOST],
        layout_share=sum(_time(v, is_layout_change) for v in views) / whole,
        layout_calls=sum(_calls(v, is_layout_change) for v in views) / sum(v.windows for v in views),
        fp32_share=sum(_time(v, is_fp32) for v in views) / whole,
        fp32_convolution_share=sum(_time(v, _convolves_in_fp32) for v in views) / whole,
        tensor_core_share=sum(_time(v, is_tensor_core) for v in views) / whole,
        unclassified_share=sum(_time(v, is_unclassified) for v in views) / kernels if kernels else None,
        tensor_cores=tensor_cores,
        architecture=shown_as,
        peaks=common({_identity(views, device)[0], *device_names} - {""}, ("fp32", "tf32", "bf16", "fp16")),
        missing=missing,
    )


def _convolves_in_fp32(name: str) -> bool:
    return is_fp32(name) and kernel_kind(name) == "convolution"


def is_layout_change(name: str) -> bool:
    """Whether this is the name of a cuDNN kernel that transposes between NCHW and NHWC."""
    return _LAYOUT.search(name[:MOST_CHARACTERS]) is not None


def _time(view: RankView, wanted: Callable[[str], bool]) -> int:
    total = 0
    for device in view.devices:
        rows = _kernels(view, device, wanted)
        time = Intervals.union(view.columns.ts_ns[rows], view.columns.ends(rows))
        total += sum(time.within(window.start_ns, window.end_ns).total_ns for window in device.windows)
    return total


def _calls(view: RankView, wanted: Callable[[str], bool]) -> int:
    return sum(
        int(Intervals.union(*bounds(device.windows)).hold(view.columns.ts_ns[_kernels(view, device, wanted)]).sum())
        for device in view.devices
    )


def _kernels(view: RankView, device: DeviceView, wanted: Callable[[str], bool]) -> Ints:
    rows = device.operations.rows
    return rows[view.columns.of_category(KERNEL_CATEGORIES, rows) & view.columns.named(wanted, rows)]


def _identity(views: Sequence[RankView], device: DeviceFacts | None) -> tuple[str, int | None]:
    """Name and compute capability's major number of the device the run computes on."""
    if device is not None and device.name:
        major = device.capability.partition(".")[0]
        return device.name, int(major) if major else None
    listed = device_of(views[0])
    return (listed.name, listed.compute_major) if listed else ("", None)


def device_of(view: RankView) -> Device | None:
    """The device of the file's list that this rank ran on."""
    return listed(view.trace.devices, [ran.operations.device for ran in view.devices])


def listed(devices: Sequence[Device], used: Sequence[str]) -> Device | None:
    """Of the devices of a file's list the one that was used, by names as in `cuda:2`.

    Files of ROCm list one device, as number 0, also where kernels ran on another: the list then names it if all in it
    have one name.
    """
    by_index = {str(device.index): device for device in devices}
    numbers = [name.partition(":")[2] for name in used]
    found = next((by_index[number] for number in numbers if number in by_index), None)
    if found is None and len({device.name for device in devices}) == 1 and (not used or any(numbers)):
        return devices[0]
    return found
