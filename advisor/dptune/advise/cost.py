"""Cost of steps at a price per device and hour, and the saving of each recommendation."""

from __future__ import annotations

from dptune.advice import Cost, CostSaving, Report

_HOUR_NS = 3600e9
STEPS = 1000
_ON_CPU = "`--gpu-hour-price` is the price of a GPU, and this run computes on CPUs"


def with_cost(report: Report, gpu_hour_price: float) -> Report:
    """The report with its cost: of the mean step, on all devices of the run; of those that were read, if it is unknown
    how many there are. Where ranks may share a GPU, an interval: on the fewest devices and on the most.
    """
    measured = report.measured
    efficiency = measured.known("efficiency")
    read = sum(
        bool(device.steps)
        for rank in measured.ranks
        if rank.rank == min(rank.gpu_ranks, default=rank.rank)  # a GPU that ranks share is paid for once
        for device in rank.devices
    )
    doubt = efficiency.shared_doubt if efficiency else ""
    devices = None if doubt else (efficiency.known("all_devices") if efficiency else None) or read or None
    step_ns = measured.step.rate_ns
    on_cpu = measured.known("device_kind") == "cpu"
    each = STEPS * step_ns / _HOUR_NS * gpu_hour_price if step_ns and not on_cpu else None
    between = efficiency.devices_between if efficiency and each else []
    cost = each * devices if each and devices else None
    costs = [each * count for count in between] if each else []
    ends = costs or [cost]
    no_devices = doubt or "the number of devices is not known"
    no_cost = _ON_CPU if on_cpu else no_devices if step_ns else "the step time is not known"
    savings = [
        CostSaving(
            rule=advice.rule,
            low=ends[0] * advice.saves.low_share,
            high=ends[-1] * advice.saves.high_share,
            large_unknown=advice.saves.large_unknown,
        )
        for advice in report.advice
        if ends[0] is not None and ends[-1] is not None and advice.saves is not None
    ]
    figures = {"devices": (devices, no_devices), "per_1000_steps": (cost, no_cost)}
    about = {"devices_between": between, "per_1000_steps_between": costs, "savings": savings}
    found = Cost.of(figures, gpu_hour_price=gpu_hour_price, **about)
    return report.model_copy(update={"cost": found})
