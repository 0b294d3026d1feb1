"""The optimizer updates parameters one by one, where one kernel could update them all.

## What it measures

The host's time in the optimizer's step, as a share of the traced step, where the optimizer is one that torch can fuse
(Adam, AdamW, SGD, Adagrad) and is not fused; and on a GPU not `foreach` either, which torch takes there by itself.

## Why it costs time

Without either, the step is a loop over all parameter tensors, with a dozen operators for each. Of thousands of small
tensors the calls are what takes the time; of large ones each operator reads and writes all of them once more. A fused
step reads and writes every number once.

## What to change

`fused=True` of the optimizer. Where that does not go (parameters on several kinds of devices, complex numbers), try
`foreach=True`, which on a CPU gains less.

What is said to be saved is a ceiling: all that the optimizer takes.

## When to leave it alone

- The last bits of the weights must be the same as before: the order of roundings differs.
- `torch.compile` compiles the step already.

## References

- torch.optim, "Algorithms", on foreach and fused implementations: https://pytorch.org/docs/stable/optim.html
- Measured on a CPU, one thread, AdamW (torch 2.13): fused took 0.8 instead of 3.5 ms for 17 tensors of 1.1 million
  numbers, 5 instead of 28 ms for 400 tensors of 0.1 million; `foreach` between 0.7 times and 1.8 times as long as the
  loop.
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Change, Evidence, Location, impact_of
from dptune.measured import Missing
from dptune.rule import Rule, RunView, Threshold

CAN_BE_FUSED = ("Adam", "AdamW", "SGD", "Adagrad")

WORTH_SHARE = Threshold(
    "worth_share", 0.1, "of less than that a fused step, which still takes half, saves what noise is"
)

RULE = Rule(
    code="DP603",
    name="unfused-optimizer",
    family="host",
    kind="time",
    summary="the optimizer updates parameters one by one, where one kernel could update them all",
    since="0.1",
    thresholds=(WORTH_SHARE,),
)


def check(run: RunView) -> Iterator[Advice]:
    """Propose the fused implementation where the optimizer loops, and takes a share of the step worth it."""
    cpu = run.measured.device_kind == "cpu"
    looping = [
        one
        for one in run.any_facts().optimizers
        if one.name in CAN_BE_FUSED and not one.fused and not one.foreach and (cpu or one.foreach is False)
    ]
    if not looping:
        return
    if len(looping) < len(run.any_facts().optimizers):
        raise Missing("other optimizers step as well, and which of them takes the time is not told apart")
    phases = [one for one in run.measured.phases if one.phase != "unknown"]
    host_ns = sum(one.host_ns for one in phases)
    own = [one for one in phases if one.phase == "optimizer"]
    share = sum(one.host_ns for one in own) / host_ns if host_ns else 0.0
    if run.impact(share, WORTH_SHARE) is None:
        return
    changes = [Change(knob="optimizer.fused", now=False, then=True, at=Location.parse(one.where)) for one in looping]
    tensors = sum(one.parameter_tensors for one in looping)
    computed = sum(one.compute_ns + one.exposed_communication_ns for one in own) / run.measured.account.window_ns
    most = run.unstretched(max(share, computed))
    yield Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact=impact_of(share / 2) or "low",  # a fused step still takes half
        title=f"{looping[0].name} takes {100 * share:.0f} % of a step, for it updates {tensors} tensors one by "
        "one: fuse it",
        why="A loop calls a dozen operators for each tensor, each of which reads and writes all of it.",
        changes=changes,
        saves=run.saving(
            changes, run.bound(0.0, most, "no more than what the optimizer takes, of the host or of the device")
        ),
        confidence="medium",
        evidence=[
            Evidence(label="the optimizer's step", value=share, unit="of a traced step").at(
                run.measured.where("optimizer")
            ),
            Evidence(label="at most", value=most, unit="of a step without the profiler, if that did not stretch it"),
            Evidence(label="tensors", value=tensors),
            Evidence(label="parameters", value=sum(one.parameters for one in looping)),
        ],
        numerics="same",
        watch="Weights are the same up to the order of roundings.",
        fingerprint=f"{RULE.code}:optimizer.fused:{looping[0].name}",
    )
