"""Memory of the GPU is taken and returned inside steps, where torch's allocator should have it by then.

## What it measures

Calls that take memory of the device or return it (`cudaMalloc`, `cudaFree`, and HIP's), inside steady steps, as a share
of the steps.

## Why it costs time

torch keeps what it once took and hands it out again, so that after some steps no call of the driver is left. Each one
that is made all the same takes the host from tens of microseconds to milliseconds, and `cudaFree` waits for the GPU.

It happens where

- the memory is nearly full: the allocator returns what it has and takes it anew (its "retries");
- shapes change from step to step, and what was kept does not fit what is asked for;
- the script calls `torch.cuda.empty_cache()` in the loop.

## What to change

Take `torch.cuda.empty_cache()` out of the loop. `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True` lets segments grow,
so that changing shapes fit. Where the memory is full: a smaller batch, activation checkpointing, or sharding.

The step saves at most the time in those calls.

## When to leave it alone

- The first steps: everything is taken for the first time. Record after more warm-up.

## References

- PyTorch, "CUDA semantics", memory management: https://pytorch.org/docs/stable/notes/cuda.html
- Calibrated on public traces: ResNet-18 on an MI300 (99 % of a step) and recommenders on four V100 (35 to 47 %); quiet
  on training of a GPT on eight H100 (none). Of two recordings of one loop on a GeForce, one has 2 %, the other none.
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Change, Evidence, severity_of
from dptune.rule import Rule, RunView, Threshold

WORTH_SHARE = Threshold("worth_share", 0.02, "what a note is: below 2 % of a step nothing is worth changing")
VARIABLE = "PYTORCH_CUDA_ALLOC_CONF"

RULE = Rule(
    code="DP801",
    name="allocator-churn",
    family="memory",
    kind="time",
    summary="memory of the GPU is taken and returned inside steps, where torch's allocator should have it by then",
    since="0.1",
    thresholds=(WORTH_SHARE,),
)


def check(run: RunView) -> Iterator[Advice]:
    """Propose segments that can grow where calls of the driver for memory take a share of the steps worth it."""
    if run.measured.device_kind == "cpu":
        return
    if any("PYTORCH_NO_CUDA_MEMORY_CACHING" in facts.debug_switches for facts in run.facts):
        return  # there is no cache: another rule says so
    told = [one for one in run.measured.memory if one.known("malloc_share") is not None]
    worst = max(told, key=lambda one: one.malloc_share, default=None)
    if worst is None:
        return
    severity = severity_of(worst.malloc_share)
    if worst.malloc_share < run.limit(WORTH_SHARE) or severity is None:
        return
    now = run.facts[0].environment.get(VARIABLE) if run.facts else None
    changes = []
    if run.measured.device_kind == "cuda" and "expandable_segments" not in (now or ""):
        then = ",".join([*([now] if now else []), "expandable_segments:True"])
        changes = [Change(knob=f"env.{VARIABLE}", now=now, then=then)]
    yield Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        severity=severity,
        title=f"Taking and returning memory of the GPU takes {100 * worst.malloc_share:.0f} % of a step",
        why="Each such call is one of the driver, and returning memory waits for the GPU. In steady steps torch's "
        "allocator should need none.",
        changes=changes,
        saves=run.bound(
            0.0, run.unstretched(worst.malloc_share), "no more than the time in calls of the driver for memory"
        ),
        confidence="medium",
        evidence=[
            Evidence(label="in calls for memory", value=worst.malloc_share, unit="of the steps", rank=worst.rank).at(
                run.measured.where("malloc")
            ),
            *_calls(worst.known("malloc_calls_per_step"), worst.rank),
        ],
        numerics="same",
        fingerprint=RULE.code,
    )


def _calls(calls: float | None, rank: int) -> Iterator[Evidence]:
    if calls is not None:
        yield Evidence(label="such calls", value=round(calls, 1), unit="per step", rank=rank)
