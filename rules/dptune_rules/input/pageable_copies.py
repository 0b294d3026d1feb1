"""Batches are copied to the GPU from pageable memory, while nothing else runs.

## What it measures

Copies from pageable (not page-locked) host memory to the device in the steps, and the share of the step in which they
run while neither compute nor communication does.

## Why it matters

For pageable memory the driver first copies into its own buffer, and the call blocks the script until then: the step's
kernels are launched only after it. For page-locked memory the GPU copies by itself, at two to three times the rate,
overlapped with the kernels of the previous step.

## What to change

Pass `pin_memory=True` to the DataLoader, and copy with `batch.to(device, non_blocking=True)`; each saves little without
the other. For tensors that no loader makes, call `tensor.pin_memory()`.

The saving is an upper bound: the exposed part of those copies, plus idle time up to the time for which they block the
script.

## When to leave it alone

- The copies hold a few numbers: latency dominates them, and pinning costs more.
- The host is short of memory: page-locked memory cannot be swapped out.

## References

- PyTorch, "A guide on good usage of non_blocking and pin_memory()":
  https://pytorch.org/tutorials/intermediate/pinmem_nonblock.html
- CUDA Runtime API, "API synchronization behavior": https://docs.nvidia.com/cuda/cuda-runtime-api/api-sync-behavior.html
- Calibrated on public traces of ResNet-50 (V100) and ResNet (GeForce): 2 and 6 % of a step; no finding on eight H100
  that copy three small tensors a step, under 0.1 %.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dptune.advice import Advice, Change, Evidence
from dptune.measured import Missing
from dptune.rule import Rule, RunView, Threshold
from dptune_rules.known import passed_at
from dptune_rules.loader_argument import loader_change

WORTH_SHARE = Threshold("worth_share", 0.02, "low impact from here: savings below 2 % of a step are not worth a change")

RULE = Rule(
    code="DP503",
    name="pageable-copies",
    family="input",
    kind="time",
    summary="copies of batches from pageable memory are not overlapped",
    since="0.1",
    thresholds=(WORTH_SHARE,),
)


def check(run: RunView) -> Iterator[Advice]:
    """Propose page-locked memory where copies from pageable memory hold up a step."""
    if run.measured.device_kind == "cpu":
        return
    pageable = [copy for copy in run.measured.copies if copy.direction == "h2d" and copy.known("pinned") is False]
    share = sum(pageable_copy.most_share for pageable_copy in pageable)
    impact = run.impact(share, WORTH_SHARE)
    if impact is None:
        return
    loaders = [loader for loader in (run.facts[0].loaders if run.facts else []) if loader.batches_drawn]
    trained = max(loaders, key=lambda one: one.batches_drawn or 0, default=None)
    if trained is not None and trained.pin_memory is not False:
        return  # what is copied is of no loader, and where it is made is not known
    changes = [loader_change(run, trained, "pin_memory", None if trained is None else False, True)]
    if run.facts and trained is None:
        changes = []  # what is copied is of no loader
    blocked = sum(pageable_copy.most_held_share for pageable_copy in pageable)
    held = min(blocked, run.most_share("other_idle_ns"))
    most = run.unstretched(share + held)
    rates = [pageable_copy.gb_per_s for pageable_copy in pageable if pageable_copy.known("gb_per_s") is not None]
    bound = run.bound(
        0.0, most, "the exposed copies from pageable memory, plus the idle time while they block the script"
    )
    alone = "" if changes else "The script uses no DataLoader: pin tensors with tensor.pin_memory(). "
    yield Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact=impact,
        title=f"{100 * share:.0f} % of a step is copies to the GPU from pageable memory that nothing overlaps",
        why="Copies from pageable memory are staged by the driver and block the script; copies from page-locked "
        "memory can overlap with kernels.",
        changes=changes,
        saves=run.saving(changes, bound) if changes else bound,
        confidence="medium" if run.facts else "low",
        evidence=[
            Evidence(label="exposed copies from pageable memory", value=share, unit="of a step").at(
                run.measured.where("copy_ns")
            ),
            Evidence(label="script blocked in these copies", value=blocked, unit="of a traced step"),
            Evidence(
                label="such copies",
                value=round(sum(pageable_copy.calls_per_step for pageable_copy in pageable), 2),
                unit="per rank and step",
            ),
            *_replayed(run, changes, most),
            *passed_at(trained, "pin_memory"),
            *(Evidence(label="their rate", value=round(rate, 2), unit="GB/s") for rate in rates),
        ],
        numerics="same",
        watch=f"{alone}Copy with non_blocking=True as well, and synchronize before reading results back.",
        fingerprint=f"{RULE.code}:loader.pin_memory",
    )


def _replayed(run: RunView, changes: Sequence[Change], most: float) -> Iterator[Evidence]:
    """The upper bound that `dptune whatif` gives for traced steps, if it is lower: the profiler slows their host."""
    if not changes or run.measured.step.basis != "traced":
        return
    try:
        replayed = run.ceiling(changes).high_share
    except Missing:
        return
    if replayed < most:
        label = "upper bound by replay, with profiler overhead"
        yield Evidence(label=label, value=replayed, unit="of a traced step")
