"""The model of the recorded process -> that of the middle one of all in which the script was timed.

The step of another process takes longer for one of two reasons. Its threads compute longer: what they take in backward
passes, and beside those, is timed in each process, so the model is brought to the middle of them. And it waits longer
for its collectives: a connection is slower or faster from one process to the next (of four that ran one script over
200 Mbit/s two took 121 ms of a step for its collectives, and two 142; all computed for 37), and no sweep of links shows
which a script will get. What the measured step takes beyond the model's is mostly theirs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import exp, log
from statistics import median
from typing import NamedTuple

from dptune.measured import Missing
from dptune.runfile.facts import Facts
from dptune.whatif.cpu.model import Pass, RankStep, StepModel
from dptune.whatif.cpu.replay import step_ns
from dptune.whatif.cpu.step_times import alone_ns, computed_ns, loader_waits

# How far the collectives of a process may be from the link's fit, as a logarithm, and what else a step's model
# is off, of the step: how sensitive the step is to its collectives shows how much of what it lacks is theirs.
_OF_COMMUNICATION, _OF_STEP = 0.1, 0.02
_TRIED = 1.25  # times as long, and as short


def computing(model: StepModel, processes: Sequence[Mapping[int, Facts]]) -> StepModel:
    """The model of the first process with what threads compute in the middle one of all."""
    times = {rank: _times([facts.get(rank) for facts in processes]) for rank in model.steps}
    if model.sharding is not None:  # what is not in backward passes holds all-gathers, which are no compute
        times = {rank: time._replace(rest=time.backward) for rank, time in times.items()}

    def of(pass_: Pass, factors: _Times) -> Pass:
        scaled = pass_.scaled(factors.backward, factors.loader)
        scaled = scaled.lasting(pass_.forward_ns * factors.rest, scaled.backward_ns)
        return replace(scaled, sent_ns=pass_.sent_ns * factors.rest)

    return replace(
        model,
        steps={
            rank: [
                RankStep(tuple(of(pass_, time) for pass_ in step.passes), step.after_ns * time.rest) for step in steps
            ]
            for (rank, steps), time in zip(model.steps.items(), times.values(), strict=True)
        },
        others_ns={rank: ns * times[rank].rest for rank, ns in model.others_ns.items()},
        buffers_ns={rank: ns * times[rank].rest for rank, ns in model.buffers_ns.items()},
    )


def communicating(model: StepModel, measured_ns: float) -> StepModel:
    """The model with collectives longer, or shorter, by what the measured step takes beyond the model's."""
    longer, shorter = (step_ns(replace(model, communication_times=times)) for times in (_TRIED, 1 / _TRIED))
    sensitivity_ns = (longer - shorter) / (2 * log(_TRIED))  # ns for each unit of the logarithm
    lacks = measured_ns - step_ns(model)
    off = (_OF_STEP * measured_ns) ** 2
    return replace(
        model,
        communication_times=exp(
            lacks * sensitivity_ns * _OF_COMMUNICATION**2 / ((sensitivity_ns * _OF_COMMUNICATION) ** 2 + off)
        ),
    )


class _Times(NamedTuple):
    """How many times as long as in the first process a rank takes in the middle one: in backward passes, and so on."""

    backward: float = 1.0
    rest: float = 1.0
    loader: float = 1.0


def _times(processes: Sequence[Facts | None]) -> _Times:
    found = [parts for facts in processes if (parts := _parts(facts)) is not None]
    return _Times(
        *(median(by_process) / by_process[0] if by_process[0] else 1.0 for by_process in zip(*found, strict=True))
    )


def _parts(facts: Facts | None) -> tuple[float, float, float] | None:
    """What a rank computes in backward passes, what else it does, its waits for batches; None where not known."""
    if facts is None:
        return None
    window = facts.window("untraced")
    try:
        return computed_ns(window), alone_ns(window), loader_waits(facts)
    except Missing:
        return None
