"""More memory is held after each step than after the one before.

## What it measures

What is allocated when a step ends less what was when the one before ended, in the detailed window, in which torch
records each allocation: the median, where each of them is half as much or more. It takes four steps there
(`dptune profile --rich 4`), and says nothing of fewer.

## Why it costs time

It costs none until the memory is full, which then ends the training, hours later. Mostly tensors are collected: outputs
for a metric, or losses of passes that no backward pass followed, each of which keeps its whole graph with all
activations. (After a backward pass these are freed, and a loss that is kept keeps little.)

## What to change

Keep numbers, not tensors: reduce outputs to the metric in the step, `loss.detach()`, and `torch.no_grad()` around what
is only looked at. Look for lists and dicts that the loop appends to, caches without a bound, hooks that are registered
in each step.

## When to leave it alone

- A cache that fills up and then stays: look again after an epoch.
- The first steps of an optimizer that makes its state as it meets parameters: record after more warm-up.

## References

- PyTorch, "Frequently Asked Questions", "My model reports CUDA out of memory":
  https://pytorch.org/docs/stable/notes/faq.html
- PyTorch, "Understanding CUDA Memory Usage": https://pytorch.org/docs/stable/torch_cuda_memory.html
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Evidence
from dptune.measured import MemoryFigures, digits
from dptune.rule import Rule, RunView, Threshold

SOON_STEPS = 10_000  # a run that is out of memory before that many steps will hardly come to its end

LEAST_KIB = Threshold("least_kib", 64.0, "less is what a logger keeps; a tensor that is kept with its graph is more")
ALIKE = Threshold(
    "alike", 0.5, "what is kept of each step is alike; batches of several lengths leave now more, now less"
)

RULE = Rule(
    code="DP802",
    name="growing-memory",
    family="memory",
    kind="risk",
    summary="more memory is held after each step than after the one before",
    since="0.1",
    thresholds=(LEAST_KIB, ALIKE),
)


def check(run: RunView) -> Iterator[Advice]:
    """Name the device on which memory grows from step to step."""
    told = [one for one in run.measured.memory if one.known("least_growth_bytes") is not None]
    worst = max(told, key=lambda one: one.growth_bytes_per_step, default=None)
    if worst is None:
        return
    growth, least = worst.growth_bytes_per_step, worst.least_growth_bytes
    if growth <= 0 or growth < run.limit(LEAST_KIB) * 1024 or least < run.limit(ALIKE) * growth:
        return
    left = _steps_left(worst)
    full = "" if left is None else f": the device is full after about {left:,} more steps"
    yield Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact="high" if left is not None and left < SOON_STEPS else "medium",
        title=f"Each step leaves {digits(growth / 2**20)} MiB more allocated than the one before{full}",
        why="Something keeps tensors of each step: outputs that are collected, or losses with their graph.",
        changes=[],
        confidence="medium",
        evidence=[
            Evidence(label=f"growth on {worst.device}", value=growth, unit="bytes per step", rank=worst.rank),
            Evidence(label="steps of the detailed window", value=run.measured.step.rich_steps),
        ],
        numerics="same",
        fingerprint=RULE.code,
    )


def _steps_left(one: MemoryFigures) -> int | None:
    """How many steps there is memory for; None where it is not known how much there is."""
    capacity, taken = one.known("capacity_bytes"), one.known("peak_reserved_bytes")
    if capacity is None or taken is None:
        return None
    return max(0, int((capacity - taken) // one.growth_bytes_per_step))
