"""What a device did with each nanosecond, as exclusive sets of time, and the accounts of windows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dptune.measure.intervals import NOTHING, Intervals, Ints, interval
from dptune.measured import CLASSES, Account
from dptune.trace.kernels import Work

Causes = Callable[[Intervals], dict[str, Intervals]]


@dataclass(frozen=True, eq=False)
class Split:
    """When the collectives of a rank moved data, and when they waited for a rank to come; the two may overlap."""

    transfer: Intervals = NOTHING
    waiting: Intervals = NOTHING

    def since(self, base_ns: int) -> Split:
        """The same in nanoseconds since `base_ns`."""
        return Split(self.transfer.earlier(base_ns), self.waiting.earlier(base_ns))


@dataclass(frozen=True, eq=False)
class Timeline:
    """Disjoint sets that cover [start, end), by the field of `Account` that each stands for."""

    start_ns: int
    end_ns: int
    classes: dict[str, Intervals]
    communication: Intervals

    def accounts(self, start_ns: Ints, end_ns: Ints) -> list[Account]:
        """The account of each window [start, end) inside the timeline."""
        found = {name: self.classes[name].lengths(start_ns, end_ns).tolist() for name in CLASSES}
        communication = self.communication.lengths(start_ns, end_ns).tolist()
        accounts = []
        for at, window_ns in enumerate((end_ns - start_ns).tolist()):
            parts = {name: lengths[at] for name, lengths in found.items()}
            exposed = sum(parts[name] for name in EXPOSED)
            accounts.append(
                Account(
                    window_ns=window_ns,
                    **parts,
                    communication_ns=communication[at],
                    hidden_communication_ns=communication[at] - exposed,
                )
            )
        return accounts

    def account(self, start_ns: int, end_ns: int) -> Account:
        """The account of one window."""
        return self.accounts(np.array([start_ns], dtype=np.int64), np.array([end_ns], dtype=np.int64))[0]


EXPOSED = ("exposed_transfer_ns", "exposed_waiting_ns", "exposed_unsplit_ns")


def timeline(start_ns: int, end_ns: int, time: dict[Work, Intervals], split: Split, causes: Causes) -> Timeline:
    """The timeline of [start, end) from the union of each class of work.

    Each nanosecond goes to the highest class active: compute > communication > copy > memset > idle; exposed
    communication in which anything moves data is transfer. `causes` parts the idle time by `<cause>_idle_ns`.
    """
    compute, communication, copy, memset = (time[work].within(start_ns, end_ns) for work in Work)
    exposed = communication - compute
    above = compute | communication
    copying = copy - above
    above |= copy
    setting = memset - above
    idle = interval(start_ns, end_ns) - (above | memset)
    return Timeline(
        start_ns,
        end_ns,
        {
            "compute_ns": compute,
            **exposed_parts(exposed, split),
            "copy_ns": copying,
            "memset_ns": setting,
            **causes(idle),
        },
        communication,
    )


def exposed_parts(exposed: Intervals, split: Split) -> dict[str, Intervals]:
    """Exposed communication by class of the account: transfer, waiting, and what is not known to be either."""
    transfer = exposed & split.transfer
    unmoved = exposed - transfer
    waiting = unmoved & split.waiting
    return {"exposed_transfer_ns": transfer, "exposed_waiting_ns": waiting, "exposed_unsplit_ns": unmoved - waiting}
