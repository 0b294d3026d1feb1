"""Gradient buckets are latency-bound (too small), or a single large bucket cannot overlap with backward.

## What it measures

The gradient all-reduces of a step: their number, their sizes, and the shortest duration. In a recording of `dptune
profile` they are the all-reduces whose size is that of a DDP bucket. In a plain trace every all-reduce of more than 64
bytes counts, and only if all collectives are all-reduces and broadcasts. The gradients of one backward pass are the
sum of these messages.

Two cases:

- *too small*: the mean message is below 1 MiB and larger buckets would at least halve their number;
- *too large*: all gradients are sent in a single message of 2 MiB or more, with almost no overlap. Below 2 MiB, the
  smallest proposed bucket, closed by the tensor that fills it, may hold all gradients.

## Why it matters

An all-reduce costs its latency, whatever its size, plus its bytes divided by the bandwidth of the link. Many small
buckets pay the latency many times. The cost in a step is estimated from the messages that are no longer sent, each at
the shortest observed duration, which has the least waiting and contention. The estimate is limited to the exposed
transfer. This share, or the prediction, sets the impact.

The saving can be larger: messages in flight slow each other and the compute that they overlap. The upper bound is
therefore all communication of the step, hidden or exposed, minus the remaining messages, each at the shortest duration,
and minus waiting for a rank that is late by 10 % of the step or more. A bound from latencies alone would be too low:
two gloo ranks on one machine went from 92 to 36 ms a step, and latency accounted for only 22 ms.

A single bucket is complete only when the backward pass is over, so it cannot overlap with the backward pass at all.
Splitting it saves at most the exposed communication of the gradients ready earlier: no bucket size sends the last
gradient earlier, so its part of the bytes is subtracted. Waiting for a late rank remains, whatever the bucket size.
Where the traces of some ranks are missing, the two cannot be separated: the bound then includes waiting, and the
finding states this.

## What to change

`bucket_cap_mb` of DistributedDataParallel. The proposal is a quarter of the gradients, between 1 MiB and 25 MiB: few
messages, while three quarters can be sent before the backward pass ends. The limits are DDP's default sizes.

Where the run has a step model, the steps are replayed with sizes of 0.1, 0.2, 0.5 and so on up to 50 MiB. The size with
the shortest step is proposed, together with the predictions for the other sizes. Where the best size saves less than
low impact requires, nothing is proposed.

By default, DDP's first bucket is 1 MiB and the others are 25 MiB, so that the first is sent early. Passing 25 is not
the same: the first bucket is then 25 MiB too, and a model with less than that has one exposed bucket.

## When to leave it alone

- The communication is hidden: latency then does not delay the step.
- Buckets are small because the model is.
- One tensor holds most of the gradients (an embedding): a bucket never splits it, so a smaller cap changes little. If
  it is ready last, there is no finding.
- The module is compiled: torch splits its graph at buckets, and rejects sizes below 1 MiB. Those are not proposed.
- A communication hook depends on the buckets: PowerSGD keeps its state per bucket.

## References

- Li et al. 2020, "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", section 3.2.2 on bucketing
  and section 5 on choosing the size: https://arxiv.org/abs/2006.15704
- DistributedDataParallel, `bucket_cap_mb`:
  https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
- Measured with two gloo ranks over a link of 200 Mbit/s: 0.05 MiB buckets instead of the default ran at 0.74 times the
  speed, with 2.4 MB of gradients.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from dptune.advice import Advice, Change, Evidence, Location, Saving
from dptune.measured import CollectiveFigures, Missing, digits, in_ms
from dptune.rule import Rule, RunView, Threshold

MIB = 2**20
SCALAR_BYTES = 64  # a loss or a counter that ranks average, not a bucket of gradients
TARGET_BUCKETS = 4
LEAST_SPLIT = 2  # buckets of the smallest cap: the tensor that fills one closes it, so fewer bytes may stay in one
LEAST_CAP_MIB, MOST_CAP_MIB = 1, 25
TRIED_MIB = (0.1, 0.2, 0.5, 1, 2, 5, 10, 25, 50)

SMALL_MIB = Threshold("small_mib", 1.0, "DDP's own first bucket, the smallest it makes by default, is 1 MiB")
FEWER_TIMES = Threshold(
    "fewer_times", 2.0, "with more than half the messages left, the change is lost in the noise of a step"
)
WORTH_SHARE = Threshold("worth_share", 0.02, "low impact from here: savings below 2 % of a step are not worth a change")
TAIL_SHARE = Threshold("tail_share", 0.05, "medium impact from here: exposed communication of a single bucket")
HIDDEN_SHARE = Threshold(
    "hidden_share", 0.1, "a single bucket is sent when the backward pass is over: almost all of it is exposed"
)

RULE = Rule(
    code="DP101",
    name="bucket-size",
    family="communication",
    kind="time",
    summary="DDP buckets are latency-bound (too small), or a single large bucket cannot overlap with backward",
    since="0.1",
    thresholds=(SMALL_MIB, FEWER_TIMES, WORTH_SHARE, TAIL_SHARE, HIDDEN_SHARE),
)


def check(run: RunView) -> Iterator[Advice]:
    """Propose larger buckets where latency costs time, smaller ones where a single bucket cannot be hidden."""
    buckets = _buckets(run)
    if buckets is None:
        return
    if buckets.mean_bytes < run.limit(SMALL_MIB) * MIB:
        yield from _raise(run, buckets)
    elif round(buckets.calls) == 1 and buckets.gradient_bytes >= LEAST_SPLIT * LEAST_CAP_MIB * MIB:
        yield from _lower(run, buckets)


@dataclass(frozen=True)
class _Buckets:
    """The all-reduces of one backward pass that carry gradients; `passes` such backward passes make a step."""

    calls: float
    passes: int
    gradient_bytes: float
    largest_bytes: int
    shortest_ns: int

    @property
    def mean_bytes(self) -> float:
        return self.gradient_bytes / self.calls

    @property
    def cap_mib(self) -> int:
        """A quarter of the gradients, within the sizes DDP itself starts from."""
        return min(MOST_CAP_MIB, max(LEAST_CAP_MIB, math.ceil(self.gradient_bytes / TARGET_BUCKETS / MIB)))

    @property
    def fewest_calls(self) -> int:
        """With that cap at least so many: the tensor that fills a bucket closes it, so it may overshoot by one."""
        return max(1, math.ceil(self.gradient_bytes / (self.cap_mib * MIB + self.largest_bytes)))


def _buckets(run: RunView) -> _Buckets | None:
    found = run.measured.collectives
    reductions = [
        c
        for c in found
        if c.kind == "all_reduce" and c.calls_per_step > 0 and run.measured.may_average_gradients(c.known("group"))
    ]
    if any(c.kind == "unknown" for c in found):
        raise Missing("the traces do not name every collective, so gradient buckets cannot be identified")
    reductions = [c for c in reductions if c.message_bytes > SCALAR_BYTES]
    sizes = {size for f in run.facts[:1] for d in f.ddp for size in d.rebuilt_bucket_sizes or d.bucket_sizes}
    if any(c.message_bytes in sizes for c in reductions):
        reductions = [c for c in reductions if c.message_bytes in sizes]
    elif reductions and not run.facts and any(c.kind not in ("all_reduce", "broadcast") for c in found):
        raise Missing("other collectives run next to the all-reduces, so DDP's buckets cannot be identified")
    return _of_one_pass(reductions, run.measured.accumulation.known("synchronised_backwards_per_step") or 1)


def _of_one_pass(reductions: list[CollectiveFigures], passes: int) -> _Buckets | None:
    if not reductions:
        return None
    return _Buckets(
        calls=sum(c.calls_per_step for c in reductions) / passes,
        passes=passes,
        gradient_bytes=sum(c.calls_per_step * c.message_bytes for c in reductions) / passes,
        largest_bytes=max(c.message_bytes for c in reductions),
        shortest_ns=min(c.shortest_ns for c in reductions),
    )


def _latency_ns(run: RunView) -> float:
    """What an all-reduce of no bytes takes, where the links tell it: the shortest seen moved bytes as well."""
    latencies_us = [
        link.alpha_us
        for link in run.measured.known("links") or []
        if link.kind == "all_reduce" and link.known("alpha_us")
    ]
    return 1e3 * max(latencies_us) if latencies_us else math.inf


def _raise(run: RunView, buckets: _Buckets) -> Iterator[Advice]:
    removed = buckets.calls - buckets.fewest_calls
    if buckets.calls < run.limit(FEWER_TIMES) * buckets.fewest_calls:
        return
    shortest = buckets.passes * buckets.shortest_ns / run.measured.traced_step_ns
    exposed = run.measured.share("exposed_without_waiting_ns")
    start_up = buckets.passes * min(buckets.shortest_ns, _latency_ns(run)) / run.measured.traced_step_ns
    share = min(removed * start_up, exposed)
    stays = buckets.fewest_calls * shortest + run.waiting_that_stays
    ceiling = max(share, run.unstretched(run.measured.share("communication_ns") - stays))
    everything = Evidence(
        label="exposed communication and waiting",
        value=run.measured.share("exposed_communication_ns"),
        unit="of a step",
    )
    changes = _changes(run, buckets, larger=True)
    most = (
        "all communication of a traced step, hidden or not (it slows the compute that it overlaps), less what stays: "
        f"per backward pass {buckets.fewest_calls} x {in_ms(buckets.shortest_ns)} ms, the shortest duration seen"
        + (", and waiting for the late rank" if run.waiting_that_stays else "")
    )
    if not changes:
        return
    found = _found(run, buckets, changes, run.bound(0.0, ceiling, most), larger=True)
    start_ups, predicted = share, found.saves.central_share is not None
    share = start_ups if found.saves.central_share is None else found.saves.central_share
    latency = f"the latency of the others is about {100 * start_ups:.0f} %"
    gains = f"which saves {found.saves.part_in_words}" if predicted else latency
    then = math.ceil(buckets.gradient_bytes / found.cap_mib / MIB)
    impact = run.impact(share, WORTH_SHARE)
    if impact is None:
        return
    yield Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact=impact,
        title=f"Gradients are sent in {buckets.calls:.0f} all-reduces of {_size(buckets.mean_bytes)} on average: "
        f"{_size(found.cap_mib * MIB)} buckets need about {then}{',' if predicted else ';'} {gains} of a step",
        why="Every all-reduce pays its latency, whatever its size. Larger buckets pay it less often.",
        changes=found.changes,
        saves=found.saves,
        confidence="medium" if run.facts else "low",
        evidence=[
            *_evidence(run, buckets, everything.at(run.measured.where_exposed)),
            Evidence(label="latency saved", value=start_ups, unit="of a step"),
            *found.curve,
        ],
        numerics="same",
        fingerprint=f"{RULE.code}:ddp.bucket_cap_mb:raise",
    )


def _lower(run: RunView, buckets: _Buckets) -> Iterator[Advice]:
    exposed = run.measured.share("exposed_without_waiting_ns")  # waiting for a late rank is hidden by no bucket size
    # Of a call that is not split, what is longer than the shortest one is waiting.
    transfer = min(exposed, buckets.passes * buckets.shortest_ns / run.measured.traced_step_ns)
    early = _early_share(run)
    if early * transfer < run.limit(TAIL_SHARE):
        return
    changes = _changes(run, buckets, larger=False)
    split = transfer <= run.measured.share("exposed_transfer_ns")
    what = "communication" if split else "communication or waiting, which cannot be separated"
    bound = run.bound(0.0, run.unstretched(early * exposed), f"the exposed {what}; the last bucket stays exposed")
    if not changes:
        return
    found = _found(run, buckets, changes, bound, larger=False)
    share = early * transfer if found.saves.central_share is None else found.saves.central_share
    impact = run.impact(share, WORTH_SHARE)
    if impact is None:
        return
    hidden = run.measured.account.overlap_share
    if hidden > run.limit(HIDDEN_SHARE):
        return
    yield Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact=impact,
        title=f"All {_size(buckets.gradient_bytes)} of gradients are sent in one all-reduce that nothing overlaps: a "
        f"step spends {100 * transfer:.0f} % of its time waiting for "
        + ("the transfer" if split else "the transfer or for late ranks, which the traces do not separate"),
        why="A bucket is sent when its last gradient is ready: a single bucket only after backward. Smaller buckets "
        "start while backward still runs.",
        changes=found.changes,
        saves=found.saves,
        confidence="low" if found.saves.basis == "bound" else "medium",
        evidence=[
            *_evidence(run, buckets, run.exposed_transfer()),
            Evidence(label="hidden", value=hidden, unit="of the communication"),
            *found.curve,
        ],
        numerics="same",
        fingerprint=f"{RULE.code}:ddp.bucket_cap_mb:lower",
    )


def _early_share(run: RunView) -> float:
    """Part of the gradients' bytes that is ready before the last gradient; 1 where the order was not recorded."""
    shares = [
        1 - ddp.gradient_sizes[ddp.grad_ready_order[-1]] / max(1, sum(ddp.gradient_sizes))
        for facts in run.facts[:1]
        for ddp in facts.ddp
        if ddp.grad_ready_order and 0 <= ddp.grad_ready_order[-1] < len(ddp.gradient_sizes)
    ]
    return max(shares, default=1.0)


@dataclass(frozen=True)
class _BestCap:
    """The size to propose, what it saves, and what is predicted for the sizes tried."""

    cap_mib: float
    changes: list[Change]
    saves: Saving
    curve: list[Evidence]


def _caps(run: RunView, buckets: _Buckets, now: float, larger: bool) -> Iterator[float]:
    """The sizes to try, MiB: of those that hold all gradients the smallest, and none that torch refuses."""
    least_mib = max((facts.least_bucket_bytes for facts in run.facts), default=0) / MIB  # of a compiled module
    for before, cap in pairwise((0.0, *TRIED_MIB)):
        if cap >= least_mib and before * MIB < buckets.gradient_bytes and (cap > now if larger else cap < now):
            yield cap


def _found(run: RunView, buckets: _Buckets, changes: list[Change], bound: Saving, larger: bool) -> _BestCap:
    """The size that is predicted to save most, of larger or of smaller ones; without a step model the rule of thumb's.

    That has the bound.
    """
    tried = []
    given = changes[0].now
    now = given if isinstance(given, (int, float)) else buckets.mean_bytes / MIB
    for cap in _caps(run, buckets, now, larger):
        then = [change.model_copy(update={"then": cap}) for change in changes]
        try:
            tried.append((run.predict(then), cap, then))
        except Missing as lack:
            tried, bound = [], bound.without_prediction(lack.reason)
            break
    if not tried:
        return _BestCap(float(changes[0].then or LEAST_CAP_MIB), changes, bound, [])
    saves, cap, then = max(tried, key=lambda trial: trial[0].central_share or 0.0)
    shares = [(size, round(saving.predicted_share or 0.0, 4)) for saving, size, _ in tried if not saving.is_range]
    points = [*shares[:1], *(after for before, after in pairwise(shares) if after[1] != before[1])]
    curve = [
        Evidence(label=f"saved with {size:g} MiB buckets", value=share, unit="of a step") for size, share in points
    ]
    return _BestCap(cap, then, saves, curve)


def _changes(run: RunView, buckets: _Buckets, larger: bool) -> list[Change]:
    """For each DDP module whose cap would change in this direction; for one of unknown cap without facts."""
    wrapped = [d for f in run.facts[:1] for d in f.ddp]
    if not wrapped:
        return [] if run.facts else [Change(knob="ddp.bucket_cap_mb", now=None, then=buckets.cap_mib)]
    changes = []
    for module in wrapped:
        now = None if module.bucket_cap_bytes is None else round(module.bucket_cap_bytes / MIB, 3)
        if not larger and module.parameter_tensors is not None and module.parameter_tensors < TARGET_BUCKETS:
            continue  # a bucket never splits a tensor
        if now is None or (now < buckets.cap_mib if larger else now > buckets.cap_mib):
            where = Location.parse(module.where)
            changes.append(Change(knob="ddp.bucket_cap_mb", now=now, then=buckets.cap_mib, at=where))
    return changes


def _evidence(run: RunView, buckets: _Buckets, exposed: Evidence) -> list[Evidence]:
    return [
        Evidence(label="gradient all-reduces", value=round(buckets.calls, 1), unit="per backward pass"),
        Evidence(label="gradients", value=round(buckets.gradient_bytes), unit="bytes per backward pass"),
        Evidence(label="shortest gradient all-reduce", value=round(buckets.shortest_ns / 1e6, 4), unit="ms"),
        exposed,
    ]


def _size(count: float) -> str:
    return f"{digits(count / MIB)} MiB" if count >= MIB / 10 else f"{digits(count / 1024)} KiB"
