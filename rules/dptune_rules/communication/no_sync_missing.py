"""Gradients are averaged over ranks after every micro-batch, where once per optimizer step is enough.

## What it measures

How many times backward ran with gradient synchronization on, per optimizer step. More than once with one
DistributedDataParallel module means that gradients are accumulated without `no_sync`; with `fully_shard`, that they are
accumulated without `set_requires_gradient_sync(False)`.

## Why it matters

DDP all-reduces gradients in every backward pass. During accumulation only the sum matters: with k micro-batches, k - 1
of the k all-reduces are redundant. They all carry the same bytes, so a step pays about (k - 1) / k of its exposed
communication for them, which sets the impact.

Where the run has a step model, the saving is its prediction. Without one it is not known: messages also slow the
compute that they overlap, and ranks that wait for the slowest rank after every micro-batch then wait once. The upper
bound is all communication of the step, hidden or exposed, minus one all-reduce of the gradients at the shortest
observed duration. Waiting for a rank that is late by 10 % of the step or more is left out, because the change does not
remove it.

## What to change

Run all micro-batches but the last inside `with model.no_sync():`, forward and backward both: around the backward pass
alone it has no effect, and dptune names both lines where a recording shows that. With a trainer that accumulates
(Lightning's `accumulate_grad_batches`, Accelerate's `accumulate`), use its setting.

With `fully_shard`, call `model.set_requires_gradient_sync(micro == accumulate - 1)` before each backward pass. Each
rank then keeps gradients of whole parameters, so it is proposed where the device, or on a CPU the host, has room for
them. The upper bound is then the time of the reductions of all micro-batches but one, hidden or not, with their copies
and hooks: one script saved 33 % of a step, where the reduce-scatters alone took 24 %.

The sum is the same up to floating-point summation order: local gradients are added before they are averaged, not after.

## When to leave it alone

- backward runs several times per step for another reason, for example gradients of gradients, a perturbed second pass
  (SAM) or an optimizer that evaluates the loss itself (LBFGS): each result is then needed. Where there are more passes
  than batches, or the optimizer is one of these, nothing is reported. Where no DataLoader shows how many batches a step
  has, warm-up steps must show that gradients add up: each pass has its own forward pass, and nothing changes weights or
  gradients in between. If they do not, the impact is medium at most, and the confidence low.
- `find_unused_parameters` with parts of the model that are used in turns: test that every parameter still gets its
  gradient.
- `static_graph=True`: DDP records the graph in the first backward passes that it synchronizes. Keep the first step out
  of `no_sync`: under it torch 2.13 fails in the first backward pass, and older versions may stop averaging gradients.
- FullyShardedDataParallel: `no_sync` keeps whole gradients on every rank, which may not fit; nothing is reported.

## References

- DistributedDataParallel.no_sync:
  https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
- Li et al. 2020, section 3.2.4 on gradient accumulation: https://arxiv.org/abs/2006.15704
- Measured with two gloo ranks over a link of 200 Mbit/s: 4 micro-batches ran 3.2 times as fast with `no_sync`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dptune.advice import IMPACTS, Advice, Change, Evidence, Location
from dptune.measured import Missing
from dptune.rule import Rule, RunView, Threshold, discarding
from dptune_rules.exposed import exposed_rows
from dptune_rules.predicted_memory import fits, peak_evidence

WORTH_SHARE = Threshold("worth_share", 0.02, "low impact from here: savings below 2 % of a step are not worth a change")

WHOLE_GRADIENTS = {"fsdp.no_sync": True}
FULL_SHARE = 0.9  # of the memory, that may be taken then: as for `sharded-parameters`

STATIC_GRAPH = (
    "with model.no_sync() if step > 0 and micro < accumulate - 1 else contextlib.nullcontext():\n"
    "    loss = model(x)  # forward and backward both inside\n"
    "    loss.backward()  # step: from 0 on; micro: from 0 on in each step"
)

ALWAYS = "DDP all-reduces in every backward pass. While gradients are accumulated, only the last one is needed."
LATE = "DDP decides in the forward pass whether the backward pass all-reduces. Only the last one is needed."

RULE = Rule(
    code="DP102",
    name="no-sync-missing",
    family="communication",
    kind="time",
    summary="gradients are averaged over ranks after every micro-batch, where once per optimizer step is enough",
    since="0.1",
    thresholds=(WORTH_SHARE,),
)


def check(run: RunView) -> Iterator[Advice]:
    """Propose `no_sync` where one DDP module, or what fully_shard shards, is synchronised several times a step."""
    facts = run.any_facts("ddp")
    wrapped = facts.ddp
    if run.measured.known("world_size") == 1:
        return
    if not wrapped:
        yield from _of_units(run) if run.facts else ()
        return
    if discarding([facts.discarded_gradients for facts in run.facts]) is not None:
        raise Missing("gradients are cleared before the optimizer uses them, so they do not accumulate")
    synchronised = run.measured.accumulation.synchronised_backwards_per_step
    accumulates = facts.accumulates()
    if synchronised <= 1 or accumulates is False:
        return
    if len(wrapped) > 1:
        raise Missing(f"with {len(wrapped)} DDP modules, it is unknown which one a backward pass synchronizes")
    share = run.measured.share("exposed_without_waiting_ns") * (synchronised - 1) / synchronised
    exposed = run.measured.share("exposed_communication_ns")
    everything = Evidence(label="exposed communication and waiting", value=exposed, unit="of a step")
    stays = _one_reduction(run) + run.waiting_that_stays
    ceiling = max(share, run.unstretched(run.measured.share("communication_ns") - stays))
    late = facts.late_no_sync
    place = late[0] if late else facts.backward_where or wrapped[0].where
    static = bool(wrapped[0].static_graph)
    snippet = STATIC_GRAPH if static else ""
    changes = [Change(knob="ddp.no_sync", now=False, then=True, at=Location.parse(place), snippet=snippet)]
    most = "all communication of a step, hidden or not, less one all-reduce at the shortest seen"
    most += ", without waiting for the late rank" if run.waiting_that_stays else ""
    saves = run.saving(changes, run.bound(0.0, ceiling, most))
    share = share if saves.central_share is None else saves.central_share
    taken = "a large, unknown part" if saves.large_unknown else saves.part_in_words
    impact = run.impact(share, WORTH_SHARE)
    if impact is None:
        return
    enough, watch = "once is enough", "Sums are equal up to floating-point summation order."
    if accumulates is None:
        impact = min(impact, "medium", key=IMPACTS.index)
        enough = "once is enough if they add up"
        watch = "Without a DataLoader it is unknown whether they accumulate over batches: SAM needs each by itself."
    if static:
        watch += " With static_graph=True synchronize every micro-batch of the first step, or its backward pass fails."
    yield Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact=impact,
        title=f"{_without_effect(late)}Gradients are all-reduced {synchronised} times per optimizer step; {enough}: "
        f"the others take {taken} of a step",
        why=LATE if late else ALWAYS,
        changes=changes,
        saves=saves,
        confidence="high" if accumulates else "low",
        evidence=[
            Evidence(label="synchronized backward passes", value=synchronised, unit="per optimizer step"),
            run.exposed_transfer() if run.waiting_that_stays else everything.at(run.measured.where_exposed),
            *(
                [Evidence(label="all communication but for one all-reduce", value=ceiling, unit="of a step")]
                if saves.central_share is None
                else []
            ),
        ],
        numerics="same" if accumulates else "changes",
        watch=watch,
        fingerprint=f"{RULE.code}:ddp.no_sync:{wrapped[0].module}",
    )


def _without_effect(late: Sequence[str]) -> str:
    """The sentence on `no_sync` around backward passes alone; empty where there is none."""
    if len(late) < 2:
        return ""
    forward, backward = late
    return f"`no_sync` around {backward} has no effect: the forward pass ({forward}) must be inside. "


def _of_units(run: RunView) -> Iterator[Advice]:
    """The same for units of fully_shard: their reduce-scatters, and the all-reduces of replicas of shards."""
    facts = run.any_facts("fsdp")
    units = [fsdp for fsdp in facts.fsdp if fsdp.version == 2 and fsdp.mesh]
    if not units or len(units) < len([fsdp for fsdp in facts.fsdp if fsdp.mesh]) or facts.engine:
        return
    if discarding([facts.discarded_gradients for facts in run.facts]) is not None:
        raise Missing("gradients are cleared before the optimizer uses them, so they do not accumulate")
    synchronised, accumulates = run.measured.accumulation.synchronised_backwards_per_step, facts.accumulates()
    if synchronised <= 1 or accumulates is not True or not _holds_whole_gradients(run):
        return
    rows = [row for row in run.measured.overlap.rows if row.known("purpose") == "sharding" and row.kind != "all_gather"]
    window_ns, spared = run.measured.account.window_ns, (synchronised - 1) / synchronised
    share = spared * sum(row.exposed_transfer_ns for row in rows) / window_ns
    impact = run.impact(share, WORTH_SHARE)
    if impact is None:
        return
    where = facts.backward_where or units[0].where
    changes = [Change(knob="fsdp.no_sync", now=False, then=True, at=Location.parse(where) if where else None)]
    taken = run.measured.known("sharding")  # with hooks and copies, on the rank where that is most
    reduced = max(sum(row.communication_ns for row in rows) / window_ns, taken.reduced_most_share if taken else 0.0)
    most = run.most_of_process(spared * reduced)
    how = "the reductions of all micro-batches but one, hidden or not, with their copies and hooks"
    bound = run.bound(0.0, most, how)
    yield Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact=impact,
        title=f"Gradients of FSDP units are reduce-scattered {synchronised} times per optimizer step; once is enough: "
        f"the others take {100 * share:.0f} % of a step",
        why="fully_shard reduces in every backward pass. While gradients are accumulated, only the last one is needed.",
        changes=changes,
        saves=run.saving(changes, bound),
        confidence="medium",
        evidence=[
            Evidence(label="synchronized backward passes", value=synchronised, unit="per optimizer step"),
            *exposed_rows(run, rows),
            *peak_evidence(run, WHOLE_GRADIENTS),
        ],
        numerics="same",
        watch="Each rank then keeps gradients of whole parameters between micro-batches. Sums are equal up to "
        "floating-point summation order.",
        fingerprint=f"{RULE.code}:fsdp.no_sync:{next(iter(units[0].modules), 'units')}",
    )


def _holds_whole_gradients(run: RunView) -> bool:
    """Whether a rank has room: by the predicted peak, else as 32-bit floats; on a CPU for all ranks of the host."""
    if (fitting := fits(run, WHOLE_GRADIENTS)) is not None:
        return fitting
    facts = run.any_facts()
    added = 4 * sum(optimizer.parameters for optimizer in facts.optimizers) * (run.measured.world_size - 1)
    if run.measured.device_kind == "cpu":
        left = facts.device.available_bytes if facts.device else None
        return left is not None and added * run.ranks_here() <= FULL_SHARE * left
    memory = run.measured.known("memory") or []
    return bool(memory) and all(
        device.peak_reserved_bytes + added <= FULL_SHARE * device.capacity_bytes for device in memory
    )


def _one_reduction(run: RunView) -> float:
    """The share of a step that the synchronization that stays takes at least: its longest message, at its shortest."""
    reductions = [
        c
        for c in run.measured.known("collectives") or []
        if c.kind == "all_reduce" and run.measured.may_average_gradients(c.known("group"))
    ]
    return max((c.shortest_ns for c in reductions), default=0) / run.measured.traced_step_ns
