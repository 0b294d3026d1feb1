"""The script logs, computes metrics, evaluates, plots or saves in every step, and the step waits for it.

## What it measures

The share of typical steps that the training thread spends in functions that log, compute metrics, evaluate, plot or
save, by function and by the line that calls it, on the rank that spends most. dptune samples its stack, 10 to 100 times
a second, in untraced steps. What a function does is known by the library that it calls (`torch.save`, tensorboard,
wandb, matplotlib, sklearn, evaluation by a trainer, ...), a `print` in the line, text made of a tensor (`f"{tensor}"`,
`str(tensor)`), or else by its name, for `compute` and `result` by the name of their class (`Accuracy.compute`). Forward
and backward passes, the optimizer, the loader and collectives do not count, except inside a function named for
evaluation that disables gradients and calls `.eval()` or loops. On a GPU only libraries count, because a function of
the script may wait there for the device.

A list of values of all steps so far that each step joins (`torch.cat(self.predictions)`) is known from its length in
warm-up steps, where it grows by the same number in each. Recorded steps are the first of an epoch: the mean share over
the epoch is estimated by taking the time as proportional to the number of values.

## Why it matters

The training thread cannot launch the next step before it is done, and in data-parallel training the other ranks wait.

## What to change

- Logging: every N steps; between them keep losses as tensors, and read them together.
- Metrics: every N steps, or on the device for the whole batch in one call. Of all values so far: add up counts or sums
  in each step, or compute the metric once per epoch.
- Plots: after training, or in another process, from values that are kept.
- Checkpoints: every N steps, or asynchronously (`torch.distributed.checkpoint.async_save`).

On a CPU the saving is predicted: 0.8 to 1.3 times the sampled time, with its sampling error (90 %). Some work usually
remains every N steps, and other work can run faster without it. If only some ranks do the work, the next busiest rank
limits the saving. On a GPU, which may hide the time, and where another rank may be equally busy anyway, the saving is
an upper bound.

## When to leave it alone

- It is cheap, or every step needs it.
- Most of it is waiting in collectives, as of a logger that averages over ranks: see `collectives-in-steps`, which is
  then reported in its place.

## References

- PyTorch performance tuning guide: https://pytorch.org/tutorials/recipes/recipes/tuning_guide.html
- torch.distributed.checkpoint, `async_save`: https://pytorch.org/docs/stable/distributed.checkpoint.html
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Confidence, Evidence
from dptune.rule import LEAST_SAMPLES, HostWork, Rule, RunView, Threshold
from dptune_rules.call_paths import line_evidence

WORTH_SHARE = Threshold("worth_share", 0.02, "low impact from here: savings below 2 % of a step are not worth a change")

REMEDIES = {
    "saving": "save every N steps, or asynchronously",
    "logging": "log every N steps",
    "plotting": "plot every N steps, or after training",
    "metrics": "compute metrics every N steps",
    "evaluation": "evaluate every N steps",
    "history": "add up what each step contributes, or compute it once per epoch",
}
HOW = {
    "saving": "`torch.distributed.checkpoint.async_save` writes a copy while training continues.",
    "logging": "Between logged steps keep values as tensors, and read them together.",
    "plotting": "Keep the values, and plot them in another process.",
    "metrics": "If every step must count, accumulate on the device and read the result every N steps.",
    "evaluation": "Evaluating on fewer samples also takes less time.",
    "history": "The saving is that of the recorded steps; later ones join more values.",
}

MOSTLY = 0.5  # of its time

OF_TENSORS = (
    "Formatting a tensor as text reads its elements one at a time. A logger skips that below its level if it gets "
    'the tensor as an argument: `log.debug("%s", tensor)`.'
)

RULE = Rule(
    code="DP609",
    name="work-between-steps",
    family="host",
    kind="time",
    summary="logging, metrics, plotting or saving in every step",
    since="0.1",
    thresholds=(WORTH_SHARE,),
    needs="recording",
)


def _epoch(run: RunView) -> int:
    """The batches of an epoch; 0 where that is not known."""
    loaders = [loader for loader in run.any_facts().loaders if loader.batches_drawn]
    return max((loader.epoch_length or 0 for loader in loaders), default=0)


def _over_epoch(work: HostWork, batches: int) -> float:
    """The mean share over an epoch, if the time grows with the number of joined values; at least the recorded one."""
    times = max(1.0, batches / 2 / work.steps_joined) if work.steps_joined else 1.0
    return work.share * times / (1 + work.share * (times - 1))


def _confidence(work: HostWork, later: float) -> Confidence:
    if work.samples < LEAST_SAMPLES:
        return "low"
    return "high" if work.most_share < 2 * work.share and later == work.share else "medium"


def _communicates(run: RunView, work: HostWork) -> bool:
    """Whether most of its time is in collectives, as of a logger that averages over ranks: another rule names them."""
    facts = next((facts for facts in run.facts if facts.rank == work.rank), None)
    window = facts.window("untraced") if facts else None
    if facts is None or window is None:
        return False
    calling_ns = sum(call.untraced_ns for call in facts.calls if call.where == work.where)
    return calling_ns > MOSTLY * work.share * sum(window.durations_ns)


def check(run: RunView) -> Iterator[Advice]:
    """Name each function that takes a share of the step, with its line, and how to do it less often."""
    for work in run.work_between():
        if _communicates(run, work):
            continue
        batches = _epoch(run) if work.history else 0
        later = _over_epoch(work, batches)
        impact = run.impact(later, WORTH_SHARE)
        impact = "medium" if impact == "high" and work.samples < LEAST_SAMPLES else impact
        if impact is None:
            continue
        rank = "" if work.everywhere else f" on rank {work.rank}"
        bound = run.bound(0.0, work.most_share, "the sampled time, including its sampling error")
        name = f"`{work.name}`" if work.name else work.kind
        kind = "history" if work.history else work.kind
        grows = ", and joins the values of all steps so far" if work.history else ""
        few = work.samples < LEAST_SAMPLES
        if later > work.share:
            estimate = "more" if few else f"about {100 * later:.0f} %"
            grows += f" ({estimate} over an epoch of {batches:,} steps)"
        yield Advice(
            rule=RULE.code,
            slug=RULE.name,
            kind=RULE.kind,
            impact=impact,
            title=f"{name} ({work.where}) takes {100 * work.share:.0f} % of each step{rank}{grows}: {REMEDIES[kind]}",
            why="The training thread does this before it launches the next step"
            + ("." if work.everywhere else ", and the other ranks wait for it."),
            changes=[],
            saves=run.removed(work.by_rank, f"the work is in {work.samples} stack samples") or bound,
            confidence=_confidence(work, later),
            evidence=[
                Evidence(label=work.kind, value=work.share, unit="of the usual steps", rank=work.rank),
                Evidence(label="stack samples there", value=work.samples),
                Evidence(label="called at", value=work.where),
                Evidence(label="most of it in", value=work.hottest),
                *(line_evidence(run, work.name, work.where) if work.name else []),
                *([Evidence(label="all values so far are joined at", value=work.history)] if work.history else []),
            ],
            numerics="same",
            watch=OF_TENSORS if work.of_tensors and work.kind == "logging" else HOW[kind],
            fingerprint=f"{RULE.code}:{work.name or work.kind}",
        )
