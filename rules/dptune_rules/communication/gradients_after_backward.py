"""Gradients are sent only after the backward pass, although those of the last layers are ready long before.

## What it measures

The exposed time of the all-reduces and reduce-scatters (1 MiB or more in total) that the script issues between the last
gradient of a backward pass and the end of the optimizer step, and the compute of the backward pass after its first
gradient is ready. FSDP's reduce-scatters are not counted. If the backward pass itself sends more bytes, as with DDP,
nothing is counted.

## Why it matters

The gradients of the last layers are ready soon after the backward pass starts. Sent then, their transfer overlaps the
compute of the other gradients. Sent after the pass, it overlaps nothing.

## What to change

Wrap the model in `DistributedDataParallel`: it sends gradients in buckets during the backward pass. Where the script
must send them itself, start each from `register_post_accumulate_grad_hook` with `async_op=True`, and wait for all of
them before the optimizer step.

The upper bound is the exposed time of these collectives, or the compute of the backward pass after its first gradient,
whichever is smaller. The collective of the last gradient always remains.

## When to leave it alone

- The model is compiled as one graph: all its gradients become ready together, at the end. Compile block by block first.
- Gradients are changed before they are averaged, for example clipped on each rank.
- Each rank steps several times between two averages (local SGD).

## References

- Li et al. 2020, "PyTorch Distributed", sections 3.2.2 and 3.2.3 on buckets and overlap:
  https://arxiv.org/abs/2006.15704
- Tensor.register_post_accumulate_grad_hook:
  https://pytorch.org/docs/stable/generated/torch.Tensor.register_post_accumulate_grad_hook.html
- No finding for a GPT on eight H100 (public traces): it sends after the backward pass, but this is one compiled graph,
  so only 1 % of a step could be overlapped.
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice
from dptune.rule import Rule, RunView, Threshold
from dptune_rules.delays import delay_of, evidence_of, overlap_share, size_of

REDUCING = ("all_reduce", "reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_single", "reduce")
EACH_STEP = 0.5  # calls per step; a line that calls less often is not part of every step
LEAST_BYTES = 2**20  # per line and step; metrics send less
NAMED_BY = ("DP105", "DP110")  # these rules name the same collectives, line by line

_HOW = (
    "the exposed time of these collectives, or the backward compute after the first gradient is ready, whichever is "
    "smaller"
)

WORTH_SHARE = Threshold("worth_share", 0.02, "low impact from here: savings below 2 % of a step are not worth a change")

RULE = Rule(
    code="DP114",
    name="gradients-after-backward",
    family="communication",
    kind="time",
    summary="gradients are sent only after the backward pass, although it could overlap them",
    since="0.1",
    thresholds=(WORTH_SHARE,),
    last=True,
)


def check(run: RunView) -> Iterator[Advice]:
    """Propose DDP, or hooks, where reductions after the backward pass could have started in it."""
    delay = delay_of(run, "after_backward")
    if delay is None or any(advice.rule in NAMED_BY for advice in run.advised):
        return
    share = overlap_share(run, delay)
    impact = run.impact(share, WORTH_SHARE)
    if impact is None:
        return
    lines = _lines(run)
    where = f" ({', '.join(lines)})" if lines else ""
    yield Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact=impact,
        title=f"{size_of(delay)} of gradients are sent only after the backward pass{where}, which could overlap "
        f"{100 * share:.0f} % of a step: wrap the model in DDP, or send each gradient from a hook",
        why="The last layers' gradients are ready early in the backward pass: the rest of the pass can overlap them.",
        changes=[],
        saves=run.bound(0.0, run.most_overlapped(delay), _HOW),
        confidence="medium",
        evidence=evidence_of(run, delay),
        numerics="same",
        watch="Floating-point summation order may change. The last bucket stays exposed.",
        fingerprint=f"{RULE.code}:{lines[0] if lines else ' '.join(delay.kinds)}",
    )


def _lines(run: RunView) -> list[str]:
    """The lines of the script that send gradients in each step, where that was recorded."""
    if not run.facts:
        return []
    facts = run.any_facts()
    steps = facts.calls_steps
    sending = [
        call
        for call in facts.calls
        if call.where
        and call.function in REDUCING
        and call.calls >= EACH_STEP * steps > 0
        and call.sent_bytes >= LEAST_BYTES * steps
    ]
    return list(dict.fromkeys(call.where or "" for call in sending))
