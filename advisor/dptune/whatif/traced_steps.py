"""What a replay of traced steps cannot claim: the profiler slows the host, and not the devices."""

from __future__ import annotations

from collections.abc import Mapping

from dptune.knobs import Value
from dptune.measured import Measured
from dptune.whatif.cpu.model import StepModel
from dptune.whatif.gpu.graph import Kind
from dptune.whatif.gpu.program import Program

HOST_LIMITS = "the traced host, slowed by the profiler, limits the replay: only an upper bound of the saving is known"
_ADDS_CALLS = "precision.autocast"  # casts are launched by a host that is slower than without the profiler
_LOADER = "loader.num_workers"


def why_only_a_bound(
    before: StepModel | Program, after: StepModel | Program, changes: Mapping[str, Value], difference_ns: float
) -> str:
    """Why no slowdown is predicted, where devices compute less with the changes and only calls of the host make the
    traced step longer; else empty.
    """
    if not isinstance(before, Program) or not isinstance(after, Program):
        return ""
    slower_by_host = difference_ns > 0 and after.busy_ns() < before.busy_ns()
    return HOST_LIMITS if _ADDS_CALLS in changes and slower_by_host else ""


def least_of_devices_ns(before: StepModel | Program, step_ns: float, floor_ns: float) -> float:
    """The step where devices compute `floor_ns` of it and the host takes as long as before, ns: it becomes shorter by
    no more than the compute does. With communication, which shorter kernels slow less: `floor_ns`.
    """
    if not isinstance(before, Program) or before.messages:
        return floor_ns
    return max(floor_ns, step_ns - (min(step_ns, before.busy_ns()) - floor_ns))


def bound_ns(before: StepModel | Program, step_ns: float, low_ns: float, floor_ns: float) -> float:
    """A bound by replay, ns; if devices compute less with the changes (`floor_ns` of a step), no more than they allow:
    without the profiler the host may not limit the step, and a replay hides what they save.
    """
    if not isinstance(before, Program) or floor_ns >= min(step_ns, before.busy_ns()):
        return low_ns
    return min(low_ns, least_of_devices_ns(before, step_ns, floor_ns))


def with_room(least: float, step_ns: float, program: StepModel | Program) -> float:
    """The same at best, in ns: a host that limits the step spends time on its loader while no device is idle."""
    if not least or not isinstance(program, Program):
        return least
    waits: dict[int, float] = {}
    for place in program.places((Kind.INPUT,)):
        rank = program.ranks[place]
        waits[rank] = waits.get(rank, 0.0) + sum(
            edge.lag_ns for edge in program.edges[place] if edge.kind == Kind.INPUT
        )
    steps = max(1, len({step.number for step in program.steps}))
    return min(least, max(0.0, step_ns - max(waits.values(), default=0.0) / steps))


def least_ns(measured: Measured, changes: Mapping[str, Value]) -> float:
    """The traced step without the time that the device which waits longest in each step is idle for input, ns: workers
    alone make no step shorter. 0 for other changes, untraced steps, CPUs, and where the account is not known.
    """
    if changes.keys() != {_LOADER} or measured.step.basis == "untraced" or measured.known("account") is None:
        return 0.0
    if measured.known("device_kind") == "cpu":
        return 0.0
    by_step: dict[int, int] = {}
    for step in (step for rank in measured.ranks for device in rank.devices for step in device.steps):
        by_step[step.number] = max(by_step.get(step.number, 0), step.account.input_idle_ns)
    waits_ns = sum(by_step.values()) / max(1, len(by_step))
    return measured.step.time_ns * max(0.0, 1 - waits_ns / measured.traced_step_ns)
