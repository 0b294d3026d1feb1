"""Where the nanoseconds of a window went, and those of each step of a device."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

from pydantic import Field, computed_field, model_validator

from dptune.measured.figure import Missing, Model


class Account(Model):
    """Where the nanoseconds of a window went: exclusive classes, in int64 ns, that sum to the window exactly.

    Each nanosecond belongs to the highest class active then: compute > communication > copy > memset > idle. Exposed
    communication is split where all ranks of the group are known, idle time by what the script's threads do in it.
    """

    window_ns: int = Field(description="length of the window")
    compute_ns: int = Field(0, description="union of compute, overlapped or not")
    exposed_transfer_ns: int = Field(
        0, description="exposed communication after the last rank has arrived: data is transferred"
    )
    exposed_waiting_ns: int = Field(0, description="exposed communication before the last rank has arrived")
    exposed_unsplit_ns: int = Field(
        0, description="exposed communication that cannot be split into transfer and waiting"
    )
    copy_ns: int = Field(0, description="copies while neither compute nor communication runs")
    memset_ns: int = Field(0, description="memsets while none of the classes above runs")
    input_idle_ns: int = Field(0, description="idle while the script waits for its data loader")
    gc_idle_ns: int = Field(0, description="idle while Python collects garbage")
    malloc_idle_ns: int = Field(
        0, description="idle while the host is in a driver call that allocates or frees device memory"
    )
    sync_idle_ns: int = Field(
        0,
        description="idle while the script is blocked in a call that waits for the device, or launches the next "
        "operation after it",
    )
    launch_idle_ns: int = Field(0, description="idle while the host prepares and launches the next operation")
    dependency_idle_ns: int = Field(
        0, description="idle although the next operation is launched: it waits for a dependency"
    )
    host_idle_ns: int = Field(0, description="idle while the script runs no operator: Python, file I/O, sleep")
    unexplained_idle_ns: int = Field(0, description="idle with no cause found")
    communication_ns: int = Field(0, description="union of communication: hidden + exposed; not part of the sum")
    hidden_communication_ns: int = Field(0, description="communication overlapped by compute; not part of the sum")

    @computed_field(description="communication not overlapped by compute")  # type: ignore[prop-decorator]
    @property
    def exposed_communication_ns(self) -> int:
        """Nanoseconds of communication not overlapped by compute."""
        return self.exposed_transfer_ns + self.exposed_waiting_ns + self.exposed_unsplit_ns

    @computed_field(description="nothing runs, for any cause")  # type: ignore[prop-decorator]
    @property
    def idle_ns(self) -> int:
        """Nanoseconds in which the device ran nothing."""
        return sum(getattr(self, name) for name in IDLE)

    @property
    def exposed_without_waiting_ns(self) -> int:
        """Exposed communication that is not known to be waiting for a late rank."""
        return self.exposed_transfer_ns + self.exposed_unsplit_ns

    @property
    def other_idle_ns(self) -> int:
        """Idle for any reason but input."""
        return self.idle_ns - self.input_idle_ns

    @property
    def busy_ns(self) -> int:
        """Nanoseconds in which the device ran anything."""
        return self.window_ns - self.idle_ns

    def share(self, class_ns: str) -> float:
        """The share of the window that a class takes, by its field or property name."""
        if not self.window_ns:
            raise Missing("the window holds no time")
        return float(getattr(self, class_ns)) / self.window_ns

    @property
    def overlap_share(self) -> float:
        """Hidden communication / communication; raises Missing where nothing was communicated."""
        if not self.communication_ns:
            raise Missing("no communication in the window")
        return self.hidden_communication_ns / self.communication_ns

    def within(self, window_ns: int, input_ns: int | None = None) -> Account:
        """The same work of a device in a shorter window: idle time and waiting shrink, the rest keeps its duration.

        This models a GPU without the profiler, which slows the host and not the device's operations. Where these alone
        take longer than the window (clocks differ between windows), all their classes shrink by the same factor.
        `input_ns`: how long the script waits for its loader in that window, None if not known. Waiting for input then
        keeps its duration up to that, and the other idle time shrinks: reading files is not slower with the profiler.
        Rounded as running totals: the classes sum to the window exactly.
        """
        if window_ns >= self.window_ns:
            return self
        kept = sum(getattr(self, name) for name in CLASSES if name not in ELASTIC)
        rest = self.window_ns - kept
        shrunk = Fraction(window_ns, kept) if kept > window_ns else Fraction(1)
        room = max(0, window_ns - kept)
        left = dict.fromkeys(ELASTIC, Fraction(room, rest) if rest else Fraction(0))
        if input_ns is not None and self.input_idle_ns:
            others = rest - self.input_idle_ns
            waits = max(min(self.input_idle_ns, input_ns, room), room - others)
            left = dict.fromkeys(ELASTIC, Fraction(room - waits, others) if others else Fraction(0))
            left["input_idle_ns"] = Fraction(waits, self.input_idle_ns)
        begun, running, parts = 0, Fraction(0), {}
        for name in CLASSES:
            running += getattr(self, name) * (left[name] if name in ELASTIC else shrunk)
            parts[name], begun = round(running) - begun, round(running)
        exposed = parts["exposed_transfer_ns"] + parts["exposed_waiting_ns"] + parts["exposed_unsplit_ns"]
        hidden = min(round(self.hidden_communication_ns * shrunk), parts["compute_ns"])
        return Account(window_ns=window_ns, **parts, hidden_communication_ns=hidden, communication_ns=hidden + exposed)

    @model_validator(mode="after")
    def _balances(self) -> Account:
        parts = sum(getattr(self, name) for name in CLASSES)
        if parts != self.window_ns:
            raise ValueError(f"account does not balance: parts {parts} ns, window {self.window_ns} ns")
        if self.hidden_communication_ns + self.exposed_communication_ns != self.communication_ns:
            raise ValueError("hidden + exposed communication is not the communication")
        return self

    def __add__(self, other: Account) -> Account:
        return Account.together((self, other))

    @staticmethod
    def together(accounts: Iterable[Account]) -> Account:
        """The sum of some; of none an account of no time."""
        all_of_them = list(accounts)
        return Account(**{name: sum(getattr(each, name) for each in all_of_them) for name in Account.model_fields})


CLASSES = tuple(list(Account.model_fields)[1:-2])  # the fields that sum to the window
IDLE = tuple(name for name in CLASSES if name.endswith("_idle_ns"))
ELASTIC = frozenset((*IDLE, "exposed_waiting_ns", "exposed_unsplit_ns"))  # what a slow host makes longer
HOST_IDLE = ("malloc_idle_ns", "sync_idle_ns", "launch_idle_ns", "host_idle_ns")  # the script keeps the device idle
IDLE_CAUSES = tuple(name.removesuffix("_idle_ns") for name in IDLE)


class StepAccount(Model):
    """The account of one step on one device of one rank."""

    number: int = Field(description="N of ProfilerStep#N; counted from 0 without step markers")
    start_ns: int = Field(description="start of the window on the trace's own clock")
    account: Account = Field(description="where the time of the window went")


class DeviceFigures(Model):
    """One device of one rank: its steps and the whole recording."""

    device: str = Field(description="'cpu', 'cuda:3', ...")
    steps: list[StepAccount] = Field(description="steady steps of the light window; empty where none were found")
    whole: Account = Field(description="first device operation's start to the last one's end")
    device_operations: int = Field(description="kernels, copies and memsets (on a CPU: operators and collectives)")
    kernels: int = Field(description="complete events of category kernel; 0 on a CPU")

    @property
    def total(self) -> Account:
        """Sum over the steps; raises Missing where there are none."""
        if not self.steps:
            raise Missing("no steps were found in the trace")
        return Account.together(step.account for step in self.steps)
