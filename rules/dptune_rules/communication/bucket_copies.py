"""DDP copies every averaged gradient out of its bucket; gradients can be views of the buckets instead.

## What it measures

On GPUs, the copies under `copy_bucket_to_grad`, one per parameter: their host time, up to the time that the GPU idles
because of the host, or their GPU time, whichever is larger.

## Why it matters

After a bucket's all-reduce, DDP copies its gradients back one by one. The copies are short, but each costs the host
about 50 us, and a launch-bound GPU waits for that.

## What to change

Pass `gradient_as_bucket_view=True` to DistributedDataParallel: gradients are then views of the buckets. This also saves
memory of the size of the gradients.

## When to leave it alone

- The GPU is always busy: then host time does not matter. On a busy H200, steps took 1.01x as long with this setting.
- The script calls `detach_()` on gradients, which torch does not allow for views.

## References

- DistributedDataParallel, `gradient_as_bucket_view`:
  https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
- Calibrated on public traces of a ResNet-50: 4 % of a step on an A100 that waits for its host, and quiet on a busy
  V100 (host 2 %, device 0.6 %). On CPUs no effect was measured, so nothing is proposed there.
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Evidence
from dptune.measured import HOST_IDLE
from dptune.rule import Rule, RunView, Threshold
from dptune_rules.communication.ddp_argument import change

WORTH_SHARE = Threshold("worth_share", 0.02, "low impact from here: savings below 2 % of a step are not worth a change")

_HOW = (
    "host time of the copies, or GPU idle time caused by the host, whichever is smaller; at least the GPU time of the "
    "copies"
)

RULE = Rule(
    code="DP116",
    name="bucket-copies",
    family="communication",
    kind="time",
    summary="DDP copies every averaged gradient out of its bucket; gradients can be views of the buckets",
    since="0.1",
    thresholds=(WORTH_SHARE,),
)


def check(run: RunView) -> Iterator[Advice]:
    """Propose views where the copies take a share of the step worth it."""
    if run.measured.device_kind == "cpu":
        return
    copies = run.measured.known("bucket_copies")
    if copies is None:
        return
    wrapped = run.any_facts("ddp", "ddp.gradient_as_bucket_view").ddp
    host_idle = sum(run.measured.step_share(name) for name in HOST_IDLE)
    share = max(min(copies.host_share, host_idle, run.idle_share()), copies.device_share)
    impact = run.impact(share, WORTH_SHARE)
    changes = [
        change(run, ddp, "gradient_as_bucket_view", False, True)
        for ddp in wrapped
        if ddp.gradient_as_bucket_view is False
    ]
    if impact is None or not changes:
        return
    yield Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact=impact,
        title=f"DDP copies {copies.copies_per_step:.0f} gradients out of its buckets ({100 * share:.0f} % of a step): "
        "pass gradient_as_bucket_view=True",
        why="Each gradient takes a copy kernel. Gradients that are views of the buckets need none.",
        changes=changes,
        saves=run.bound(0.0, run.most_of_process(share), _HOW),
        confidence="medium",
        evidence=[
            Evidence(label="host time of the copies", value=copies.host_share, unit="of a traced step").at(
                copies.known("longest")
            ),
            Evidence(label="GPU time of the copies", value=copies.device_share, unit="of a traced step"),
            Evidence(label="copies", value=round(copies.copies_per_step, 1), unit="per step and rank"),
        ],
        numerics="same",
        fingerprint=f"{RULE.code}:ddp.gradient_as_bucket_view",
    )
