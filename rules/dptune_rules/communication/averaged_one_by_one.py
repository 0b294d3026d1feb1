"""The script averages gradients or parameters itself, with one collective per parameter.

## What it measures

All-reduces or broadcasts that the script calls from one line, about one per parameter tensor of the optimizer in each
step, and together about the size of the gradients; and the time in these calls in untraced steps. Calls between the
backward pass and the optimizer step carry gradients, calls after the optimizer step carry parameters.

## Why it matters

Each call pays the latency of a collective, however small its tensor is. The calls start after the backward pass, so
they are exposed. DistributedDataParallel sends gradients in buckets of 25 MiB while the pass still computes.

## What to change

Wrap the model in `DistributedDataParallel`, and remove the averaging and the first broadcast of parameters: DDP does
both. Or average all gradients in one call:

    flat = torch._utils._flatten_dense_tensors(gradients)
    dist.all_reduce(flat)

With DDP, parameters need not be averaged or broadcast after each step: replicas that start equal and apply the same
gradients stay equal. Replacing the averaging of parameters gives the same result with SGD. It may change training
results with optimizers like Adam, whose state differs between ranks if only parameters are averaged.

On a CPU with known links the saving is predicted. Lower end: the time in these calls on the rank that spends least in
them, minus the time of DDP's buckets at the link's latency and bandwidth, without overlap. Upper end: the time in these
calls on the rank that spends most. Without known links, and on GPUs, the saving is an upper bound.

## When to leave it alone

- Gradients are changed before they are averaged (compressed, clipped on each rank): use a communication hook of DDP.
- Each rank steps several times between two averages (local SGD).

## References

- DistributedDataParallel: https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
- Li et al. 2020, "PyTorch Distributed", section 3.2.2 on bucketing gradients: https://arxiv.org/abs/2006.15704
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from statistics import mean

from dptune.advice import Advice, Evidence, Saving
from dptune.measured import Missing
from dptune.rule import Rule, RunView, Threshold

WORTH_SHARE = Threshold("worth_share", 0.02, "savings below 2 % of a step are not worth a change")

LEAST_TENSORS = 8  # fewer calls take little time, whatever they carry
BUCKET_BYTES = 25 * 2**20  # of DDP, by default
EACH = 0.5  # calls for each parameter tensor, and of its bytes, from which on gradients are taken to be averaged

NAMES = {"all_reduce": "all-reduces", "broadcast": "broadcasts"}

RULE = Rule(
    code="DP110",
    name="averaged-one-by-one",
    family="communication",
    kind="time",
    summary="the script averages gradients or parameters itself, with one collective per parameter",
    since="0.1",
    thresholds=(WORTH_SHARE,),
    needs="recording",
)


def check(run: RunView) -> Iterator[Advice]:
    """Propose DDP where one line of the script all-reduces tensor by tensor what the optimizer updates."""
    facts = run.any_facts("ddp", "fsdp")
    if facts.ddp or facts.fsdp:
        return
    facts = run.any_facts()
    tensors = sum(optimizer.parameter_tensors for optimizer in facts.optimizers)
    parameters = sum(optimizer_facts.parameters for optimizer_facts in facts.optimizers)
    if facts.engine or tensors < LEAST_TENSORS or facts.calls_steps < 1:
        return
    for call in facts.calls:
        a_step = call.calls / facts.calls_steps
        enough = a_step >= EACH * tensors and call.sent_bytes / facts.calls_steps >= EACH * 2 * parameters
        if call.function not in NAMES or not enough or not call.where or len(call.ranks) < run.measured.world_size:
            continue
        of_parameters = call.function == "broadcast" or call.after_updates >= EACH * call.calls
        place = f"{call.caller} ({call.where})" if call.caller else call.where
        verb, of = "averages" if call.function == "all_reduce" else "broadcasts", "gradients"
        instead = "sends them in buckets during backward"
        if of_parameters:
            of, instead = "parameters", "keeps the replicas equal without these calls"
        shares = _shares(run, call.function, call.where)
        share = mean(shares)
        impact = run.impact(share, WORTH_SHARE)
        if impact is None:
            continue
        yield Advice(
            rule=RULE.code,
            slug=RULE.name,
            kind=RULE.kind,
            impact=impact,
            title=f"{place} {verb} {of} in {a_step:.0f} {NAMES[call.function]} per step ({100 * share:.0f} % of the "
            f"step): DDP {instead}",
            why="Each call pays the latency of a collective, and no compute overlaps with it.",
            changes=[],
            remedy="Remove the script's own averaging and its broadcast of parameters.",
            saves=_saving(run, shares, call.sent_bytes / facts.calls_steps),
            confidence="high",
            evidence=[
                Evidence(label=f"{NAMES[call.function]} at this line", value=round(a_step, 1), unit="per step"),
                Evidence(label="parameter tensors", value=tensors),
                Evidence(
                    label="sent", value=round(call.sent_bytes / facts.calls_steps), unit="bytes per step and rank"
                ),
                Evidence(label="time in these calls", value=share, unit="of a step (untraced)"),
            ],
            numerics="changes" if of_parameters and call.function == "all_reduce" else "same",
            watch="Floating-point summation order changes.",
            fingerprint=f"{RULE.code}:{call.where}",
        )


def _saving(run: RunView, shares: list[float], sent_bytes: float) -> Saving:
    """Predicted where the time of DDP's buckets is known from the links, and all ranks were recorded on CPUs."""
    links = [candidate for candidate in run.measured.known("links") or [] if candidate.kind == "all_reduce"]
    links = [
        candidate
        for candidate in links
        if candidate.known("alpha_us") is not None and candidate.known("algbw_gb_per_s")
    ]
    if links and len(shares) == run.measured.world_size and run.measured.device_kind == "cpu":
        link = max(links, key=lambda one: (one.basis == "sweep", len(one.ranks)))
        buckets = 1 + ceil(sent_bytes / BUCKET_BYTES)  # the first one is smaller
        buckets_ns = buckets * max(0.0, link.known("alpha_high_us") or link.alpha_us) * 1e3
        left = (buckets_ns + sent_bytes / link.algbw_gb_per_s) / run.measured.step.time_ns
        if min(shares) > left:
            how = f"the time in these calls minus that of {buckets} DDP buckets at the link's latency and bandwidth"
            return run.timed(min(shares) - left, mean(shares) - left, max(shares), how)
    most = run.most_of_process(max(shares), traced=False)
    return run.bound(0.0, most, "the time in these calls")


def _shares(run: RunView, function: str, where: str) -> list[float]:
    """What each rank spends in these calls without the profiler; on GPUs what nothing hides of such collectives."""
    if run.measured.device_kind != "cpu":
        rows = [row for row in run.measured.overlap.rows if row.kind == function]
        rows = [row for row in rows if row.known("phase") in ("forward", "optimizer")]
        return [run.unstretched(sum(map(run.held_up_share, rows)))]
    found = []
    for facts in run.facts:
        window = facts.window("untraced")
        if window is None or not window.steps:
            raise Missing("no untraced steps were timed")
        spent_ns = sum(call.untraced_ns for call in facts.calls if (call.function, call.where) == (function, where))
        found.append(min(1.0, spent_ns / sum(window.durations_ns)))
    return found
