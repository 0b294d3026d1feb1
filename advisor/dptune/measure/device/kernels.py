"""Which kernels the steps run: how many, how long, of what kind, and those with the most time.

Counted are kernels that the steps launched, as for collectives and copies: those queued before the first step are not.
Time is that of unions inside the windows of the steps: two kernels of one name that run at once count once. A CPU runs
none: there it is the operators by their own time, without that of the operators inside them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from dptune.measure.device.kernel_kinds import COMMUNICATION, KERNEL_KINDS, kernel_kind
from dptune.measure.device.loss_kernels import is_compiled, is_likelihood, is_log_softmax, is_of_loss
from dptune.measure.device.operator_time import computing, own_time
from dptune.measure.device.phases import bounds
from dptune.measure.intervals import NOTHING, Intervals, Ints, Mask, first_begun
from dptune.measure.steps.windows import OUTSIDE
from dptune.measure.views import DeviceView, RankView
from dptune.measured import Account, KernelFigures, KernelTime
from dptune.trace.kernels import Work

MOST = 12  # of those that are named
SHORT_NS = 10_000  # about what it takes the host to launch one: a device that runs only shorter ones waits for it

_ON_CPU = "a CPU runs no kernels"
_NONE_LAUNCHED = "it runs in the steps, but none of them launched it"


@dataclass(frozen=True, eq=False)
class _Ran:
    """What a device ran: name and duration of those that its steps launched, and the time inside the steps by name.

    `communicating` are the names of which every kernel communicates.
    """

    names: tuple[str, ...]
    name_id: Ints
    dur_ns: Ints
    total_ns: dict[str, int]
    communicating: frozenset[str] = frozenset()


def kernels(devices: Iterable[tuple[RankView, DeviceView]], account: Account | None) -> KernelFigures | None:
    """The kernels of all devices that have steps, or the operators of a CPU; None where there are none of either."""
    stepped = [(view, device) for view, device in devices if device.windows]
    on_gpu = [(view, device) for view, device in stepped if not device.operations.on_cpu]
    ran = [_kernels(view, device) for view, device in on_gpu]
    if not on_gpu:
        ran = [_operators(view, device) for view, device in stepped]
    durations = np.concatenate([np.zeros(0, dtype=np.int64), *(device_kernels.dur_ns for device_kernels in ran)])
    if account is None or not len(durations):
        return None
    kinds = _kinds(on_gpu)
    figures = {
        "short_share": float((durations < SHORT_NS).mean()) if on_gpu else None,
        "launch_bound_share": account.share("launch_idle_ns") if on_gpu else None,
        "kinds_ns": {kind: time_ns for kind, time_ns in kinds.items() if time_ns} if on_gpu else None,
    }
    steps = sum(view.windows for view in {id(view): view for view, _ in stepped}.values())
    whole_ns = sum(window.length_ns for _, device in stepped for window in device.windows)
    figures |= _of_losses(on_gpu, ran, steps, whole_ns)
    return KernelFigures(
        counted="kernels" if on_gpu else "operators",
        per_step=len(durations) / steps,
        median_ns=round(float(np.median(durations))),
        total_ns=sum(kinds.values()) if on_gpu else int(durations.sum()),
        **figures,
        top=_top(ran, steps, whole_ns, bool(on_gpu)),
        missing={name: _ON_CPU for name, value in figures.items() if value is None},
    )


def _kernels(view: RankView, device: DeviceView) -> _Ran:
    columns, rows, windows = view.columns, _rows(device), _windows(device)
    communicates = _communicating(device)
    communicating_ids, others = (np.unique(columns.name_id[rows[mask]]) for mask in (communicates, ~communicates))
    name_id, start, end = columns.name_id[rows].astype(np.int64), columns.ts_ns[rows], columns.ends(rows)
    numbers, at = np.unique(name_id, return_inverse=True)
    inside = np.zeros(len(numbers), dtype=np.int64)
    np.add.at(inside, at, windows.lengths(*first_begun(start, end, at)))
    total = {columns.names[n]: ns for n, ns in zip(numbers.tolist(), inside.tolist(), strict=True) if ns}
    launched = device.launched_in[_chosen(device)] != OUTSIDE
    names = frozenset(columns.names[number] for number in np.setdiff1d(communicating_ids, others).tolist())
    return _Ran(columns.names, name_id[launched], columns.dur_ns[rows[launched]], total, names)


def _operators(view: RankView, device: DeviceView) -> _Ran:
    operations = device.operations
    rows = computing(view.columns, operations.rows[(operations.work == Work.COMPUTE) & (device.launched_in != OUTSIDE)])
    name_id, time = view.columns.name_id[rows].astype(np.int64), own_time(view.columns, rows)
    numbers, at = np.unique(name_id, return_inverse=True)
    total = np.zeros(len(numbers), dtype=np.int64)
    np.add.at(total, at, time)
    names = view.columns.names
    return _Ran(
        names, name_id, time, {names[n]: ns for n, ns in zip(numbers.tolist(), total.tolist(), strict=True) if ns}
    )


def _kinds(on_gpu: list[tuple[RankView, DeviceView]]) -> dict[str, int]:
    """Time inside the steps by kind; what several kinds run at once belongs to the first of `KERNEL_KINDS`."""
    found = dict.fromkeys(KERNEL_KINDS, 0)
    for view, device in on_gpu:
        columns, rows = view.columns, _rows(device)
        numbers, at = np.unique(columns.name_id[rows], return_inverse=True)
        kind = np.array([KERNEL_KINDS.index(kernel_kind(columns.names[n])) for n in numbers], dtype=np.int64)[at]
        kind[_communicating(device)] = KERNEL_KINDS.index(COMMUNICATION)
        windows, above = _windows(device), NOTHING
        for number, name in enumerate(KERNEL_KINDS):
            kind_rows = rows[kind == number]
            time = (windows & Intervals.union(columns.ts_ns[kind_rows], columns.ends(kind_rows))) - above
            found[name] += time.total_ns
            above |= time
    return found


def _of_losses(
    on_gpu: Sequence[tuple[RankView, DeviceView]], ran: Sequence[_Ran], steps: int, whole_ns: int
) -> dict[str, float | None]:
    """Share of the steps and number of the kernels of cross entropies; None on a CPU."""
    figures = ("loss_share", "loss_calls", "loss_compiled_share")
    if not on_gpu:
        return dict.fromkeys(figures)
    names = {name for device_kernels in ran for name in device_kernels.total_ns}
    if not any(map(is_likelihood, names)) or not any(map(is_log_softmax, names)):
        return dict.fromkeys(figures, 0.0)
    calls = 0
    for device_kernels in ran:
        numbers = [number for number, name in enumerate(device_kernels.names) if is_of_loss(name)]
        calls += int(np.isin(device_kernels.name_id, numbers).sum())
    compiled = _named_ns(on_gpu, lambda name: is_of_loss(name) and is_compiled(name))
    values = _named_ns(on_gpu, is_of_loss) / whole_ns, calls / steps, compiled / whole_ns
    return dict(zip(figures, values, strict=True))


def _named_ns(on_gpu: Iterable[tuple[RankView, DeviceView]], named: Callable[[str], bool]) -> int:
    """The time of kernels with such names inside the steps, a union for each device."""
    total = 0
    for view, device in on_gpu:
        rows = _rows(device)
        rows = rows[view.columns.named(named, rows)]
        total += (_windows(device) & Intervals.union(view.columns.ts_ns[rows], view.columns.ends(rows))).total_ns
    return total


def _top(ran: list[_Ran], steps: int, whole_ns: int, on_gpu: bool) -> list[KernelTime]:
    """Those names with the most time, the longest first."""
    total: dict[str, int] = {}
    for device_kernels in ran:
        for name, time_ns in device_kernels.total_ns.items():
            total[name] = total.get(name, 0) + time_ns
    found = []
    for name in sorted(total, key=lambda name: (-total[name], name))[:MOST]:
        durations = np.concatenate(
            [
                device_kernels.dur_ns[device_kernels.name_id == device_kernels.names.index(name)]
                for device_kernels in ran
                if name in device_kernels.names
            ]
        )
        figures = {
            "kind": (_kind(name, ran) if on_gpu else None, _ON_CPU),
            "median_ns": (round(float(np.median(durations))) if len(durations) else None, _NONE_LAUNCHED),
        }
        found.append(
            KernelTime.of(
                figures,
                name=name,
                calls_per_step=len(durations) / steps,
                total_ns=total[name],
                step_share=total[name] / whole_ns,
            )
        )
    return found


def _kind(name: str, ran: list[_Ran]) -> str:
    return COMMUNICATION if any(name in device_kernels.communicating for device_kernels in ran) else kernel_kind(name)


def _rows(device: DeviceView) -> Ints:
    """Kernels that compute or communicate."""
    return np.asarray(device.operations.rows[_chosen(device)], dtype=np.int64)


def _chosen(device: DeviceView) -> Mask:
    return np.asarray(device.operations.work <= Work.COMMUNICATION, dtype=np.bool_)


def _communicating(device: DeviceView) -> Mask:
    """Which of them communicate, some of them by what launched them."""
    return np.asarray(device.operations.work[_chosen(device)] == Work.COMMUNICATION, dtype=np.bool_)


def _windows(device: DeviceView) -> Intervals:
    return Intervals.union(*bounds(device.windows))
