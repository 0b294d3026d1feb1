"""Ranks train models that are never synchronized, or apply averaged gradients to different weights.

## What it measures

Whether anything could average gradients or parameters over the ranks: a DistributedDataParallel or FSDP module, an
engine that wraps the model, or a collective in the recorded steps that carries more than a few numbers. It also
compares sums of a few parameters between ranks: where they are equal, nothing is reported.

It also samples each optimizer's weights and gradients in warm-up steps: 64 elements of each of up to 32 tensors. Where
ranks apply exactly the same gradients, something averages them. If their weights differ all the same, that is
reported. Sharded parameters are not sampled. Tensor parallelism and local SGD have different gradients on each rank.

## Why it matters

This is a correctness bug. Each rank trains a separate model on part of the data, and all but the one that is saved are
thrown away: the run pays for N ranks and gets the result of one.

Averaged gradients keep equal weights equal, but do not make them equal. Where each rank draws its initial weights with
its own seed, or only rank 0 loads a checkpoint, each rank follows a mean of gradients of different models, which is
a descent direction for none of them.

## What to change

Wrap the model before the optimizer is created, and shard the samples in the loader:

    model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters())
    loader = DataLoader(dataset, sampler=DistributedSampler(dataset))

A script that wraps its model only where there is a GPU trains unrelated models on a CPU.

A script that averages gradients itself broadcasts the weights once, before training, as DistributedDataParallel does
when it is constructed:

    for tensor in (*model.parameters(), *model.buffers()):
        dist.broadcast(tensor.data, src=0)

Weights that only rank 0 loads are to be loaded before that. Then restart: weights that differ stay different.

## When to leave it alone

- Ranks that train different models on purpose, for example an ensemble: accept it with `dptune check --accept
  FILE --update-accepted`, or `ignore = ["DP108"]` under `[tool.dptune]`. Where the optimizers, learning rates or
  numbers of parameters differ between ranks, nothing is reported.
- Local SGD with more steps between two averages than were recorded; with torch's
  `ModelAverager` or Accelerate's `LocalSGD` nothing is reported.
- Weights that a script makes equal after some steps: nothing is reported once sums of parameters agree.

## References

- DistributedDataParallel broadcasts the state of rank 0 when it is constructed, "Internal Design":
  https://pytorch.org/docs/stable/notes/ddp.html
- Getting started with DistributedDataParallel: https://pytorch.org/tutorials/intermediate/ddp_tutorial.html
- The ImageNet example leaves the model unwrapped on a CPU:
  https://github.com/pytorch/examples/blob/main/imagenet/main.py
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from dptune.advice import Advice, Evidence
from dptune.measured import Missing
from dptune.rule import DifferentWeights, Rule, RunView, Threshold, different_weights
from dptune_rules.at_risk import results_at_risk
from dptune_rules.known import in_parentheses, known

METRICS_BYTES = Threshold(
    "metrics_bytes",
    4096.0,
    "per rank and step, the upper bound of losses and metrics: activations and gradients are more",
)
WEIGHT_DIFFERENCE = Threshold(
    "weight_difference",
    0.01,
    "of the sampled weights: rounding in 16 bits makes less in some steps, other initial weights about 0.2",
)
DISTINCT_GRADIENTS = Threshold(
    "distinct_gradients",
    16,
    "nonzero values: gradients that depend neither on the batch nor on the weights are equal, and have few",
)

_OF_OBJECTS = ("all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list")

RULE = Rule(
    code="DP108",
    name="unsynchronized-ranks",
    family="communication",
    kind="risk",
    summary="ranks train models that are never synchronized, or apply averaged gradients to different weights",
    since="0.1",
    thresholds=(METRICS_BYTES, WEIGHT_DIFFERENCE, DISTINCT_GRADIENTS),
    needs="recording",
)


def check(run: RunView) -> Iterator[Advice]:
    """Report ranks that train alike, and communicate nothing that could keep their models equal."""
    facts = run.any_facts("ddp", "fsdp")
    if facts.backend is None or facts.world_size < 2:
        return
    different = different_weights(run.facts, run.limit(WEIGHT_DIFFERENCE))
    if different is not None and different.distinct >= run.limit(DISTINCT_GRADIENTS):
        if not facts.averages_models and run.weights_agree() is not True:
            yield _different_weights(run, different)
        return
    if facts.ddp or facts.fsdp or facts.engine or facts.averages_models or not facts.optimizers:
        return
    run.any_facts()
    if len(run.facts) < 2:
        raise Missing("only one rank was recorded: comparing the ranks' models takes two")
    agree = run.weights_agree()
    if agree or _communicated_bytes(run) > run.limit(METRICS_BYTES) or not _train_alike(run):
        return
    ranks = len(run.facts)
    yield results_at_risk(
        RULE,
        title=f"{ranks} ranks train {ranks} unrelated models: nothing averages gradients or parameters between them",
        why="No DistributedDataParallel or FSDP module wraps the model, and no collective in the recorded steps "
        "carries gradients or parameters.",
        confidence="high" if agree is False else "medium",
        evidence=[
            Evidence(label="process group", value=f"{facts.backend}, {facts.world_size} ranks"),
            *([Evidence(label="weights", value="differ between ranks")] if agree is False else []),
            *known("backward pass called at", facts.backward_where),
        ],
        remedy="Wrap the model in DistributedDataParallel before the optimizer is created. If ranks train different "
        "models on purpose, accept it: `dptune check --accept FILE --update-accepted`.",
        subject="ranks",
    )


def _different_weights(run: RunView, different: DifferentWeights) -> Advice:
    wrapped = bool(run.any_facts().ddp)
    broadcast = (
        "Load or set the weights before DistributedDataParallel is constructed, which broadcasts those of rank 0"
    )
    if not wrapped:
        broadcast = (
            "Broadcast the parameters and buffers of rank 0 before the first step, "
            "`for tensor in (*model.parameters(), *model.buffers()): dist.broadcast(tensor.data, src=0)`, "
            "or wrap the model in DistributedDataParallel, which does so"
        )
    return results_at_risk(
        RULE,
        title=f"{different.ranks} ranks apply the same gradients to different weights: nothing made the weights of "
        f"{different.optimizer}{in_parentheses(different.where)} equal",
        why="Averaged gradients keep equal weights equal, but do not make them equal: each rank applies the mean of "
        "gradients of different models.",
        evidence=[
            Evidence(label="sampled gradients", value=f"equal on {different.ranks} ranks"),
            Evidence(
                label="sampled tensors whose weights differ", value=different.tensors, unit=f"of {different.sampled}"
            ),
            Evidence(label="largest difference", value=different.difference, unit="of the absolute weights"),
            *known("optimizer created at", different.where),
            *known("backward pass called at", run.any_facts().backward_where),
        ],
        remedy=f"{broadcast}.",
        watch="Weights that differ stay different: train again from the start, or from a checkpoint that all ranks "
        "load.",
        subject="weights",
    )


def _communicated_bytes(run: RunView) -> float:
    """Bytes that a rank sends and receives in a step: as traced or as the script calls it, whichever is more.

    What is sent from rank to rank may be anything, and so may messages of unknown size, unless the script itself called
    as many collectives, whose sizes are known then.
    """
    called = calls = 0.0
    for facts in run.facts:
        objects = any(call.function in _OF_OBJECTS for call in facts.calls)
        steps = max(1, facts.calls_steps)
        called = max(called, inf if objects else sum(script_call.sent_bytes for script_call in facts.calls) / steps)
        calls = max(calls, sum(script_call.calls for script_call in facts.calls) / steps)
    rows = [row for row in run.measured.collectives if row.kind != "barrier"]
    if any(row.kind == "p2p" for row in rows):
        return inf
    unknown = any(row.known("message_bytes") is None for row in rows)
    if unknown and sum(row.calls_per_step for row in rows) > calls:
        return inf
    return max(called, sum((row.known("message_bytes") or 0) * row.calls_per_step for row in rows))


def _train_alike(run: RunView) -> bool:
    """Whether the ranks have the same optimizers, learning rates and numbers of parameters."""
    trained = [
        [(optimizer.name, optimizer.learning_rates, optimizer.parameters) for optimizer in facts.optimizers]
        for facts in run.facts
    ]
    return all(optimizers == trained[0] for optimizers in trained)
