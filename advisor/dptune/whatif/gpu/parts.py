"""Which part of a step the host launches something in: the micro-batch, and work that a change takes away.

A micro-batch reaches from the end of the backward pass before it to the end of its own, with the hooks of fully_shard
that follow; the last one of a step to the optimizer's step, because DDP's reducer and FSDP wait for their collectives
there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntFlag

import numpy as np

from dptune.measure.host.attention import attention_spans
from dptune.measure.host.enclosing import NOWHERE, Ranges
from dptune.measure.inferred.hosts import HostEvents
from dptune.measure.intervals import Intervals, Ints
from dptune.measure.views import RankView
from dptune.trace.columns import Columns
from dptune.trace.kernels import LAUNCH_CATEGORIES, OPTIMIZER_STEP_NAME, RANGE_CATEGORIES

OUTSIDE = -1  # of any micro-batch
_REDUCES = re.compile(
    r"torch::distributed::reducer::(mul_out|copy_)$|torch\.distributed\.ddp\.reducer::copy_bucket|"
    r"c10d::allreduce_$|record_param_comms$|nccl:all_?reduce"
)
_ISSUES = re.compile(r"c10d::allreduce_$|record_param_comms$|nccl:all_?reduce")
_SAME_NODE_NS = 1_000_000  # from the copy of a bucket's last gradient to its collective
_WAITS = re.compile(r"(cuda|hip)StreamWaitEvent$")
_ACCUMULATES = re.compile(r"torch::autograd::AccumulateGrad$")
_ADDS = re.compile(r"aten::add_?$")
_SETS = re.compile(r"aten::detach$")
_COPIES_BACK = re.compile(r"torch\.distributed\.ddp\.reducer::copy_bucket_to_grad$")
# FullyShardedDataParallel has no ranges of all-gathers: in its backward hooks it launches nothing else.
_OF_FSDP1 = r"FullyShardedDataParallel\._(pre_backward_hook|pre_backward_prefetch|post_backward_prefetch)$"
_GATHERS = re.compile(rf"FSDP::all_gather(_copy_out)?\b|{_OF_FSDP1}")
_REDUCES_UNIT = re.compile(r"FSDP::post_backward_reduce\b")
_AFTER_PASS = re.compile(r"FSDP::(post_backward|root_post_backward)")
_OF_UNITS = re.compile(r"FSDP::")
# What `torch.backends.cudnn.allow_tf32` is about (ATen/native/cudnn/Conv_v8.cpp and RNN.cpp).
_OF_CUDNN = re.compile(r"aten::(_?cudnn_(convolution|rnn)|convolution_backward)")
_BACKWARD = re.compile(rf"FSDP::(pre_backward\b|backward_prefetch for )|{_OF_FSDP1}")


class Part(IntFlag):
    """Work that a change takes away or shortens."""

    NONE = 0
    BUCKET_COPY = 1  # of an averaged gradient out of DDP's bucket
    REGATHER = 2  # of parameters for a backward pass
    EAGER_ATTENTION = 4
    UPLOAD = 8  # of pageable memory to the device
    REDUCING = 16  # gradients by DDP: copies into buckets, collectives, copies back
    ADDING = 32  # a gradient to that of earlier micro-batches
    ISSUING = 64  # DDP's collectives
    AWAITING = 128  # the first of DDP's collectives, at the end of a backward pass
    SETTING = 256  # a gradient that no earlier micro-batch has
    UNIT_REDUCING = 512  # gradients by fully_shard: copies in, reduce-scatters, and what follows them
    UNIT_HOOKS = 1024  # all that fully_shard does around the modules of units
    CUDNN = 2048  # what cuDNN computes: convolutions, recurrent layers


def having(parts: Sequence[int], part: Part) -> set[int]:
    """The places whose flags hold that part."""
    flag = int(part)
    return {place for place, flags in enumerate(parts) if flags & flag}


@dataclass(frozen=True, eq=False)
class HostParts:
    """By time and thread of the host the micro-batch of its step, and the part."""

    starts_ns: Ints
    ends_ns: Ints
    pass_ends_ns: Ints
    updates_ns: Ints
    copies_back: Ranges
    gathers: Ranges
    backward: Ranges
    attention: Intervals
    adding: Ranges
    cudnn: Ranges
    spent: Mapping[Part, Intervals]

    @classmethod
    def of(cls, view: RankView) -> HostParts:
        """Of one rank."""
        host, columns = HostEvents(view), view.columns
        gradients = host.gradients
        passes = host.pass_of(gradients)
        last = np.flatnonzero(np.diff(passes, append=passes[-1:] + 1)) if len(passes) else passes
        first = np.append(0, last[:-1] + 1) if len(passes) else passes
        patterns = (_COPIES_BACK, _GATHERS, _BACKWARD, OPTIMIZER_STEP_NAME, _REDUCES, _ISSUES, _ACCUMULATES, _ADDS)
        copies, gathers, backward, updates, reducing, issuing, accumulating, adding = (
            columns.rows(RANGE_CATEGORIES, pattern.match) for pattern in patterns
        )
        adding = _within(columns, adding, accumulating)
        setting = _within(columns, columns.rows(RANGE_CATEGORIES, _SETS.match), accumulating)
        return cls(
            starts_ns=np.array([step.start_ns for step in view.steps], dtype=np.int64),
            ends_ns=np.array([step.end_ns for step in view.steps], dtype=np.int64),
            pass_ends_ns=_pass_ends(columns, columns.ends(gradients[last]), columns.ts_ns[gradients[first]]),
            updates_ns=np.sort(columns.ts_ns[updates]),
            copies_back=Ranges.of_rows(columns, copies),
            gathers=Ranges.of_rows(columns, gathers),
            backward=Ranges.of_rows(columns, backward),
            attention=attention_spans(view),
            adding=Ranges.of_rows(columns, adding),
            cudnn=Ranges.of_rows(columns, columns.rows(RANGE_CATEGORIES, _OF_CUDNN.match)),
            spent={
                Part.BUCKET_COPY: _union(columns, copies),
                Part.REGATHER: _union(columns, _within(columns, gathers, backward)),
                Part.REDUCING: _union(columns, reducing),
                Part.ISSUING: _issuing(columns, issuing, np.setdiff1d(reducing, issuing)),
                Part.AWAITING: _awaiting(columns, issuing),
                Part.ADDING: _union(columns, adding),
                Part.SETTING: _union(columns, setting),
                Part.UNIT_REDUCING: _union(columns, columns.rows(RANGE_CATEGORIES, _REDUCES_UNIT.match)),
                Part.UNIT_HOOKS: _union(columns, columns.rows(RANGE_CATEGORIES, _OF_UNITS.match)),
            },
        )

    def micro_batches(self, time_ns: Ints) -> Ints:
        """The number of the micro-batch in its step, OUTSIDE where there is none."""
        if not len(self.starts_ns) or not len(self.pass_ends_ns):
            return np.full(len(time_ns), OUTSIDE, dtype=np.int64)
        step = np.searchsorted(self.starts_ns, time_ns, side="right") - 1
        inside = (step >= 0) & (time_ns < self.ends_ns[step])
        first = np.searchsorted(self.pass_ends_ns, self.starts_ns[step], side="left")
        after = np.searchsorted(self.pass_ends_ns, self.ends_ns[step], side="left")
        number = np.searchsorted(self.pass_ends_ns, time_ns, side="left") - first
        passes = after - first
        over = number >= passes  # after the last backward pass: until the optimizer's step
        updated = np.searchsorted(self.updates_ns, time_ns, side="right") > np.searchsorted(
            self.updates_ns, self.pass_ends_ns[np.maximum(after - 1, 0)], side="left"
        )
        has_update = np.searchsorted(self.updates_ns, self.ends_ns[step], side="left") > np.searchsorted(
            self.updates_ns, self.pass_ends_ns[np.maximum(after - 1, 0)], side="left"
        )
        inside &= (passes > 0) & (~over | (has_update & ~updated))
        return np.where(inside, np.minimum(number, passes - 1), OUTSIDE).astype(np.int64)

    def parts(self, thread: Ints, time_ns: Ints) -> Ints:
        """The flags of `Part`."""
        found = np.zeros(len(time_ns), dtype=np.int64)
        found[self.copies_back.at(thread, time_ns) != NOWHERE] |= Part.BUCKET_COPY
        gathering = self.gathers.at(thread, time_ns) != NOWHERE
        found[gathering & (self.backward.at(thread, time_ns) != NOWHERE)] |= Part.REGATHER
        found[self.attention.hold(time_ns)] |= Part.EAGER_ATTENTION
        found[self.adding.at(thread, time_ns) != NOWHERE] |= Part.ADDING
        found[self.cudnn.at(thread, time_ns) != NOWHERE] |= Part.CUDNN
        return found


def _pass_ends(columns: Columns, last_ns: Ints, first_ns: Ints) -> Ints:
    """When backward passes end: with their last gradient, or with fully_shard's hooks after it.

    `last_ns`: the end of each pass's last gradient, `first_ns`: the start of its first.
    """
    hooks = columns.rows(RANGE_CATEGORIES, _AFTER_PASS.match)
    start_ns, ends_ns = columns.ts_ns[hooks], last_ns.copy()
    after = np.searchsorted(last_ns, start_ns, side="right") - 1
    follows = (after >= 0) & (start_ns < np.append(first_ns, np.iinfo(np.int64).max)[after + 1])
    np.maximum.at(ends_ns, after[follows], columns.ends(hooks)[follows])
    return ends_ns


def _issuing(columns: Columns, rows: Ints, others: Ints) -> Intervals:
    """When collectives are issued: from the end of the last of some other ranges on, if that is in the same node."""
    start_ns, over_ns = columns.ts_ns[rows], np.sort(columns.ends(others))
    before = np.searchsorted(over_ns, start_ns, side="right") - 1
    since_ns = np.where(before >= 0, over_ns[np.maximum(before, 0)], start_ns) if len(over_ns) else start_ns
    near = start_ns - since_ns <= _SAME_NODE_NS
    return Intervals.union(np.where(near, since_ns, start_ns), columns.ends(rows))


def _awaiting(columns: Columns, issuing: Ints) -> Intervals:
    """From the end of the node that issues a pass's last collective to that of the host's wait for the first one.

    The reducer waits for its buckets in turn: each wait is a call on the thread of the backward pass, before which no
    other range starts.
    """
    waits, ranges = columns.rows(LAUNCH_CATEGORIES, _WAITS.match), columns.rows(RANGE_CATEGORIES, lambda _: True)
    found: list[tuple[int, int]] = []
    for thread in np.unique(columns.thread[issuing]).tolist():
        issued, waiting, around = (rows[columns.thread[rows] == thread] for rows in (issuing, waits, ranges))
        waiting = waiting[np.argsort(columns.ts_ns[waiting], kind="stable")]
        begin_ns, starts_ns = columns.ts_ns[waiting], np.sort(columns.ts_ns[around])
        since_ns, ends_ns = np.sort(columns.ends(issued)), np.sort(columns.ends(around))
        at = np.searchsorted(begin_ns, since_ns)
        since_ns, at = since_ns[at < len(begin_ns)], at[at < len(begin_ns)]
        between = np.searchsorted(starts_ns, begin_ns[at]) > np.searchsorted(starts_ns, since_ns)
        first = at[~between]
        over_ns = ends_ns[np.searchsorted(ends_ns, begin_ns[first], side="right") - 1]
        found += zip(over_ns.tolist(), columns.ends(waiting)[first].tolist(), strict=True)
    start_ns, end_ns = np.array(found, dtype=np.int64).reshape(-1, 2).T
    return Intervals.union(start_ns, end_ns)


def _within(columns: Columns, rows: Ints, others: Ints) -> Ints:
    """The ranges that start inside one of the others."""
    inside = Ranges.of_rows(columns, others).at(columns.thread[rows], columns.ts_ns[rows]) != NOWHERE
    return np.asarray(rows[inside], dtype=np.int64)


def _union(columns: Columns, rows: Ints) -> Intervals:
    return Intervals.union(columns.ts_ns[rows], columns.ends(rows))
