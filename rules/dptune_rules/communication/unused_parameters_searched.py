"""DistributedDataParallel looks for parameters without a gradient in every step, and there are none.

## What it measures

Whether `find_unused_parameters` is on, and how many bytes of parameters got no gradient, of which DDP keeps count in
some steps: none, on any rank, in the last of those. And the all-reduce of whole numbers, four bytes for each parameter
tensor, by which ranks tell each other which of theirs were used.

## Why it costs time

With it DDP walks through the graph after each forward pass, keeps a mark for each parameter tensor, and exchanges the
marks once backward is over, when nothing hides it. It does not sort buckets into the order in which gradients become
ready either.

## What to change

Leave out `find_unused_parameters=True`. Where parts of the model take turns at being unused, it has to stay: without it
torch raises an error in the step that meets one, so that nothing goes wrong unnoticed.

What a step pays is estimated from the shortest exchange of the marks (the rest of longer ones may be waiting) and 4 us
for each parameter tensor, twice what walking and marking took on a CPU. What is said to be saved is at most that and
all exposed communication but waiting for late ranks: buckets in the order of the gradients may hide it.

## When to leave it alone

- Control flow that depends on the data: an unused parameter may come later than the steps that were recorded.
- `static_graph=True` where the same ones are unused in each step.

## References

- DistributedDataParallel, `find_unused_parameters`:
  https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
- Li et al. 2020, "PyTorch Distributed", section 4.2.1 on globally unused parameters: https://arxiv.org/abs/2006.15704
- Measured on a CPU, one thread, torch 2.13: a step of 802 tensors took 1.9 ms longer of 20, one of 202 tensors 0.6 ms
  of 5; beside that the exchange.
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Change, Evidence, Location
from dptune.measured import CollectiveFigures, Missing
from dptune.rule import Rule, RunView, Threshold

MARKING_NS = 4_000  # for each tensor, at most

WORTH_SHARE = Threshold("worth_share", 0.02, "low impact from here: below 2 % of a step nothing is worth changing")

RULE = Rule(
    code="DP106",
    name="unused-parameters-searched",
    family="communication",
    kind="time",
    summary="DistributedDataParallel looks for parameters without a gradient in every step, and there are none",
    since="0.1",
    thresholds=(WORTH_SHARE,),
)


def check(run: RunView) -> Iterator[Advice]:
    """Propose to leave the search out where it never found anything."""
    looking = [ddp for ddp in run.any_facts().ddp if ddp.find_unused_parameters and not ddp.static_graph]
    if not looking:
        return
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
    exchange = sum(mark.calls_per_step * mark.shortest_ns for mark in marks) / run.measured.traced_step_ns
    marking = MARKING_NS * tensors / run.measured.step.time_ns
    share = min(1.0, run.unstretched(exchange) + marking)
    impact = run.impact(share, WORTH_SHARE)
    if impact is None:
        return
    changes = [
        Change(knob="ddp.find_unused_parameters", now=True, then=False, at=Location.parse(ddp.where)) for ddp in looking
    ]
    exposed = run.unstretched(max(exchange, run.measured.share("exchange_ns")))
    most = (
        "no more than the exposed communication, without waiting for late ranks, and "
        f"{MARKING_NS / 1e3:g} us for each of {tensors} tensors"
    )
    saves = run.saving(changes, run.bound(0.0, min(1.0, exposed + marking), most))
    less = f"up to {100 * saves.high_share:.0f} % less"
    if saves.predicted_share is not None:
        less = f"about {100 * saves.predicted_share:.0f} % less"
    elif saves.large_unknown:
        less = "less time, how much is not known"
    yield Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact=impact,
        title="DDP looks for parameters without a gradient in every step, and there were none: without the search a "
        f"step takes {less}",
        why="It walks through the graph after each forward pass, and exchanges which parameters were used when "
        "backward is over.",
        changes=changes,
        saves=saves,
        confidence="medium",
        evidence=[
            Evidence(label="parameter tensors", value=tensors),
            Evidence(label="looking and exchanging the marks", value=share, unit="of a step at most"),
            run.exposed_transfer(),
        ],
        numerics="same",
        watch="A parameter that gets no gradient in a later step raises an error then.",
        fingerprint=f"{RULE.code}:ddp.find_unused_parameters:{looking[0].module}",
    )


def _is_of_marks(row: CollectiveFigures, tensors: set[int | None]) -> bool:
    """A whole number for each parameter tensor."""
    whole = row.kind == "all_reduce" and row.known("dtype") in ("int32", "int")
    return whole and row.known("message_bytes") in {4 * (count or 0) for count in tensors}
