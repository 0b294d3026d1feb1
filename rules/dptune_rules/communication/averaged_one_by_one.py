"""The script averages gradients itself, one all-reduce for each parameter.

## What it measures

All-reduces that the script calls from one line, about as many per step as the optimizer has parameter tensors, which
carry the bytes of their gradients; and the time in these calls in steps without the profiler.

## Why it costs time

Each call pays the latency of a collective, however small its tensor is. The calls start after the backward pass, so
nothing hides them. DistributedDataParallel sends gradients in buckets of 25 MiB while the pass still computes.

## What to change

Wrap the model in `DistributedDataParallel`, and leave out the averaging and the first broadcast of parameters: DDP does
both. Or average all gradients in one call:

    flat = torch._utils._flatten_dense_tensors(gradients)
    dist.all_reduce(flat)

The saving is an upper bound: all of the time in these calls.

## When to leave it alone

- Gradients are changed before they are averaged (compressed, clipped on each rank): use a communication hook of DDP.
- Each rank steps several times between two averages (local SGD).

## References

- DistributedDataParallel: https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
- Li et al. 2020, "PyTorch Distributed", section 3.2.2 on bucketing gradients: https://arxiv.org/abs/2006.15704
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import mean

from dptune.advice import Advice, Evidence
from dptune.measured import Missing
from dptune.rule import Rule, RunView, Threshold

WORTH_SHARE = Threshold("worth_share", 0.02, "below 2 % of a step nothing is worth changing")

LEAST_TENSORS = 8  # fewer calls take little time, whatever they carry
EACH = 0.5  # calls for each parameter tensor, and of its bytes, from which on gradients are taken to be averaged

RULE = Rule(
    code="DP110",
    name="averaged-one-by-one",
    family="communication",
    kind="time",
    summary="the script averages gradients itself, one all-reduce for each parameter",
    since="0.1",
    thresholds=(WORTH_SHARE,),
)


def check(run: RunView) -> Iterator[Advice]:
    """Propose DDP where one line of the script all-reduces tensor by tensor what the optimizer updates."""
    facts = run.any_facts()
    tensors = sum(one.parameter_tensors for one in facts.optimizers)
    parameters = sum(one.parameters for one in facts.optimizers)
    if facts.ddp or facts.fsdp or facts.engine or tensors < LEAST_TENSORS or facts.calls_steps < 1:
        return
    for call in facts.calls:
        a_step = call.calls / facts.calls_steps
        enough = a_step >= EACH * tensors and call.sent_bytes / facts.calls_steps >= EACH * 2 * parameters
        if call.function != "all_reduce" or not enough or not call.where or len(call.ranks) < run.measured.world_size:
            continue
        shares = _shares(run, call.where)
        share = mean(shares)
        impact = run.impact(share, WORTH_SHARE)
        if impact is None:
            continue
        yield Advice(
            rule=RULE.code,
            slug=RULE.name,
            kind=RULE.kind,
            impact=impact,
            title=f"{call.where} averages gradients in {a_step:.0f} all-reduces per step, {100 * share:.0f} % of it: "
            "DistributedDataParallel sends them in buckets, during the backward pass",
            why="Each all-reduce pays the latency of a collective, and nothing runs beside it.",
            changes=[],
            saves=run.bound(
                0.0, run.most_of_process(max(shares), traced=False), "no more than the time in these calls"
            ),
            confidence="high",
            evidence=[
                Evidence(label="all-reduces at this line", value=round(a_step, 1), unit="a step"),
                Evidence(label="parameter tensors", value=tensors),
                Evidence(label="sent", value=round(call.sent_bytes / facts.calls_steps), unit="bytes a step and rank"),
                Evidence(label="time in these calls", value=share, unit="of a step (unprofiled)"),
            ],
            numerics="same",
            watch="Remove the script's own averaging and its broadcast of parameters. Sums are rounded in a new order.",
            fingerprint=f"{RULE.code}:{call.where}",
        )


def _shares(run: RunView, where: str) -> list[float]:
    """What each rank spends in these calls without the profiler; on GPUs what nothing hides of the all-reduces."""
    if run.measured.device_kind != "cpu":
        rows = [one for one in run.measured.overlap.rows if one.kind == "all_reduce"]
        exposed_ns = sum(one.exposed_ns for one in rows if one.known("phase") in ("forward", "optimizer"))
        return [run.unstretched(exposed_ns / run.measured.account.window_ns)]
    found = []
    for own in run.facts:
        window = own.window("unprofiled")
        if window is None or not window.steps:
            raise Missing("no steps were timed without the profiler")
        spent_ns = sum(one.unprofiled_ns for one in own.calls if (one.function, one.where) == ("all_reduce", where))
        found.append(min(1.0, spent_ns / sum(window.durations_ns)))
    return found
