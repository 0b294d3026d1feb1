"""Where the nanoseconds of a window went: exclusive classes that sum to it exactly."""

from __future__ import annotations

from dptune.measure.intervals import Intervals, interval
from dptune.measured import Account
from dptune.trace.kernels import Work


def account(start_ns: int, end_ns: int, time: dict[Work, Intervals], loading: Intervals) -> Account:
    """The account of [start_ns, end_ns). `time` is the union of each class, `loading` that of waiting for input.

    Each nanosecond goes to the highest class active: compute > communication > copy > memset > idle; what is idle
    while the script waits for its loader is input.
    """
    compute, communication, copy, memset = (time[work].within(start_ns, end_ns) for work in Work)
    exposed = communication - compute
    above = compute | communication
    copying = copy - above
    above |= copy
    setting = memset - above
    idle = interval(start_ns, end_ns) - (above | memset)
    feeding = idle & loading.within(start_ns, end_ns)
    return Account(
        window_ns=end_ns - start_ns,
        compute_ns=compute.total_ns,
        exposed_communication_ns=exposed.total_ns,
        copy_ns=copying.total_ns,
        memset_ns=setting.total_ns,
        input_idle_ns=feeding.total_ns,
        unexplained_idle_ns=idle.total_ns - feeding.total_ns,
        communication_ns=communication.total_ns,
        hidden_communication_ns=communication.total_ns - exposed.total_ns,
    )
