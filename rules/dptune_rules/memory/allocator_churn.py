"""Calls of cudaMalloc or cudaFree inside steady-state steps: the caching allocator should have converged.

## What it measures

Calls that allocate or free device memory (`cudaMalloc`, `cudaFree`, and HIP's) inside steady steps, as a share of the
steps, and the share in which the GPU of that rank is idle.

## Why it matters

torch caches memory that it has allocated and reuses it, so no driver calls remain after some steps. Each remaining call
takes the host tens of microseconds to milliseconds, and `cudaFree` waits for the GPU.

It happens where

- the memory is nearly full: the allocator frees cached memory and allocates again (its "retries");
- shapes change from step to step, and cached blocks do not fit the requests;
- the script calls `torch.cuda.empty_cache()` in the loop.

## What to change

Take `torch.cuda.empty_cache()` out of the loop. `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True` lets segments grow,
so that changing shapes fit. If memory is full: a smaller batch, activation checkpointing, or sharding. If memory is
full and `fully_shard` units stay gathered after their forward pass, `reshard_after_forward=True` is proposed.

The saving is an upper bound: the time in those calls plus a quarter, because the launch queue is empty after them, but
no more than the GPU's idle time. The wait of a call for the GPU, or for another rank to reach a collective, does not
lengthen the step and is not counted. If half of the steps or fewer contain most of the time in these calls, the report
gives their number, and milliseconds refer to the mean step.

## When to leave it alone

- The first steps: all memory is allocated for the first time. Record after more warm-up.

## References

- PyTorch, "CUDA semantics", memory management: https://pytorch.org/docs/stable/notes/cuda.html
- Calibrated on public traces: ResNet-18 on an MI300 (91 % of a step) and recommenders on four V100 (37 and 40 %; 4 and
  6 % where three ranks wait for the fourth, inside calls that take 7 and 35 % of their steps); no finding for
  training of a GPT on eight H100 (no calls) and for a GeForce that is hardly idle (calls for 2 % of a step).
- Measured on an H200, torch 2.11: in the trace of a step that calls `torch.cuda.empty_cache()`, these driver calls take
  44 %; without `empty_cache()` the step was 44 and 50 % shorter.
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Change, Evidence
from dptune.measured import MemoryFigures
from dptune.rule import Rule, RunView, Threshold

REFILLING = 1.25  # times the calls' own time
FULL_SHARE = 0.9  # of the GPU's memory, reserved: as for `sharded-parameters`
MOST_OF_TIME = 0.8  # of the time in these calls: the fewest steps that contain it are the ones that pay

WORTH_SHARE = Threshold("worth_share", 0.02, "low impact from here: savings below 2 % of a step are not worth a change")
VARIABLE = "PYTORCH_CUDA_ALLOC_CONF"  # any torch reads it
NEWER = "PYTORCH_ALLOC_CONF"  # torch has read this one, too, from 2.9 on

RULE = Rule(
    code="DP801",
    name="allocator-churn",
    family="memory",
    kind="time",
    summary="cudaMalloc/cudaFree inside steady-state steps (the caching allocator should have converged)",
    since="0.1",
    thresholds=(WORTH_SHARE,),
)


def check(run: RunView) -> Iterator[Advice]:
    """Propose segments that can grow where calls of the driver for memory take a share of the steps worth it."""
    if run.measured.device_kind == "cpu":
        return
    if "PYTORCH_NO_CUDA_MEMORY_CACHING" in run.debug_switches():
        return  # there is no cache: another rule says so
    figures = [memory for memory in run.measured.memory if memory.known("malloc_share") is not None]
    if not figures:
        return
    idles = _idles(run)
    held, idle, worst = max(
        (
            (_held(memory, share), share, memory)
            for memory in figures
            for share in [idles.get((memory.rank, memory.device))]
        ),
        key=lambda candidate: candidate[0],
    )
    share = run.unstretched(held)
    impact = run.impact(share, WORTH_SHARE)
    if impact is None:
        return
    paying, steps = _paying(worst)
    few = 0 < paying <= steps / 2
    environment = run.facts[0].environment if run.facts else {}
    given = [name for name in (VARIABLE, NEWER) if environment.get(name)]
    changes = []
    if run.measured.device_kind == "cuda" and not any("expandable_segments" in environment[name] for name in given):
        name = given[0] if given else VARIABLE
        now = environment.get(name)
        then = ",".join([*([now] if now else []), "expandable_segments:True"])
        changes = [Change(knob=f"env.{name}", now=now, then=then)]
    most = run.unstretched(REFILLING * held if idle is None else max(held, min(REFILLING * held, idle)))
    yield Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact=impact,
        title=f"Allocating and freeing GPU memory costs up to {100 * most:.0f} % of "
        + (f"the mean step, most of it in {paying} of {steps} steps" if few else "a step"),
        why="These are driver calls, and freeing memory waits for the GPU. In steady state torch's caching allocator "
        "needs none.",
        changes=changes,
        remedy=_resharding(run, worst),
        saves=run.bound(
            0.0,
            most,
            "the time of the driver's memory calls and of refilling the launch queue after them, at most the time "
            "the GPU is idle",
            in_few_steps=few,
        ),
        confidence="medium",
        evidence=[*_evidence(run, worst, idle), *(_in_steps(worst, paying, steps) if few else ())],
        numerics="same",
        fingerprint=RULE.code,
    )


def _resharding(run: RunView, worst: MemoryFigures) -> str:
    """To free gathered units where memory is nearly full of them; empty where that is not so, or not known."""
    capacity, reserved = worst.known("capacity_bytes"), worst.known("peak_reserved_bytes")
    if not capacity or not reserved or reserved < FULL_SHARE * capacity or not run.facts:
        return ""
    kept = [fsdp for fsdp in run.facts[0].fsdp if any(fsdp.names) and fsdp.reshard_after_forward is False]
    if not kept:
        return ""
    where = next((f" at {fsdp.where}" for fsdp in kept if fsdp.where), "")
    after = run.memory_after({"fsdp.reshard_after_forward": True})
    peak = "" if after is None else f" The predicted peak of tensors falls to {after.peak_bytes / 2**20:,.0f} MiB."
    return (
        f"{100 * reserved / capacity:.0f} % of the GPU memory is reserved, and units stay gathered after their forward "
        f"pass: pass `reshard_after_forward=True` to `fully_shard`{where}.{peak}"
    )


def _held(memory: MemoryFigures, idle: float | None) -> float:
    """The share of a rank's steps that its calls can cost: no more than its GPU is idle.

    A call that returns memory waits for the GPU: while that computes, or waits for another rank in a collective, the
    step would take as long without the call.
    """
    return memory.malloc_share if idle is None else min(memory.malloc_share, idle)


def _idles(run: RunView) -> dict[tuple[int, str], float]:
    """By rank and device the share of the steps in which the GPU is idle; none where the trace does not tell."""
    return {
        (rank.rank, device.device): device.total.share("idle_ns")
        for rank in run.measured.ranks
        for device in rank.devices
        if device.steps
    }


def _paying(memory: MemoryFigures) -> tuple[int, int]:
    """The fewest steps that contain most of the time in a rank's calls, and the number of steps; zeros if unknown."""
    by_step = sorted(memory.known("malloc_steps_ns") or (), reverse=True)
    enough_ns = MOST_OF_TIME * sum(by_step)
    return next((count for count in range(len(by_step) + 1) if sum(by_step[:count]) >= enough_ns), 0), len(by_step)


def _in_steps(memory: MemoryFigures, paying: int, steps: int) -> Iterator[Evidence]:
    by_step = sorted(memory.malloc_steps_ns, reverse=True)
    which = f"{paying} of {steps} steps"
    yield Evidence(
        label=f"spent in {which}",
        value=sum(by_step[:paying]) / sum(by_step),
        unit="of the time in these calls",
        rank=memory.rank,
    )


def _evidence(run: RunView, worst: MemoryFigures, idle: float | None) -> Iterator[Evidence]:
    unit, longest = "of the traced steps", run.measured.where("malloc")
    yield Evidence(label="in the driver's memory calls", value=worst.malloc_share, unit=unit, rank=worst.rank).at(
        longest if longest and longest.rank == worst.rank else None
    )
    if idle is not None:
        yield Evidence(label="the GPU is idle", value=idle, unit=unit, rank=worst.rank)
    calls = worst.known("malloc_calls_per_step")
    if calls is not None:
        yield Evidence(label="these calls", value=round(calls, 1), unit="per step", rank=worst.rank)
