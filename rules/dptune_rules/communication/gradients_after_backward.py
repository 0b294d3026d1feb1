"""Gradients are sent only after the backward pass, although those of the last layers were ready long before.

## What it measures

All-reduces and reduce-scatters of 1 MiB or more together that the script issues between the last gradient of a backward
pass and the end of the optimizer step: their exposed time, and the compute of the backward pass after its first
gradient was ready. FSDP's reduce-scatters are not counted, and nothing where the pass itself sends more bytes, as with
DDP.

## Why it matters

The gradients of the last layers are ready when the backward pass has barely started. Sent then, they are transferred
while the pass computes the gradients of the other layers. Sent after the pass, nothing overlaps them.

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
- Quiet on training of a GPT on eight H100 (public traces): it sends after the backward pass, which is one compiled
  graph, so that 1 % of a step could be overlapped.
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice
from dptune.rule import Rule, RunView, Threshold
from dptune_rules.delays import delay_of, evidence_of, overlap_share, size_of

REDUCING = ("all_reduce", "reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_single", "reduce")
EACH_STEP = 0.5  # calls for each step from which on a line is taken to belong to the steps
LEAST_BYTES = 2**20  # of a line in each step, that sends gradients and not metrics
NAMED_BY = ("DP105", "DP110")  # these rules name the same collectives, line by line

_HOW = "the exposed time of these collectives, at most the backward compute after the first gradient was ready"

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
        title=f"{size_of(delay)} of gradients are sent after backward{where}: {100 * share:.0f} % of a step could be "
        "overlapped by the backward pass. Wrap the model in DDP, or send each gradient from a hook",
        why="The last layers' gradients are ready early in the backward pass. Sent then, its compute overlaps them.",
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
