"""What a step can spend its time on beside computing, and in what words that limits it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dptune.measured import Measured, in_ms

BOUND_SHARE = 0.15  # a step that pays this for one thing is bound by it: an error's impact
MOSTLY = 0.5  # of a step, from which on it mostly computes
NEARLY_ALL = 0.8  # from which on it computes nearly all the time
MOSTLY_COMPUTE, NO_BOTTLENECK = "Mostly compute", "No single bottleneck"
_EACH = "each step"


@dataclass(frozen=True)
class Limit:
    """Something other than computing that a step can spend its time on, and the share from which it is worth saying."""

    verdict: str
    sentence: str
    class_ns: str
    least_share: float = 0.05

    def label(self, share: float, computing: float) -> str:
        """The verdict in two or three words where the limit takes `share` of a step, and compute takes `computing`."""
        if share >= BOUND_SHARE:
            return self.verdict
        return MOSTLY_COMPUTE if computing >= MOSTLY else NO_BOTTLENECK

    def text(self, share: float, computing: float, step: str = _EACH) -> str:
        """The verdict where the limit takes `share` of `step`, and compute takes `computing`."""
        what = self.sentence.format(percent(share)).replace(_EACH, step)
        if share >= BOUND_SHARE:
            return f"{self.verdict}: {what}."
        if computing >= MOSTLY:
            return f"{MOSTLY_COMPUTE}, but {what}."
        return f"{NO_BOTTLENECK}: compute takes {percent(computing)} of {step}, and {what}."


COMMUNICATION = Limit("Communication-bound", "{} of each step waits for communication", "exposed_without_waiting_ns")
UNSPLIT = Limit(
    "Communication-bound or straggler-bound",
    "{} of each step is exposed communication or waiting for late ranks; separating them needs the traces of all ranks",
    "exposed_without_waiting_ns",
)
LATE = Limit(
    "Straggler-bound",
    "{} of each step is spent in collectives that wait for the last rank to arrive",
    "exposed_waiting_ns",
)
_BOTH = "{} of each step is exposed communication, {} is waiting for late ranks"
INPUT = Limit("Input-bound", "{} of each step waits for the data loader", "input_idle_ns")
_COPY = Limit("Copy-bound", "{} of each step waits for copies between memories", "copy_ns")
_COPY_WITHIN = Limit("Copy-bound", "{} of each step is spent on copies within one device", "copy_ns")
_COPY_UNKNOWN = Limit("Copy-bound", "{} of each step is spent waiting for copies", "copy_ns")
IDLE = Limit(
    "Idle",
    "the device is idle for {} of each step",
    "other_idle_ns",
    0.15,  # 5 to 10 % of it is common on healthy runs
)
_IDLE_CAUSES = {
    "gc_idle_ns": "while Python collects garbage",
    "malloc_idle_ns": "while the driver allocates or frees device memory",
    "sync_idle_ns": "while the script is blocked in a call",
    "launch_idle_ns": "while the host launches the next operation",
    "dependency_idle_ns": "while launched work has not started",
    "host_idle_ns": "while the host runs Python, file I/O or sleeps",
}
_ALMOST_ALL = 0.95  # of the idle time
_UNKNOWN = ", {} is one or the other"
_WORTH_NAMING = 0.005  # of a step, from which on a part of communication or idle time is named beside the other
_PARTS = {
    "exposed_transfer_ns": "exposed communication",
    "exposed_unsplit_ns": "exposed communication or waiting",
    "exposed_waiting_ns": "waiting for ranks",
    "input_idle_ns": "waiting for input",
    "copy_ns": "copies",
    "other_idle_ns": "idle",
}


def shares(measured: Measured) -> dict[Limit, float]:
    """What a step spends on each limit. On a CPU the loader's wait is that of the script, where it is known: it was
    timed without the profiler. A GPU may compute meanwhile: there only the time counts in which it is idle.
    """
    communication = UNSPLIT if _unsplit(measured) else COMMUNICATION
    found = {limit: measured.step_share(limit.class_ns) for limit in (communication, LATE, INPUT, IDLE)} | _copies(
        measured
    )
    wait = measured.input.known("wait_share")
    if wait is not None and measured.known("device_kind") in ("cpu", None):
        found[INPUT] = wait
    return found


def _copies(measured: Measured) -> dict[Limit, float]:
    """Exposed copies by where they move data: between memories, within one device as a clone does, or not known."""
    exposed_ns = dict.fromkeys((_COPY, _COPY_WITHIN, _COPY_UNKNOWN), 0)
    for copies in measured.known("copies") or ():
        limit = {"d2d": _COPY_WITHIN, "unknown": _COPY_UNKNOWN}.get(copies.direction, _COPY)
        exposed_ns[limit] += copies.exposed_ns
    share, whole_ns = measured.step_share("copy_ns"), sum(exposed_ns.values())
    if not whole_ns:
        return {_COPY_UNKNOWN: share}
    return {limit: share * part / whole_ns for limit, part in exposed_ns.items()}


def greatest(found: Mapping[Limit, float], unsplit: float = 0.0) -> tuple[Limit, float] | None:
    """What limits the step most, and its share, where that is worth saying; None where nothing is.

    `unsplit` is the share of communication of which it is not known whether it waits.

    Communication and waiting for late ranks are one: a rank that waits in a collective does not compute for either.
    """
    communication = next(limit for limit in found if limit.class_ns == "exposed_without_waiting_ns")
    moved, waited = found[communication], found[LATE]
    candidates = {limit: share for limit, share in found.items() if limit not in (communication, LATE)}
    larger = communication if moved >= waited else LATE
    if communication is not UNSPLIT and min(moved, waited) >= _WORTH_NAMING:
        verdict = COMMUNICATION.verdict if moved >= waited else LATE.verdict
        if moved - unsplit < waited <= moved:  # what is not known decides
            verdict = UNSPLIT.verdict
        least = larger.least_share if max(moved, waited) >= larger.least_share else 2 * larger.least_share
        words = _BOTH.format(percent(moved - unsplit), percent(waited))
        if unsplit >= _WORTH_NAMING:
            words += _UNKNOWN.format(percent(unsplit))
        both = Limit(verdict, words, larger.class_ns, least)
        candidates[both] = moved + waited
    elif communication is UNSPLIT:
        candidates[communication] = moved + waited
    else:
        candidates[larger] = found[larger]
    worth = [limit for limit, share in candidates.items() if share >= limit.least_share]
    most = max(worth, key=lambda limit: candidates[limit], default=None)
    return None if most is None else (most, candidates[most])


def idle_causes(measured: Measured) -> str:
    """Why the device is idle, as a clause: waiting for input, and what takes more than half of the other idle time."""
    idle = {name: measured.step_share(name) for name in _IDLE_CAUSES}
    name = max(idle, key=lambda cause: idle[cause])
    waits, whole = measured.step_share(INPUT.class_ns), measured.step_share(IDLE.class_ns)
    causes = [f"{percent(waits)} waiting for input"] if waits >= _WORTH_NAMING else []
    if idle[name] > whole / 2:
        much = "almost all" if idle[name] >= _ALMOST_ALL * whole and not causes else percent(idle[name])
        causes.append(f"{much} {_IDLE_CAUSES[name]}")
    return f", {' and '.join(causes)}" if causes else ""


def of_step(measured: Measured) -> str:
    """What the shares of the account refer to: the mean step if steps vary so much that no single step fits."""
    return "the mean step" if measured.step.uneven else _EACH


def parts(measured: Measured) -> str:
    """The account in one line; what may be communication or waiting is named apart from both."""
    class_shares = [(name, measured.step_share(class_ns)) for class_ns, name in _PARTS.items()]
    spent = [f"{name} {percent(share)}" for name, share in class_shares if share >= 0.001]
    if measured.step_share(INPUT.class_ns) >= 0.001:  # which is idle time, too
        spent = [f"other {part}" if part.startswith(f"{_PARTS[IDLE.class_ns]} ") else part for part in spent]
    return ", ".join([f"compute {percent(measured.step_share('compute_ns'))}", *spent])


def percent(share: float) -> str:
    """A share in whole percent, with a digit more below two."""
    return f"{100 * share:.0f} %" if share >= 0.02 or share == 0 else f"{100 * share:.1f} %"


def milliseconds(duration_ns: float) -> str:
    """A duration in ms, three digits or all that stand before the point."""
    return f"{in_ms(duration_ns)} ms"


def _unsplit(measured: Measured) -> bool:
    """Whether ranks are missing that would tell moving data from waiting, for most of what either takes."""
    account, world = measured.step_account, measured.known("world_size")
    with_steps = sum(any(device.steps for device in rank.devices) for rank in measured.ranks)
    return (
        world is not None
        and with_steps < world
        and account.exposed_unsplit_ns > account.exposed_transfer_ns + account.exposed_waiting_ns
    )
