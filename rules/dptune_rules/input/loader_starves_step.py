"""The training process waits for its data loader.

## What it measures

The time that the training thread spends inside the DataLoader's `__next__`, as a share of the step: from untraced steps
if dptune recorded the run. On a GPU only the idle part counts, because the GPU keeps computing while work is queued.
The median over ranks sets the impact. The number of workers and the saving are based on the rank that waits most in
each step, because the others wait for it in the next all-reduce.

Where other processes keep the machine too busy to time steps, a loader without workers is still reported if every rank
waits for it for 30 % or more of every window: other processes slow batch preparation as much as the rest of the step.
No saving is predicted then.

## Why it matters

With `num_workers=0` the training process prepares every batch itself while the device idles. With workers it waits if
they prepare batches more slowly than steps consume them.

If dptune recorded the run, batch preparation is measured, also in workers: reading and transforming samples, collating
them, and whether each computes or waits for storage. If one function takes most of it, the finding names that function
and its slowest line.

Without workers, if waiting takes a share w of a step and the rest takes 1 - w, then w / (1 - w) workers keep up. If n
workers leave a wait of w, n / (1 - w) would keep up. A plain torch.profiler trace does not name n: there the longest
waits come every n batches.

The profiler slows a loader without workers: it adds at most 10 us to each event recorded in the wait. Without untraced
steps, the wait minus this cost is the lower end of the saving, or less, and the wait is its upper end; confidence is
low if the lower end is below 5 % of the step. On a GPU, workers are proposed if a replay of the steps predicts what
they save.

## What to change

Set `num_workers` of the DataLoader to the number of workers that keep up plus one, within the cores that this rank may
use (usable cores / ranks on the host, minus those that a model on the CPU computes with). If the training thread mostly
sleeps while it waits, preparing a batch needs no core, and the cores are no limit. With the first workers,
`persistent_workers=True` is proposed, so that they do not restart each epoch.

Workers that prepare a batch in less than a quarter of a step keep up. The step then waits for the transfer of the
batch: each tensor, and each other object, is sent separately. Merge many small tensors into a few in `collate_fn`
(`torch.cat`, with the sample number of each row), and split them in the training process.

Where no core is free, or too few for workers to keep up, make the slow function cheaper: decode and resize once and
store the result, transform whole batches, or move transforms to the device. Collating arrays of one shape
(`torch.stack`) is faster than collating lists of numbers, and a data set with `__getitems__` returns whole batches.

The saving is at most the wait, and at most what the proposed workers can hide. Measured with two gloo ranks on two
cores, one worker instead of none: a wait of 41 % of a step, 27 to 42 % saved over 5 pairs; two other scripts saved 1.0
and 1.1 times their wait. On a CPU the saving of the first workers is predicted: by replay, else 0.6 to 1.12 times that
wait, at the lower end without handing batches over. On a CPU a cheaper batch
also frees cores for communication: it saves at most the wait plus the core time of batch preparation, and at most the
time in which a rank computes nothing else. Where ranks waited for 59 and 62 % of a step, this bound was 75 and 74 %,
and 65 % was saved both times. If the training process prepares batches itself and one function takes most of the time,
the finding depends on whether its remedy is known. If it is, the function is assumed to take no time afterwards: the
interval is from 70 % of its part of the wait to 110 % of this bound. If not, the interval starts at zero.

If the slowest line has a known costly pattern, the remedy is named: a comparison with a whole column for each sample,
an archive that is opened for each sample, statistics of all samples, `index()` of a list, `pop(i)` from its middle, and
the patterns that DP901 knows. Otherwise, if the first batches were prepared without random numbers and the script plans
several epochs, the remedy is to prepare each sample once.

A `TensorDataset` indexes its tensors for each sample, and the loader stacks the samples again: a batch of 2,048 rows
and three tensors calls 6,144 operators. So do its subsets, and data sets of the script whose `__getitem__` only indexes
tensors. All of them also accept a list of indices: with `batch_size=None` and a `BatchSampler` as the sampler, a batch
is one call for each tensor. Samples are then so cheap that workers can only hide the remaining
cost. This is proposed before the first workers, for samples of up to 16 KiB: larger ones take as long to copy. For
samples of up to 4 KiB it saved 64 to 87 % of the CPU time of preparing batches. Three training loops, timed on a busy
machine, saved 0.34 to 1.43 times their wait, so the predicted interval is from 0.3 to 1.5 times the wait.

## When to leave it alone

- A batch is ready within two milliseconds: handing it over from a worker takes as long, and steps get slower. The
  impact counts only the time beyond the hand-over, and workers are proposed only if that exceeds the noise of the
  steps.
- The data set already returns a whole batch in one call (`__getitems__`), workers would not help, and no costly pattern
  is found: dptune knows no remedy, and does not report low impact.
- A large batch is prepared about as fast as memory is copied. A worker copies its tensors into shared memory, and the
  training process maps that page by page. On a CPU this takes cores from the model: with one worker and a batch of 12.8
  MiB that was ready in 8 ms, steps of 18.5 ms took 2 to 18 % longer, and under load 1.8 times as long. The cost of
  sending is estimated from the recorded bytes of a batch. Workers are proposed only if the step still gets faster, and
  the impact excludes the time that sending would take.
- An `IterableDataset` whose code does not divide its samples by `get_worker_info()`: each worker would yield all of
  them. Workers are then not proposed. Libraries that divide them are known: datasets, webdataset, streaming, litdata.
- Without workers, most of the wait is in the sampler or in pinning: workers only take over reading and collating.
- Most of the wait of an epoch is in its first step, while workers start: see `workers-restart`.
- On a GPU, the device still has work queued while the script waits: the wait is then hidden.
- Storage is the limit: more workers would wait together. Check its throughput first.
- Random augmentation: workers draw from their own seeds, so a run is not bitwise identical to earlier ones.

## References

- torch.utils.data, "Single- and Multi-process Data Loading": https://pytorch.org/docs/stable/data.html
- PyTorch performance tuning guide, on asynchronous data loading and augmentation:
  https://pytorch.org/tutorials/recipes/recipes/tuning_guide.html
- Measured with two gloo ranks on two cores: 2 workers instead of 0 ran 1.42 times as fast. With epochs of 8 batches, 4
  workers without `persistent_workers` reduced a step from 72 to 40 ms, and half of those 40 ms was their start in each
  epoch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

from dptune.advice import Advice, Impact
from dptune.measured import Missing, digits, in_ms
from dptune.rule import Rule, RunView, Threshold
from dptune_rules.call_paths import call_path_evidence
from dptune_rules.input import batch_transfer, cheaper_batches, costly_forms, loader_words, worker_savings
from dptune_rules.input.batch_preparation import (
    MOST_SHARE,
    costly_function,
    sent_mib,
    slow_part,
    takes_indices,
    takes_whole_batches,
)
from dptune_rules.input.batch_transfer import KEEPS_UP_SHARE, MANY_TENSORS
from dptune_rules.input.loader_cores import (
    MOST_WORKERS,
    computed_share_of,
    core_per_process,
    free_cores,
    keep_up,
    share_of_cores,
    spare_share,
    workers_that_keep_up,
)
from dptune_rules.input.loader_waits import (
    batches_per_step,
    device_idle,
    has_workers,
    inferred_workers,
    longest_wait,
    of_trace,
)
from dptune_rules.known import known, passed_at
from dptune_rules.loader_argument import loader_change

HANDOVER_MS = Threshold(
    "handover_ms",
    2.0,
    "cost of a batch that a worker has ready: batches of 64 x 256 floats and of 8 x 3 x 224 x 224 took "
    "1.4 to 2.5 ms to arrive on two cores; only what a batch takes beyond that can be saved",
)
SEND_MS = Threshold(
    "send_ms",
    1.0,
    "per MiB of a batch, in a worker: copying tensors of 1 to 26 MiB into shared memory took 1.0 to 1.6 ms of a core, "
    "the process forked on two cores, the model on the CPU",
)
RECEIVE_MS = Threshold(
    "receive_ms",
    0.25,
    "per MiB of a batch, in the training process: mapping and first reading of these tensors took 0.25 ms longer than "
    "reading those that the process had made itself",
)
WARNING_SHARE = Threshold("warning_share", 0.05, "medium impact from here: 5 % of a step is spent waiting")
ERROR_SHARE = Threshold("error_share", 0.20, "above the usual 15 % for high impact: the wait may be partly hidden")
WORTH_SHARE = Threshold("worth_share", 0.02, "low impact from here: workers that save less are not worth their cores")
BUSY_SHARE = Threshold("busy_share", 0.3, "of every window on a busy machine: twice the usual 15 % for high impact")
_UNEVEN = 1.5  # times the wait of all ranks: from there on that of one rank, which the saving is of, is another

RULE = Rule(
    code="DP501",
    name="loader-starves-step",
    family="input",
    kind="time",
    summary="the training process waits for its data loader",
    since="0.1",
    thresholds=(
        *(WARNING_SHARE, ERROR_SHARE, HANDOVER_MS, SEND_MS, RECEIVE_MS, WORTH_SHARE, MOST_SHARE, BUSY_SHARE),
        *(KEEPS_UP_SHARE, MANY_TENSORS),
    ),
    asked_when_busy=True,
)


def check(run: RunView) -> Iterator[Advice]:
    """Propose workers, or a cheaper batch where no core is left for them."""
    if run.facts and not any(facts.loaders or "loaders" in facts.unread for facts in run.facts):
        return  # the script has no DataLoader
    if not run.times_hold and run.least_loader_wait() < run.limit(BUSY_SHARE):
        raise Missing("other processes kept the machine busy, and not every rank waits long in every window")
    host = run.measured.input.wait_share
    longest = max([host, longest_wait(run), *(rank.known("loader_wait_share") or 0.0 for rank in run.measured.ranks)])
    wait, longest_idle = device_idle(run, host, longest)
    if wait < run.limit(WARNING_SHARE) or _is_at_epoch_starts(run) or _is_of_iterators(run, wait):
        return
    loaders = run.facts[0].loaders if run.facts else []
    loader = max(
        loaders, key=lambda candidate: (candidate.batches_drawn or 0, candidate.dataset_samples or 0), default=None
    )
    now = loader.num_workers if loader else None
    preparing = run.measured.input.known("preparing")
    cores = free_cores(run, computed_share_of(run, preparing, now), now)
    slow = slow_part(run, preparing, core_per_process(run, now)) if preparing else None
    cheaper = f"make a batch cheaper to prepare{f': {slow}' if slow else ''}"
    by_index = takes_indices(loader, preparing)
    if loader and by_index:
        cheaper = (
            f"index a whole batch of the {loader.dataset} at once instead of sample by sample"
            + (f" ({loader.where}):" if loader.where else ":")
            + " `DataLoader(dataset, batch_size=None, sampler=BatchSampler(sampler, batch_size, drop_last))`"
        )
    culprit = costly_function(run, preparing)
    indexed_at = culprit.where if culprit and by_index else ""
    if by_index:
        culprit = None
    instead = costly_forms.remedy(run, loader, culprit, preparing) if culprit else ""
    batch_ms = wait * run.measured.step.time_ns / 1e6 / batches_per_step(run)
    prepared = 1 - (run.measured.input.other_share if now == 0 else 0.0)  # the part that workers can take over
    handover = run.limit(HANDOVER_MS) / batch_ms
    batch_mib = sent_mib(run, preparing, now)
    sending, receiving = batch_mib * run.limit(SEND_MS) / batch_ms, batch_mib * run.limit(RECEIVE_MS) / batch_ms
    enough = None if now is None else workers_that_keep_up(now, longest, cores)
    small_gain = wait * max(0.0, prepared - handover)
    gain = wait * max(0.0, prepared - handover - receiving)
    if batch_mib and enough:
        gain = min(gain, 1 - longest * (1 + sending) / enough)
    dataset = (loader and loader.dataset) or "loader"
    repeats = loader is not None and loader.iterable is True and loader.sharded_by is None
    if repeats and loader and loader.drops_at and preparing and preparing.reading_share >= run.limit(MOST_SHARE):
        return  # samples-dropped names what to change
    ready_ns = batch_transfer.interval_ns(run, preparing, now, run.limit(KEEPS_UP_SHARE))
    at_once = by_index and now == 0  # samples so cheap that workers would hide little more
    then = None if repeats or ready_ns or at_once or gain < _least_gain(run) else enough
    changes = [] if then is None else [loader_change(run, loader, "num_workers", now, then)]
    if changes and loader and not now and loader.persistent_workers is False:
        changes.append(loader_change(run, loader, "persistent_workers", False, True))
    most = max(longest_idle, min(spare_share(run), longest_idle + share_of_cores(run, preparing)))
    how = "the wait"
    if most > longest_idle:
        how += ", plus the compute time saved by the cores that batch preparation uses"
    elif longest_idle < longest:
        how += " during which the device is idle"
    saves = of_cheaper = run.bound(0.0, most, how)
    if now == 0 and run.times_hold and prepared >= 1 - run.limit(MOST_SHARE):
        if culprit and instead:
            of_cheaper = cheaper_batches.without_function(run, culprit, prepared=prepared, most=most) or of_cheaper
        elif loader and preparing and by_index:
            predicted = cheaper_batches.by_index(run, loader, preparing, prepared=prepared, most=most)
            of_cheaper = predicted or of_cheaper
        saves = of_cheaper
    if then is not None:
        most = min(longest_idle * prepared, 1 - (now or longest) / then)
        how = "the wait, or what this number of workers can hide, whichever is smaller"
        saves = run.bound(0.0, most, how)
        saves = run.saving(changes, saves) if run.times_hold else saves
        if saves.basis == "bound" and not now:
            spared = prepared - handover - receiving
            saves = worker_savings.of_first_workers(run, then, prepared=prepared, spared=spared) or saves
    alone = now is None and has_workers(run) is False and run.measured.known("device_kind") != "cpu"
    if alone and run.times_hold and (then := workers_that_keep_up(0, longest, None)):
        changes, saves = of_trace(run, then, saves, host - wait)
        then = then if changes else None
    reason, remedy = "", cheaper  # why workers are no remedy, and what is
    why = loader_words.why(now, run.measured.known("device_kind"))
    if saves.basis == "replayed" and not saves.central_share:
        reason = f"the replay with {then} workers is no faster"
        changes, then, saves = [], None, of_cheaper
    elif ready_ns and preparing and now:
        culprit, why = None, batch_transfer.WHY
        remedy = batch_transfer.remedy(preparing, now, ready_ns, run.limit(MANY_TENSORS))
    elif prepared < 1 - run.limit(MOST_SHARE):
        culprit = None
        remedy = (
            f"{100 * (1 - prepared):.0f} % of the wait is not batch preparation: check the sampler and memory pinning"
        )
    elif at_once:
        why = why.removesuffix(loader_words.WORKERS)
    elif repeats:
        reason = "workers would each return every sample"
    elif gain < _least_gain(run) <= small_gain and enough:
        sends_ms = (sending + receiving) * batch_ms
        reason = (
            f"sending a batch of {digits(batch_mib)} MiB from a worker costs about {in_ms(sends_ms * 1e6)} ms, "
            f"preparing it {in_ms(batch_ms * 1e6)} ms"
        )
        why = loader_words.SENDING
    elif small_gain < _least_gain(run) and now is not None:
        more = "more workers" if now else "workers"
        reason = f"that is {in_ms(batch_ms * 1e6)} ms per batch, too little for {more} to help"
    elif now is None:
        more = "workers (it has none)" if has_workers(run) is False else "more workers"
        more = f"{then} {more}" if changes else more
        if inferred := inferred_workers(run):
            number = keep_up(inferred, longest)
            more = f"about {number} workers" if inferred < number <= MOST_WORKERS else "more workers"
            more += f" (now probably {inferred})"
        remedy = f"give the DataLoader {more}, or {cheaper}"
    elif then is None and cores is None:
        reason = f"more than its {now} workers would hardly help"
    elif then and culprit and saves.basis == "bound" and then == cores and then * (1 - longest) < (now or longest):
        workers = "1 worker, which saves" if then == 1 else f"{then} workers, which save"
        reason = f"the free cores allow {workers} at most {100 * saves.high_share:.0f} % of a step"
        changes, then, saves = [], None, of_cheaper
    elif then is None:
        reason = f"no core is left for {f'more than its {now} workers' if now else 'workers'}"
        why = why.removesuffix(loader_words.WORKERS)
    else:
        remedy = f"use {then} {'worker' if then == 1 else 'workers'} {f'instead of {now}' if now else '(now none)'}"
    waits = f"step waits {100 * wait:.0f} % of its time for the data loader"
    if longest_idle >= _UNEVEN * wait:
        waits += f" ({100 * longest_idle:.0f} % with the rank that waits longest in each step)"
    title = f"A {waits}: {reason + ', so ' if reason else ''}{remedy}"
    if culprit and remedy == cheaper:
        title = f"Make `{culprit.name}` ({culprit.where}) cheaper: a {waits}, {100 * culprit.share:.0f} % of that in "
        title += "this function"
        title += f", and {reason}" if reason else ""
    elif culprit and instead and then is not None:
        title = f"A {waits}, {100 * culprit.share:.0f} % of that in `{culprit.name}` ({culprit.where}): make it "
        title += f"cheaper first (see the change), then {remedy}"
    elif culprit:
        title += f". `{culprit.name}` ({culprit.where}) takes {100 * culprit.share:.0f} % of the wait"
    impact = _impact(run, wait * max(0.0, 1 - handover - sending - receiving))
    if impact == "low" and not changes and not instead and takes_whole_batches(preparing):
        return
    yield Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact=impact,
        title=title,
        why=why,
        changes=changes,
        remedy=instead if culprit else "",
        remedy_first=bool(culprit and instead),
        saves=saves,
        confidence=_confidence(run, now, host - wait),
        evidence=[
            *loader_words.evidence(run, host, wait, now, cores, (loader and loader.where) or ""),
            *passed_at(loader, "num_workers"),
            *known("samples are indexed at", indexed_at),
            *(call_path_evidence(run, culprit.name, culprit.where) if culprit else []),
        ],
        numerics="same",
        watch=loader_words.repeats(now, dataset, preparing.read_by if preparing else "")
        if repeats
        else loader_words.watch(run, then) + (loader_words.ITERABLE if alone and changes else ""),
        fingerprint=f"{RULE.code}:loader.num_workers:{dataset}",
    )


def _is_at_epoch_starts(run: RunView) -> bool:
    """Whether most of an epoch's wait is for workers to start, which another rule is for."""
    try:
        return run.epoch_starts().hold_the_wait
    except Missing:
        return False


def _is_of_iterators(run: RunView, wait: float) -> bool:
    """Whether most of the wait is for iterators that steps make anew, which another rule is for."""
    share = max((new_iterator.share for new_iterator in run.new_iterators()), default=0.0)
    return 2 * share >= wait


def _least_gain(run: RunView) -> float:
    """The share of a step from which workers are worth proposing: what the median of the timed steps is unsure by."""
    step = run.measured.step
    low, high = step.known("untraced_q1_ns"), step.known("untraced_q3_ns")
    unsure = (high - low) / step.time_ns / math.sqrt(step.untraced_steps) if low and high else 0.0
    return max(run.limit(WORTH_SHARE), unsure)


def _impact(run: RunView, share: float) -> Impact:
    """By what of the wait can be spared: a short step waits a large share for what any loader takes."""
    if share >= run.limit(ERROR_SHARE):
        return "high"
    return "medium" if share >= run.limit(WARNING_SHARE) else "low"


def _confidence(run: RunView, now: int | None, hidden: float) -> Literal["low", "medium", "high"]:
    """`hidden`: the part of the wait, as a share of the step, in which the device computes."""
    if now is None:
        beyond_profiler = run.measured.input.least_share - hidden >= run.limit(WARNING_SHARE)
        return "medium" if has_workers(run) or beyond_profiler else "low"
    # where the model computes on the CPU, workers take cores from it
    sure = run.times_hold and run.measured.input.basis == "untraced" and run.measured.known("device_kind") != "cpu"
    return "high" if sure else "medium"
