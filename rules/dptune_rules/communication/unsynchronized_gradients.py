"""An optimizer steps on gradients that were not averaged over the ranks.

## What it measures

For each optimizer step, whether the last backward pass into each DistributedDataParallel module that the optimizer
updates was synchronized. It also compares sums of a few parameters between ranks: where they are equal, nothing is
reported.

## Why it matters

This is a correctness bug. DDP averages gradients in a backward pass only if the forward pass before it went through
DDP, outside `no_sync`. Gradients that a later pass adds are local to the rank. Each rank then updates its weights
differently, the replicas drift apart, and rank 0 saves a model trained on part of the data.

## What to change

Run the last micro-batch of every optimizer step outside `no_sync`, forward and backward both:

    last = (i + 1) % accumulation == 0 or i + 1 == len(loader)
    with contextlib.nullcontext() if last else model.no_sync():
        loss = criterion(model(x), y) / accumulation
        loss.backward()
    if last:
        optimizer.step()
        optimizer.zero_grad()

Step only where `last` is true. Call the DDP module, not `model.module`. Then restart from a checkpoint from before the
fault, or from scratch: replicas that have drifted apart stay apart.

## When to leave it alone

- Local SGD: ranks step independently and average their parameters every N steps. With torch's `ModelAverager` or
  Accelerate's `LocalSGD`, or where the script's own collectives carry at least 1 % of the gradients' bytes, nothing is
  reported.
- Ranks that are meant to drift apart: accept it with `dptune check --accept FILE --update-accepted`, or
  `ignore = ["DP107"]` under `[tool.dptune]`.

## References

- DistributedDataParallel.no_sync:
  https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
- Reported as `no_sync` on the wrong micro-batch: https://github.com/modelscope/FunASR/issues/3472
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dptune.advice import Advice, Evidence
from dptune.measured import Missing
from dptune.rule import Rule, RunView, Threshold
from dptune_rules.at_risk import results_at_risk
from dptune_rules.known import in_parentheses, known

AVERAGED_SHARE = Threshold(
    "averaged_share",
    0.01,
    "of the gradients' bytes per step, sent by the script's own collectives: metrics are less, gradients more",
)

RULE = Rule(
    code="DP107",
    name="unsynchronized-gradients",
    family="communication",
    kind="risk",
    summary="an optimizer steps on gradients that were not averaged over the ranks",
    since="0.1",
    thresholds=(AVERAGED_SHARE,),
    needs="recording",
)


def check(run: RunView) -> Iterator[Advice]:
    """Name the backward pass before a step that DDP did not synchronize."""
    facts = run.recorded_about("ddp")
    if facts is None or not facts.ddp or facts.fsdp or facts.engine or facts.averages_models:
        return
    updates = [
        window.unsynced_updates or _by_passes(window.backwards, window.unsynced_backwards)
        for rank_facts in run.facts
        for window in rank_facts.windows
    ]
    if not any(updates):
        raise Missing("no backward call was counted")
    steps, missed = sum(map(len, updates)), sum(map(sum, updates))
    agree = run.weights_agree()
    if not missed or agree or _averaged_by_the_script(run):
        return
    seen = steps // len(run.facts)
    often = "every" if missed == steps else f"{round(missed / len(run.facts))} of {seen}"
    where = next((rank_facts.unsynced_where for rank_facts in run.facts if rank_facts.unsynced_where), None)
    yield results_at_risk(
        RULE,
        title=f"Replicas drift apart: in {often} recorded {'step' if missed == steps else 'steps'} the optimizer uses "
        "gradients that were not averaged over the ranks" + in_parentheses(where),
        why="The last backward pass before the optimizer step was not synchronized: its forward pass ran under "
        "no_sync, or did not go through DistributedDataParallel.",
        confidence="high" if agree is False else "medium",
        evidence=[
            *known("backward pass before the step", where),
            Evidence(label="steps on unsynchronized gradients", value=missed / steps, unit="of the recorded steps"),
            *([Evidence(label="weights", value="differ between ranks")] if agree is False else []),
        ],
        remedy="Run the last micro-batch of each step outside no_sync, forward and backward, and step only after it.",
        watch="Weights that have drifted apart stay apart: start from an earlier checkpoint.",
        subject=facts.ddp[0].module,
    )


def _by_passes(backwards: Sequence[int], unsynced: Sequence[int]) -> list[bool]:
    """The same of an older recording, which only counted passes under no_sync: it is known where all or none were."""
    passes = list(zip(backwards, unsynced, strict=False))
    if any(0 < held < every for every, held in passes):
        raise Missing(
            "recorded by an older dptune, which did not note which backward passes were synchronized: record again"
        )
    return [held > 0 for every, held in passes if every]


def _averaged_by_the_script(run: RunView) -> bool:
    """Whether its own collectives carry so much that they may be gradients or parameters."""
    facts = run.any_facts()
    gradients = sum(ddp.gradient_bytes or 0 for ddp in facts.ddp)
    sent = sum(call.sent_bytes for call in facts.calls)
    return sent > 0 and sent / max(1, facts.calls_steps) >= run.limit(AVERAGED_SHARE) * gradients
