"""DDP searches for unused parameters in every step, and there are none.

## What it measures

Whether `find_unused_parameters` is on, and how many bytes of parameters got no gradient, which DDP counts in some
steps: none, on any rank, in the last of those steps. Also the all-reduce of integers, four bytes for each parameter
tensor, by which ranks share which parameters they used: the bitmap.

## Why it matters

With this option DDP traverses the graph after each forward pass, marks each used parameter tensor, and all-reduces the
bitmap of these marks after the backward pass, when it is exposed. It also does not sort buckets into the order in which
gradients become ready.

## What to change

Remove `find_unused_parameters=True`. Keep it where parts of the model are unused in turns: without it torch raises an
error in the first step with an unused parameter, so nothing goes wrong unnoticed.

The search is timed in untraced steps: from the end of the forward pass until DDP returns. Older recordings lack this
time; the rule then takes 4 us per parameter tensor, twice the time that the search took on a CPU. The cost also
includes the shortest all-reduce of the bitmap (longer ones may include waiting).

On a CPU the saving is predicted. Lower end: 0.8 times the search. Upper end: 1.1 times the search and this all-reduce.
If there are several buckets, and gradients become ready in another order than that of the parameters, DDP sorts the
buckets without the search, which may hide communication: the upper end then includes all exposed communication except
waiting for late ranks. In other cases the saving is an upper bound, which includes this communication.

## When to leave it alone

- Control flow that depends on the data: an unused parameter may first occur after the recorded steps.
- `static_graph=True`, where the same parameters are unused in each step.

## References

- DistributedDataParallel, `find_unused_parameters`:
  https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
- Li et al. 2020, "PyTorch Distributed", section 4.2.1 on globally unused parameters: https://arxiv.org/abs/2006.15704
- Measured on a CPU, one thread, torch 2.13: the search took 1.9 of 20 ms in a step of 802 tensors, and 0.6 of 5 ms in a
  step of 202 tensors, plus the all-reduce of the bitmap.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import mean

from dptune.advice import Advice, Evidence
from dptune.measured import CollectiveFigures, Missing
from dptune.rule import DdpFacts, Rule, RunView, Share, Threshold
from dptune_rules.communication.ddp_argument import change
from dptune_rules.known import passed_at

MARKING_NS = 4_000  # for each tensor, at most
SAVED_PART = (0.8, 1.1)  # of the time: what DDP still does after a forward pass takes microseconds
MOST_MOVED = 0.05  # of all gradients: those of a layer's weight and bias may become ready in either order

WORTH_SHARE = Threshold("worth_share", 0.02, "low impact from here: savings below 2 % of a step are not worth a change")

RULE = Rule(
    code="DP106",
    name="unused-parameters-searched",
    family="communication",
    kind="time",
    summary="DDP searches for unused parameters in every step, and there are none",
    since="0.1",
    thresholds=(WORTH_SHARE,),
    needs="recording",
)


def check(run: RunView) -> Iterator[Advice]:
    """Propose to leave the search out where it never found anything."""
    wrapped = run.any_facts("ddp", "ddp.find_unused_parameters").ddp
    looking = [ddp for ddp in wrapped if ddp.find_unused_parameters and not ddp.static_graph]
    if not looking:
        return
    run.any_facts()
    unused = [ddp.unused_parameter_bytes for facts in run.facts for ddp in facts.ddp if ddp.find_unused_parameters]
    if None in unused:
        raise Missing("torch did not report whether parameters got no gradient")
    if any(unused):
        return
    tensors = sum(ddp.parameter_tensors or 0 for ddp in looking)
    marks = [
        collective
        for collective in run.measured.collectives
        if _is_of_marks(collective, {ddp.parameter_tensors for ddp in looking})
    ]
    communication = sum(mark.calls_per_step * mark.shortest_ns for mark in marks) / run.measured.traced_step_ns
    timed = _timed(run)
    marking = mean(timed.values()) if timed else MARKING_NS * tensors / run.measured.step.time_ns
    share = min(1.0, run.unstretched(communication) + marking)
    impact = run.impact(share, WORTH_SHARE)
    if impact is None:
        return
    changes = [change(run, ddp, "find_unused_parameters", True, False) for ddp in looking]
    exposed = run.unstretched(max(communication, run.measured.share("exposed_without_waiting_ns")))
    most = "the exposed communication, without waiting for late ranks, plus "
    most += "the search in untraced steps" if timed else f"{MARKING_NS / 1e3:g} us for each of {tensors} tensors"
    saves = run.saving(changes, run.bound(0.0, min(1.0, exposed + marking), most))
    if saves.basis == "bound" and timed:
        sent = run.unstretched(communication)
        highest = sent if all(map(_is_in_order, looking)) else exposed
        spent = {rank: Share(search, search + sent, search + max(sent, highest)) for rank, search in timed.items()}
        how = "the search in untraced steps and the all-reduce of its bitmap"
        how += "" if highest == sent else "; the upper end adds the exposed communication"
        saves = run.removed(spent, how, SAVED_PART, timed=True) or saves
    less = "less time, by an unknown amount" if saves.large_unknown else f"{saves.part_in_words} less time"
    yield Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact=impact,
        title="DDP looks for parameters without a gradient in every step, and there were none: without the search a "
        f"step takes {less}",
        why="DDP traverses the autograd graph after each forward pass, and all-reduces a bitmap of used parameters "
        "after backward.",
        changes=changes,
        saves=saves,
        confidence="medium",
        evidence=[
            Evidence(label="parameter tensors", value=tensors),
            Evidence(label="search and bitmap all-reduce", value=share, unit=f"of a step{'' if timed else ' at most'}"),
            run.exposed_transfer(),
            *passed_at(looking[0], "find_unused_parameters"),
        ],
        numerics="same",
        watch="If a parameter gets no gradient in a later step, DDP raises an error.",
        fingerprint=f"{RULE.code}:ddp.find_unused_parameters:{looking[0].module}",
    )


def _timed(run: RunView) -> Mapping[int, float]:
    """The share of untraced steps in which DDP searches, by rank; empty where it was not timed on every rank."""
    found = {}
    for facts in run.facts:
        window = facts.window("untraced")
        if window is None or not any(window.unused_search_ns):
            return {}
        found[facts.rank] = sum(window.unused_search_ns) / sum(window.durations_ns)
    return found


def _is_in_order(ddp: DdpFacts) -> bool:
    """Whether buckets in the order of the gradients would hold the same: there is one, or that order is theirs."""
    if ddp.gradient_bytes and ddp.gradient_bytes <= (ddp.first_bucket_bytes or 0):
        return True
    last = len(ddp.grad_ready_order) - 1
    return last >= 0 and all(
        abs(last - place - index) <= max(2, MOST_MOVED * last) for place, index in enumerate(ddp.grad_ready_order)
    )


def _is_of_marks(row: CollectiveFigures, tensors: set[int | None]) -> bool:
    """A whole number for each parameter tensor."""
    whole = row.kind == "all_reduce" and row.known("dtype") in ("int32", "int")
    return whole and row.known("message_bytes") in {4 * (count or 0) for count in tensors}
