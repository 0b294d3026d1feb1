"""Text is generated without a cache of keys and values.

## What it measures

Eight or more calls of one module within a step of the detailed window, without gradients, each with an input one
position longer than the last. The share is that of these calls in the traced step; on a GPU it is the time of their
kernels.

## Why it matters

The model computes all earlier positions again for each new one. Generating M tokens after a prompt of N computes
about M x (N + M / 2) positions, and N + M with a cache.

## What to change

- Models of transformers: `model.generate(..., use_cache=True)`, and `use_cache=True` in the model's config. Gradient
  checkpointing turns the cache off: turn it off while generating.
- A loop of the script: pass the keys and values of earlier positions on, and only the new position as input
  (`past_key_values` in transformers).

The saving is an upper bound: the time of the calls, times the share of positions that were computed before. A call for
one position takes more than its share of the time.

## When to leave it alone

- The model is not causal: every position then changes with each new one.
- Memory: the cache holds keys and values of all layers for the whole batch.

## References

- transformers, "Caching": https://huggingface.co/docs/transformers/cache_explanation
- Pope et al., "Efficiently Scaling Transformer Inference" (2022): https://arxiv.org/abs/2211.05102
- Example: 14 tokens after a prompt of 40 are 40 + 41 + ... + 53 = 651 positions, and 53 with a cache.
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Evidence
from dptune.measured import UncachedGeneration
from dptune.rule import Rule, RunView, Threshold

WORTH_SHARE = Threshold("worth_share", 0.05, "identical steps differ by about 5 %: less is within this noise")

RULE = Rule(
    code="DP620",
    name="generation-without-cache",
    family="host",
    kind="time",
    summary="text is generated without a cache of keys and values",
    since="0.1",
    preview=True,  # until a fault and its mended twin are recorded on an idle machine
    thresholds=(WORTH_SHARE,),
)


def check(run: RunView) -> Iterator[Advice]:
    """Name each function that runs the whole sequence again for each new position, for a share that is worth it."""
    if run.measured.known("generations") is None and run.measured.share("other_idle_ns") < run.limit(WORTH_SHARE):
        return  # as operator-loops: without stacks the modules are not known
    for found in run.measured.generations:
        saved = run.agreed_share(found.saved_share, found.rank, found.name, found.at)
        impact = run.impact(saved, WORTH_SHARE)
        if impact is None:
            continue
        yield Advice(
            rule=RULE.code,
            slug=RULE.name,
            kind=RULE.kind,
            impact=impact,
            title=f"{_subject(run, found)} runs `{found.module}` on the whole sequence again for each new position, "
            f"{100 * found.share:.0f} % of the step: {_remedy(found)}",
            why=f"The input grows from {found.shortest} to {found.longest} positions, one per call, and each call "
            "computes all earlier positions again. With a cache of keys and values it computes only the new one.",
            changes=[],
            saves=run.bound(0.0, saved, "the positions that were computed before"),
            confidence="medium",
            evidence=[
                Evidence(label=f"calls of {found.module}", value=round(found.calls, 1), unit="per step"),
                Evidence(label="their time", value=found.cost_ns / 1e6, unit="ms per step", rank=found.rank),
            ],
            numerics="same",
            watch=f"Only if `{found.module}` is causal. Results agree up to floating-point rounding, so sampled text "
            "may differ.",
            fingerprint=f"{RULE.code}:{found.module}",
        )


def _subject(run: RunView, found: UncachedGeneration) -> str:
    where = run.hottest_line(found.name, found.at) or found.at
    if not found.name:
        return "The script"
    return f"`{found.through}` in `{found.name}` ({where})" if found.through else f"`{found.name}` ({where})"


def _remedy(found: UncachedGeneration) -> str:
    if found.library == "transformers":
        return "pass use_cache=True"
    return "cache keys and values, and pass only the new position"
