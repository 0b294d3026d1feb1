"""Batch too small: fixed per-step costs dominate.

## What it measures

The recorded steps are replayed with twice, four and eight times the samples per rank: how much less time does a sample
take? Communication, the optimizer, kernel launches and operator calls take as long for a large batch as for a small
one. On a GPU, kernel time is assumed to grow in proportion to the batch. Small kernels grow less, so the predicted time
per sample is an upper bound.

## Why it matters

Each step all-reduces every gradient and updates every parameter once, whatever the number of samples. If communication
takes half of each step, twice the batch spreads that half over twice the samples.

## What to change

Raise the loader's batch size, and adjust what depends on it. The proposed size is the largest whose last doubling still
saves `worth_share` and whose predicted peak memory fits (`dptune whatif` shows it by components). Where memory cannot
be predicted, all GPU memory in use is assumed to grow with the batch, which is an upper bound. Where the replay misses
the recorded steps by too much for a prediction, twice the batch is proposed if half of the time that does not grow with
the batch reaches `worth_share`, with low impact, because the saving is unknown.

The global batch grows from B to kB, and the learning rate with it. This is a hypothesis about convergence, so check the
loss:

- SGD: k times the learning rate, with a warm-up of some epochs (Goyal et al.).
- Adam and AdamW: the square root of k times the learning rate; multiply 1 - beta by k for both betas, and divide eps by
  the square root of k (Malladi et al.).
- Others: no scaling rule is established, so choose the learning rate yourself.

More than twice the batch is proposed only if an epoch keeps `least_steps` optimizer steps, and for Adam and AdamW only
if beta1 stays at 0.5 or more: below, the scaling rule is an extrapolation.

A learning rate is proposed only if the optimizer is constructed with the one that the run started with: not if a
scheduler sets its own, or the first parameter group has another.

A schedule that counts steps must count k times fewer, to end after the same number of samples. Both scaling rules hold
up to a critical batch size, beyond which more samples per step hardly help convergence (McCandlish et al.). It is about
the gradient noise scale, which `dptune profile --noise-scale` measures: a global batch above the upper end of its
interval is not proposed. If no size remains, the rule is listed as skipped, with the noise scale.

If gradients accumulate over several micro-batches, fewer and larger ones are proposed first: k times the batch size
with 1/k of the accumulation steps. The global batch and the learning rate stay, and results are the same up to
rounding, so a predicted saving of `worth_accumulated_share` is enough. Work done once per step (the optimizer, the
all-reduce of the last micro-batch) is predicted to take as long as before. On GPUs this case is not predicted, and only
a larger global batch is proposed. It is not proposed either if several micro-batches of a step all-reduce gradients:
see `no-sync-missing`.

## When to leave it alone

- A Python loop over the samples of a batch takes 10 % of a step or more: its time grows with the batch, and the replay
  does not model that. Nothing is reported then; `operator-loops` names the loop.
- The loss falls more slowly per sample with the larger batch: the time to reach it is what counts.
- The data set is small: a batch larger than the data set is never proposed, but with k times fewer steps per epoch
  generalization often suffers.
- Batch norm, and losses that compare the samples of a batch, depend on the size of the batch and of the micro-batch.

## References

- Goyal et al. 2017, "Accurate, Large Minibatch SGD": https://arxiv.org/abs/1706.02677
- Malladi et al. 2022, "On the SDEs and Scaling Rules for Adaptive Gradient Algorithms":
  https://arxiv.org/abs/2205.10287
- McCandlish et al. 2018, "An Empirical Model of Large-Batch Training": https://arxiv.org/abs/1812.06162
- Measured with two gloo ranks on two busy cores, a small DistilBERT: 2 micro-batches of 8 instead of 16 of 1 saved 65 %
  of a step of 348 ms; 69 % had been predicted from a recording on idle cores.
- Measured with two gloo ranks over a link of 200 Mbit/s: twice the batch trained 1.83 times the samples per second,
  four times the batch 2.92 times.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from dptune.advice import Advice, Change, Evidence, Saving, impact_of
from dptune.measured import Missing, NoiseFigures
from dptune.rule import LoaderFacts, Rule, RunView, Threshold, discarding
from dptune_rules.batch import micro_batches
from dptune_rules.batch.scaled_rate import leaves_rule, scaled_rate
from dptune_rules.known import passed_at
from dptune_rules.loader_argument import loader_change
from dptune_rules.predicted_memory import fits, peak_evidence

TIMES = (2, 4, 8)
MEMORY_SHARE = 0.9  # of a device's memory, that the larger batch may take at most

WORTH_SHARE = Threshold(
    "worth_share", 0.15, "minimum saving per sample for twice the batch: less is not worth retuning the learning rate"
)
WORTH_ACCUMULATED_SHARE = Threshold(
    "worth_accumulated_share", 0.05, "identical steps differ by about 5 %; no learning rate has to be tuned again"
)
LOOP_SHARE = Threshold(
    "loop_share", 0.1, "of a step: a Python loop over the samples takes twice as long with twice the batch"
)
LEAST_STEPS = Threshold(
    "least_steps",
    20.0,
    "per epoch are left with more than twice the batch; Goyal et al. kept accuracy down to 156 per epoch",
)
SAME_COUNT = 0.05  # of the batch, up to which the calls of a loop are its samples, or some for each of them
ROOM_SHARE = Threshold("room_share", 0.7, "a GPU whose memory is fuller has no room for twice the activations")

RULE = Rule(
    code="DP301",
    name="small-batch",
    family="batch",
    kind="time",
    summary="batch too small: fixed per-step costs dominate",
    since="0.1",
    thresholds=(WORTH_SHARE, WORTH_ACCUMULATED_SHARE, LOOP_SHARE, ROOM_SHARE, LEAST_STEPS),
    needs="recording",
)


def check(run: RunView) -> Iterator[Advice]:
    """Propose the largest batch whose last doubling is worth it, with the learning rate that goes with it."""
    if discarding([facts.discarded_gradients for facts in run.facts]) is not None:
        raise Missing(
            "gradients are cleared before the optimizer uses them, so a step uses fewer samples than it draws"
        )
    if (facts := run.recorded_about("loaders")) is None:
        return
    loaders = [candidate for candidate in facts.loaders if candidate.batches_drawn]
    if not loaders:
        return
    lacks = ""
    if len(loaders) > 1:
        lacks = f"batches come from {len(loaders)} loaders, and it is unknown which one a step uses"
    elif not loaders[0].batch_size:
        lacks = "the loader's batch size was not recorded"
    elif loaders[0].own_batches:
        lacks = "the loader uses the script's own batch sampler, so the batch size is unknown"
    if lacks and _computes(run):
        return
    if lacks:
        raise Missing(lacks)
    loader, now, before = loaders[0], loaders[0].batch_size or 1, run.measured.samples_per_step
    if _loops_over_samples(run, now):
        return
    passes = micro_batches.micro_batches(run)
    if passes > 1:
        most = max(
            (times for times in range(2, micro_batches.MOST_TIMES + 1) if _has_room(run, now, times, passes)), default=1
        )
        larger = micro_batches.larger_micro_batches(run, now, passes, most)
        if larger and (larger[1].central_share or 0.0) >= run.limit(WORTH_ACCUMULATED_SHARE):
            yield micro_batches.advice(RULE, run, now, passes, *larger)
            return
    tried: list[tuple[int, Saving]] = []
    for times in TIMES:
        then = times * now
        if not _fits(run, now, times) or (loader.dataset_samples or math.inf) < times * before:
            break
        if times > TIMES[0] and (_epoch_steps(run, loader, times) < run.limit(LEAST_STEPS) or leaves_rule(run, times)):
            break
        change = Change(knob="loader.batch_size", now=now, then=then)
        try:
            saves = run.predict([change])
        except Missing:
            if tried or _computes(run):
                break
            saves = run.ceiling([change])
        if _of_last(run, saves, times, tried) < run.limit(WORTH_SHARE):
            break
        if not _teaches(run, times):
            if not tried:
                raise Missing(_too_many(run))
            break
        tried.append((times, saves))
        if saves.central_share is None:
            break
    if not tried:
        return
    times, saves = tried[-1]
    predicted = saves.central_share is not None
    share = _share(run, saves, times)
    impact = impact_of(share)
    if impact is None:
        return
    impact = impact if predicted else "low"
    rate = scaled_rate(run, times)
    then = times * now
    changes = [
        loader_change(run, loader, "batch_size", now, then),
        *rate.changes,
    ]
    yield Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact=impact,
        title=f"Batches of {now:,} samples are small: {then:,} samples take {saves.part_in_words} less time per sample",
        why="All-reduces, the optimizer and operator overhead take as long for a large batch as for a small one.",
        changes=changes,
        saves=saves,
        confidence="low",
        evidence=[
            Evidence(label="samples per step, all ranks", value=before),
            Evidence(
                label="exposed communication and waiting",
                value=run.measured.share("exposed_communication_ns"),
                unit="of a step",
            ).at(run.measured.where_exposed),
            *(
                Evidence(
                    label=f"time per sample with {times}x the batch",
                    value=1 - (saving.predicted_share or 0),
                    unit="of the present time",
                )
                for times, saving in tried
                if saving.predicted_share is not None
            ),
            Evidence(label="global batch then", value=times * before, unit="samples"),
            *_epoch(loader.dataset_samples, times * before),
            *passed_at(loader, "batch_size"),
            *peak_evidence(run, {"loader.batch_size": then}),
            *_noise(run),
        ],
        numerics="changes",
        watch=f"{rate.watch}{_accumulated(run, times)} Convergence per sample is not predicted: compare the loss.",
        fingerprint=f"{RULE.code}:loader.batch_size:{loader.dataset or 'loader'}",
    )


def _loops_over_samples(run: RunView, batch: int) -> bool:
    """Whether a loop of the script calls operators once or several times for each sample, for much of a step."""
    code = run.measured.known("user_code")
    for loop in code.loops if code else ():
        each = loop.repeats / batch
        if loop.share >= run.limit(LOOP_SHARE) and round(each) and abs(each - round(each)) <= SAME_COUNT * each:
            return True
    return False


def _epoch_steps(run: RunView, loader: LoaderFacts, times: int) -> float:
    """Optimizer steps of an epoch with `times` times the batch; infinite where the data set has no length."""
    batches = loader.epoch_batches(run.measured.world_size)
    return math.inf if batches is None else batches / run.any_facts().batches_per_step() / times


def _epoch(samples: int | None, a_step: float) -> Iterator[Evidence]:
    """How few steps an epoch has then."""
    if samples:
        yield Evidence(label="optimizer steps per epoch then", value=max(1, round(samples / a_step)))


def _noise(run: RunView) -> Iterator[Evidence]:
    noise = run.measured.known("noise")
    if noise is not None and noise.known("noise_scale") is not None:
        unit = f"samples ({_interval(noise)})"
        yield Evidence(label="noise scale of gradients", value=round(noise.noise_scale), unit=unit)


def _interval(noise: NoiseFigures) -> str:
    """What the steps allow, in samples."""
    low, high = (
        None if samples is None else f"{samples:,.0f}" for samples in (noise.known("low"), noise.known("high"))
    )
    return f"{low or 0} to {high}" if high else f"{low or 0} or more"


def _too_many(run: RunView) -> str:
    """Why not even twice the batch is proposed, where it would save time."""
    noise, now = run.measured.noise, run.measured.samples_per_step
    scale = noise.known("noise_scale")
    scale_text = _interval(noise) if scale is None else f"{scale:,.0f} ({_interval(noise)})"
    return (
        f"a larger batch would save time, but the gradient noise scale is {scale_text} samples: steps of {2 * now:,} "
        f"would hardly converge faster than steps of {now:,}"
    )


def _teaches(run: RunView, times: int) -> bool:
    """Whether a step can use that many samples: where the noise of gradients was measured, no more than its scale."""
    noise = run.measured.known("noise")
    most = None if noise is None else noise.known("high")
    return most is None or times * run.measured.samples_per_step <= most


def _computes(run: RunView) -> bool:
    """Whether so much of a step is computing, or waiting for batches, that twice the batch can save little."""
    return _fixed_share(run) < 2 * run.limit(WORTH_SHARE)  # of which twice the batch takes half


def _fixed_share(run: RunView) -> float:
    """What of a step surely does not grow with the batch: garbage is collected by how many objects were made."""
    account = run.measured.account
    idle_ns = account.other_idle_ns - account.gc_idle_ns
    return (account.exposed_communication_ns + account.copy_ns + idle_ns) / account.window_ns


def _share(run: RunView, saves: Saving, times: int) -> float:
    """What is predicted; of a bound the time that does not grow with the batch, as far as it goes."""
    if saves.central_share is not None:
        return saves.central_share
    return min(saves.high_share, _fixed_share(run) * (1 - 1 / times))


def _of_last(run: RunView, saves: Saving, times: int, before: list[tuple[int, Saving]]) -> float:
    """What the last doubling saves, of what a sample takes before it."""
    left = 1 - (before[-1][1].central_share or 0) if before else 1.0
    return 1 - (1 - _share(run, saves, times)) / left if left else 0.0


def _accumulated(run: RunView, times: int) -> str:
    """The way that leaves the global batch as it is, where a step has enough micro-batches for it."""
    passes = run.measured.accumulation.known("backwards_per_step") or 1
    if passes % times:
        return ""
    fewer = f"accumulate {passes // times} micro-batches instead of {passes}" if passes > times else "do not accumulate"
    return f" Alternatively {fewer}: the global batch and the learning rate stay the same (saving not predicted)."


def _fits(run: RunView, now: int, times: int) -> bool:
    """Whether the predicted peak fits. Where it is not predicted: whether a GPU has room for it, were all of its memory
    to grow; a CPU is taken to.
    """
    predicted = fits(run, {"loader.batch_size": times * now})
    if predicted is not None:
        return predicted
    if run.measured.device_kind == "cpu":
        return True
    shares = [memory.peak_share for memory in run.measured.memory]
    if not shares:
        raise Missing("GPU memory use was not recorded")
    return max(shares) < run.limit(ROOM_SHARE) and times * max(shares) <= MEMORY_SHARE


def _has_room(run: RunView, now: int, times: int, passes: int) -> bool:
    """Whether so many times larger micro-batches fit: in a GPU's memory, or in that of a CPU's host."""
    predicted = fits(run, {"loader.batch_size": times * now})
    if predicted is None and run.measured.device_kind == "cpu":
        return micro_batches.host_has_room(run, times, passes, MEMORY_SHARE)
    return _fits(run, now, times)
