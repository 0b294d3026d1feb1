"""A contrastive loss uses embeddings of all ranks that were gathered without gradients.

## What it measures

In the warm-up steps: what `all_gather` and `all_gather_into_tensor` of `torch.distributed` are given while gradients
are enabled, also if Accelerate calls them, and the `all_gather` of Lightning without `sync_grads=True`. dptune compares
it with the tensors that the autograd graph of the next backward pass has saved as inputs without gradients, for example
the second factor of `queries @ keys.T`. It reports a gather if such a tensor has the gathered rows (scaled or
normalized, in any order) from this rank and from others, and nothing else, in at least two backward passes.

Gathers under `no_grad`, of detached tensors, for metrics, and for queues of earlier batches are not reported, nor a
loss that uses the local tensor for the part of this rank.

## Why it matters

`all_gather` is not differentiable: its results have no gradient, not even the part of this rank. Each embedding then
learns only where the loss uses the local tensor itself, usually as a query, and never as a positive or a negative of
the other samples. That is not the gradient of the loss over the global batch, and results get worse with more ranks.

## What to change

Gather with gradients:

    keys = torch.cat(torch.distributed.nn.functional.all_gather(keys))

Its backward pass adds up the gradients of all ranks. Since DDP averages gradients over ranks, the result is the
gradient of the average loss. From torch 2.13 on, it warns that `all_gather_single` of
`torch.distributed._functional_collectives` takes its place. In Lightning: `self.all_gather(keys, sync_grads=True)`.

Or keep the gradients of this rank's part only, which needs no communication in the backward pass:

    gathered = [torch.empty_like(keys) for _ in range(world_size)]
    torch.distributed.all_gather(gathered, keys)
    gathered[rank] = keys
    keys = torch.cat(gathered)

With Accelerate, split what `accelerator.gather(keys)` returns into such a list first.

## When to leave it alone

- The loss treats gathered embeddings as constants on purpose, as in momentum contrast. Detach them before the gather
  then: dptune does not report detached embeddings.

## References

- PyTorch, `torch/distributed/nn/functional.py`, whose `all_gather` has a backward pass:
  https://github.com/pytorch/pytorch/blob/main/torch/distributed/nn/functional.py
- Chen et al., "A Simple Framework for Contrastive Learning of Visual Representations" (2020), section 2: all other
  samples of the global batch are negatives. https://arxiv.org/abs/2002.05709
- Lightning Bolts, issue 179, SimCLR with several GPUs:
  https://github.com/Lightning-Universe/lightning-bolts/issues/179
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Evidence
from dptune.rule import GatheredEmbeddingFacts, Rule, RunView
from dptune_rules.at_risk import results_at_risk

RULE = Rule(
    code="DP318",
    name="gathered-without-gradients",
    family="batch",
    kind="risk",
    summary="a contrastive loss uses embeddings of all ranks that were gathered without gradients",
    since="0.1",
    asked_when_busy=True,
    needs="recording",
)
LEAST_PASSES = 2
_GATHER = "Gather them with `torch.distributed.nn.functional.all_gather`"
_LIGHTNING = "Pass `sync_grads=True` to `all_gather`"
_PUT_BACK = ", or put the local tensor back into what was gathered: `gathered[rank] = local`."


def check(run: RunView) -> Iterator[Advice]:
    """Name the lines of the first rank that has some."""
    if run.recorded_about("gathered_embeddings") is None:
        return
    for facts in run.facts:
        found = [
            gathered
            for gathered in facts.gathered_embeddings
            if LEAST_PASSES <= gathered.passes <= gathered.passes_seen and gathered.ranks > 1
        ]
        if found:
            yield _advice(found)
            return


def _advice(found: list[GatheredEmbeddingFacts]) -> Advice:
    first = found[0]
    lines = list(dict.fromkeys(gathered.where for gathered in found if gathered.where))
    where = f" by {', '.join(lines)}" if lines else ""
    lightning = "lightning" in first.through
    return results_at_risk(
        RULE,
        title=f"Embeddings of {first.ranks} ranks are gathered without gradients{where}: the loss trains none of them "
        "as a positive or a negative",
        why="`all_gather` returns tensors without gradients, also for the part of this rank. Each embedding learns "
        "only where the loss uses the local tensor, which is not the gradient of the loss over all ranks.",
        evidence=[
            Evidence(label="backward passes that use them", value=first.passes, unit=f"of {first.passes_seen}"),
            Evidence(label="rows gathered", value=first.rows, unit=f"of {first.width} numbers"),
            Evidence(label="of these from this rank", value=first.local_rows),
            Evidence(label="gathered with", value=first.through or f"torch.distributed.{first.function}"),
        ],
        remedy=(_LIGHTNING if lightning else _GATHER) + _PUT_BACK,
        watch="With gradients, the backward pass of the gather communicates too.",
        subject=" ".join(lines) or first.function,
    )
