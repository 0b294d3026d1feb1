"""The backward pass waits for the collective of each gradient: hooks issue it synchronously, or on the compute stream.

## What it measures

On GPUs, collectives that a hook issues when autograd accumulates a gradient, and that the backward pass waits for: they
run on the compute stream, or the next operation of that stream is already launched and starts when they end. DDP does
not wait for its buckets like this. Their exposed time is compared with the compute left in the pass after the first of
them, and with how much earlier the pass, the optimizer and the next forward pass would end if each operation waited
only for its launch. Where the host or the link limits the step, there is no finding.

## Why it matters

Only the optimizer needs the averaged gradients. The rest of the backward pass can overlap a collective on another
stream.

## What to change

Pass `async_op=True` in the hook, keep the handle, and call `wait()` on all handles before the optimizer step. With
NCCL, since torch 2.8 a collective without `async_op=True` runs on the current stream, so it blocks compute. Or wrap the
model in `DistributedDataParallel`, which does all this in buckets.

The upper bound is the exposed time of these collectives, or the compute of the backward pass after the first of them,
whichever is smaller, and the time in which the GPU runs neither; never more than removing the collectives would save.

## When to leave it alone

- The hook needs the result, for example to clip the averaged gradient: do that after the backward pass.

## References

- torch.distributed, "Synchronous and asynchronous collective operations":
  https://pytorch.org/docs/stable/distributed.html
- Tensor.register_post_accumulate_grad_hook:
  https://pytorch.org/docs/stable/generated/torch.Tensor.register_post_accumulate_grad_hook.html
- Tried on simulated training of 16 drawn models on drawn machines, with both forms of the fault. It fires on 20 of the
  32: `async_op=True` saves 3 to 17 % there, and the upper bound is 1.1 to 1.9 times that. On the others it saves 0.5 %
  at most. On 16 models that the rule was adjusted on before, it fires on 16 of 32, two of which save nothing. It
  has not been tried on a real GPU run.
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice
from dptune.measured import digits
from dptune.rule import Rule, RunView, Threshold
from dptune_rules.delays import delay_of, evidence_of, named, overlap_share

WORTH_SHARE = Threshold("worth_share", 0.02, "low impact from here: savings below 2 % of a step are not worth a change")

_HOW = "the exposed time of these collectives, or the backward compute after them, and idle time between them"

RULE = Rule(
    code="DP115",
    name="gradients-waited-for",
    family="communication",
    kind="time",
    summary="the backward pass waits for each gradient's collective instead of overlapping it",
    since="0.1",
    thresholds=(WORTH_SHARE,),
)


def check(run: RunView) -> Iterator[Advice]:
    """Propose asynchronous collectives where the backward pass waits for each."""
    delay = delay_of(run, "waited_for_in_backward")
    if delay is None:
        return
    share = overlap_share(run, delay)
    impact = run.impact(share, WORTH_SHARE)
    if impact is None:
        return
    where = " on the compute stream" if delay.on_compute_stream else ""
    yield Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact=impact,
        title=f"The backward pass waits for {digits(delay.calls_per_step)} {named(delay)} of gradients per step{where} "
        f"and could overlap {100 * share:.0f} % of a step: pass async_op=True, and wait() before the optimizer step",
        why="Only the optimizer needs the averaged gradients; the rest of the backward pass does not.",
        changes=[],
        saves=run.bound(0.0, run.most_overlapped(delay), _HOW),
        confidence="medium",
        evidence=evidence_of(run, delay),
        numerics="same",
        watch="Without wait() before the optimizer step, it reads gradients that are not averaged yet.",
        fingerprint=f"{RULE.code}:{' '.join(delay.kinds)}",
    )
