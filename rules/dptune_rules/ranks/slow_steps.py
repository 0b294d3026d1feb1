"""Some steps take much longer than the others, and the script does something else in them.

## What it measures

Untraced steps that take more than `times` the median step. While steps are timed, dptune samples the stack of the
training thread, 10 to 100 times a second: what it does in slow steps and not in the others is their cause, named by
function and by the line that calls it, on the rank where it takes most. Waiting for other ranks is not a cause, and
neither is a lock: the line that waits for the lock is named. Where a library runs the loop and evaluates inside it, its
function is named: `transformers.Trainer.evaluate`. What else the library does in the steps in which it saves or
evaluates counts as part of that.

A cause has a period if at least three of its steps are equally spaced, with at most one missing, and if the period
takes fewer bits to state than the list of steps. Slow steps without a sampled cause count only if they have a period:
others are attributed to the machine.

A function seen in a single step counts if the other steps hardly call it, and if it takes `once_share` of the time at
the shortest interval that the recording allows: the number of steps before it, or of those timed after it, whichever is
larger.

## Why it matters

Something that the loop does every few steps holds up all ranks: a checkpoint that is written while they wait,
evaluation, logging that reads a result back from the device. The median step, and the account of its time, do not show
it: the mean step does.

## What to change

- Checkpoints: less often, in a thread or a process of their own (`torch.distributed.checkpoint.async_save`), or from a
  copy in memory.
- Evaluation: under `torch.no_grad()`, if gradients are enabled in it (also if it is part of another function); on
  fewer samples, less often, on all ranks, or in another job. The transformers Trainer keeps all logits for
  `compute_metrics`: `preprocess_logits_for_metrics` reduces them batch by batch.
- Logging: if values are printed every tenth step, do not read them from the device in every step.

If the cause was sampled, the saving is predicted: the extra time of the slow steps as a share of all timed steps, minus
a fifth, because some of that work remains. The interval includes the variation between slow steps. If the cause was not
sampled, or another rank is slow in the same steps for another reason, the saving is an upper bound.

## When to leave it alone

- The work is needed that often. Collecting experience is part of reinforcement learning, and is reported with low
  impact and low confidence. It is recognized by names (rollouts, episodes), by libraries of environments, or by
  drawing actions from a distribution and calling the `step` of an environment.
- The period is the length of an epoch: see `workers-restart`.

## References

- torch.distributed.checkpoint, `async_save`: https://pytorch.org/docs/stable/distributed.checkpoint.html
- PyTorch performance tuning guide: https://pytorch.org/tutorials/recipes/recipes/tuning_guide.html
- Rissanen, "Modeling by shortest data description", 1978, for the test of periods.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from dptune.advice import Advice, Confidence, Evidence
from dptune.measured import in_ms
from dptune.rule import Rule, RunView, SlowSteps, Threshold, passed_at
from dptune_rules.call_paths import call_path_evidence
from dptune_rules.known import known

FEWER = 2  # times as many samples in a batch of training: from here on the batch of evaluation is small
MOSTLY = 0.5  # of the samples of a cause
NOTICED = 1  # rank: where it is the only one, its number says nothing

TIMES = Threshold("times", 1.5, "from here a traced step also counts as an outlier")
WORTH_SHARE = Threshold(
    "worth_share", 0.02, "low impact from here: savings below 2 % of the time are not worth a change"
)
ONCE_SHARE = Threshold(
    "once_share", 0.1, "what was seen once may be half as frequent, or rarer: a tenth of the time is then still 5 %"
)

REMEDIES = {
    "saving": "Save less often, or asynchronously with `torch.distributed.checkpoint.async_save`.",
    "logging": "Log less often, and read values from the device only then.",
    "plotting": "Plot less often, or after training from values that are kept.",
    "metrics": "Compute metrics less often or on fewer samples.",
    "evaluation": "Evaluate less often, on fewer samples, or in another job.",
    "experience": "Reinforcement learning needs this. To save time, step many environments as one batch, or collect in "
    "other processes.",
}

_OF_LIGHTNING = {
    "evaluation": ("val_check_interval", "check_val_every_n_epoch"),
    "saving": ("every_n_train_steps", "every_n_epochs"),
    "logging": ("log_every_n_steps",),
}
_FREQUENCY = {  # by library and kind, the arguments that set it
    "transformers": {
        "evaluation": ("eval_steps", "eval_strategy", "evaluation_strategy"),
        "saving": ("save_steps", "save_strategy"),
        "logging": ("logging_steps",),
    },
    "lightning": _OF_LIGHTNING,
    "pytorch_lightning": _OF_LIGHTNING,
}

RULE = Rule(
    code="DP703",
    name="slow-steps",
    family="ranks",
    kind="time",
    summary="periodic slow steps (checkpointing, logging, evaluation)",
    since="0.1",
    thresholds=(TIMES, WORTH_SHARE, ONCE_SHARE),
    needs="recording",
)


def check(run: RunView) -> Iterator[Advice]:
    """Name what slow steps do, where the script does it, and how often."""
    causes = run.slow_steps(run.limit(TIMES))
    trained = {
        at
        for slow_steps in causes
        if slow_steps.periods and _is_pass(slow_steps, "backward")
        for at in slow_steps.steps
    }
    for cause in causes:
        if trained.issuperset(cause.steps) and (_is_pass(cause, "backward") or _is_pass(cause, "forward")):
            continue  # these steps train another model (a GAN's generator in every third step)
        facts = next(rank_facts for rank_facts in run.facts if rank_facts.rank == cause.rank)
        window = facts.window("untraced")
        if window is None:
            continue
        durations_ns = window.step_durations_ns
        batches = statistics.median_low(window.loader_batches) if window.loader_batches else 1
        if not cause.leaves and set(cause.periods) & _epochs(run, batches):
            continue  # workers that are started for each epoch make its first step slow
        collecting_ns = sum(window.gc_ns[at] for at in cause.steps if len(window.gc_ns) == window.steps)
        if 2 * collecting_ns > cause.share * sum(durations_ns):
            continue  # Python's garbage, which has a rule of its own
        once = _is_once(cause)
        share = _share_at_most_as_often(cause, window.first_step, durations_ns) if once else cause.share
        impact = run.impact(share, ONCE_SHARE) if once else run.impact(share, WORTH_SHARE)
        if impact is None or not (cause.periods or cause.leaves):
            continue
        of_method = cause.kind == "experience"
        mean_ms, median_ms = statistics.mean(durations_ns) / 1e6, statistics.median(durations_ns) / 1e6
        took_ms = statistics.median(durations_ns[at] for at in cause.steps) / 1e6
        saves = None if once or _meanwhile(cause, causes) else run.without_slow_steps(cause, durations_ns)
        yield Advice(
            rule=RULE.code,
            slug=RULE.name,
            kind=RULE.kind,
            impact="low" if of_method else impact,
            title=_title(run, cause, share, took_ms / median_ms, len(durations_ns)),
            why=f"The mean step takes {in_ms(mean_ms * 1e6)} ms, the median step {in_ms(median_ms * 1e6)} ms. "
            + ("All ranks wait for it." if run.measured.world_size > 1 else "Training stops for it.")
            + _hottest(run, cause),
            changes=[],
            remedy=" ".join(
                filter(
                    None,
                    (
                        _graphs_built(run, cause),
                        REMEDIES.get(cause.kind, ""),
                        _where_set(run, cause),
                        _held_out_batch(run, cause),
                        _kept_logits(run, cause),
                    ),
                )
            ),
            saves=saves or run.bound_of_all(share, "the extra time of those steps", durations_ns),
            confidence=_confidence(cause),
            evidence=[
                Evidence(label="slow steps", value=len(cause.steps), unit=f"of {len(durations_ns)} timed"),
                Evidence(label="first slow step", value=window.first_step + cause.steps[0]),
                Evidence(label="median slow step", value=took_ms, unit="ms"),
                Evidence(label="median step", value=median_ms, unit="ms"),
                Evidence(label="mean step", value=mean_ms, unit="ms"),
                *known("frequency set at", ", ".join(_set_at(run, cause))),
                *(call_path_evidence(run, cause.name, cause.where, [cause.where]) if cause.where else []),
            ],
            numerics="same",
            fingerprint=f"{RULE.code}:{cause.name or cause.where}" if cause.where else RULE.code,
        )


def _is_once(cause: SlowSteps) -> bool:
    """Whether a single step shows it, so that its period is not known."""
    return not cause.periods and len(cause.steps) == 1


def _share_at_most_as_often(cause: SlowSteps, first_step: int, durations_ns: Sequence[int]) -> float:
    """The share of the time of what was seen once, at the highest frequency that its place allows.

    A loop that counts its steps had not come to it in the steps before, and did not come to it again in those after.
    """
    usual_ns = statistics.median(durations_ns)
    (at,) = cause.steps
    apart = max(first_step + at - 1, len(durations_ns) - at, 1)
    return cause.extra_ns / (apart * usual_ns + cause.extra_ns)


def _title(run: RunView, cause: SlowSteps, share: float, times: float, timed: int) -> str:
    often = _often(cause, timed)
    of_all = f"{'up to ' if _is_once(cause) else ''}{100 * share:.0f} % of the time"
    if not cause.where:
        return f"{often[0].upper()}{often[1:]} takes {times:.1f} times as long as the others: {of_all}"
    what = f"`{cause.name}` ({cause.where})" if cause.name else cause.where
    rank = f" on rank {cause.rank}" if len(run.facts) > NOTICED else ""
    does = "collects experience and " if cause.kind == "experience" else ""
    return f"{what} {does}adds {in_ms(cause.extra_ns)} ms to {often}{rank}: {of_all}"


def _confidence(cause: SlowSteps) -> Confidence:
    if cause.kind == "experience" or (_is_once(cause) and not cause.kind):
        return "low"  # a function that is called once may prepare what comes after it
    return "high" if cause.periods else "medium"


def _hottest(run: RunView, cause: SlowSteps) -> str:
    """The line in the function that takes most of its time, where the function is the script's."""
    line = run.hottest_line(_own_name(cause), cause.where) if cause.where else None
    return f" Most of it is at {line}." if line and line != cause.where else ""


def _set_at(run: RunView, cause: SlowSteps) -> list[str]:
    """The lines of the script that pass a library how often to do it."""
    library = next((name for name in (cause.name.partition(".")[0], cause.library) if name in _FREQUENCY), "")
    arguments = _FREQUENCY.get(library, {}).get(cause.kind, ())
    return passed_at(run.any_facts().library_calls, arguments)


def _where_set(run: RunView, cause: SlowSteps) -> str:
    lines = _set_at(run, cause)
    return f"How often is set at {' and '.join(lines)}." if lines else ""


def _own_name(cause: SlowSteps) -> str:
    """The function's name without its class."""
    return cause.name.rpartition(".")[2]


def _held_out_batch(run: RunView, cause: SlowSteps) -> str:
    """What to say of an evaluation that draws smaller batches than training does."""
    if cause.kind != "evaluation":
        return ""
    drawn = [loader for loader in run.any_facts().loaders if loader.batch_size and loader.batches_drawn]
    if not drawn:
        return ""
    largest = max(drawn, key=lambda loader: loader.batch_size or 0)
    smallest = min(drawn, key=lambda loader: loader.batch_size or 0)
    if (smallest.batch_size or 0) * FEWER > (largest.batch_size or 0):
        return ""
    where = f" ({smallest.where})" if smallest.where else ""
    return (
        f"Its loader{where} has `batch_size={smallest.batch_size}`, training {largest.batch_size}: evaluation keeps no "
        f"activations for a backward pass, so {largest.batch_size} fit as well."
    )


def _graphs_built(run: RunView, cause: SlowSteps) -> str:
    """What to say of an evaluation that runs with gradients enabled."""
    function = next((facts.evaluates_with_graphs for facts in run.facts if facts.evaluates_with_graphs), None)
    if function is None:
        return ""
    if cause.kind != "evaluation" and run.share_inside(cause, function.partition(" (")[0]) < MOSTLY:
        return ""
    return (
        f"Run it under `torch.no_grad()`: gradients are enabled in {function}, so each forward pass builds a graph "
        "that no backward pass uses."
    )


def _kept_logits(run: RunView, cause: SlowSteps) -> str:
    """What to say of a Trainer of transformers that keeps the logits of all held-out samples for its metrics."""
    made_at = run.any_facts().keeps_logits
    if made_at is None or cause.name != "transformers.Trainer.evaluate":
        return ""
    return (
        f"The Trainer ({made_at}) keeps all logits of the evaluation for `compute_metrics`: pass "
        "`preprocess_logits_for_metrics`, for example an argmax, to reduce those of each batch."
    )


def _is_pass(cause: SlowSteps, what: str) -> bool:
    """Whether a pass of the training loop itself makes these steps slow."""
    return not cause.kind and _own_name(cause) in (what, f"the {what} pass")


def _meanwhile(cause: SlowSteps, causes: Sequence[SlowSteps]) -> bool:
    """Whether another rank does something else in most of these steps, which then stay slow."""
    others = [other_cause for other_cause in causes if other_cause.rank != cause.rank]
    return any(2 * len(set(cause.steps) & set(other.steps)) > len(cause.steps) for other in others)


def _often(cause: SlowSteps, timed: int) -> str:
    """`one step in 5`, with each period; `some steps` where none is known."""
    if cause.periods:
        return " and ".join(f"one step in {every}" for every in cause.periods)
    return f"one of {timed} timed steps" if _is_once(cause) else "some steps"


def _epochs(run: RunView, batches_a_step: int) -> set[int]:
    """Steps of an epoch of the one loader that is drawn from, where its workers are started anew; give or take one."""
    loaders = [loader for loader in run.any_facts().loaders if loader.batches_drawn]
    if len(loaders) != 1 or not loaders[0].num_workers or loaders[0].persistent_workers is not False:
        return set()
    batches = loaders[0].epoch_batches(run.measured.world_size)
    steps = 0 if batches is None else round(batches / max(1, batches_a_step))
    return {steps - 1, steps, steps + 1}
