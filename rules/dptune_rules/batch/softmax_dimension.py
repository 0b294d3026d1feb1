"""Softmax over another dimension than the one along which its result is used.

## What it measures

In up to six backward passes of the warm-up steps, dptune reads the autograd graph between each softmax or log_softmax
and what uses its result:

- `nll_loss`, `ctc_loss` and the softmax of `cross_entropy` take classes from a certain dimension. The probabilities
  must sum to 1 over this dimension.
- The matrix product of attention weights and values adds along the last dimension of the weights (or, if they come
  second, along the last but one). The weights of each sum must sum to 1. Only weights are looked at whose scores are
  a product themselves, of queries and keys.

Each dimension is followed through `view`, `transpose`, `permute`, dropout, masks and constant factors. Where it is lost
on the way, weights are divided by their sum, or both factors come from a softmax, dptune reports nothing. Parts
compiled by `torch.compile`, and parts that reentrant checkpoints compute again, are not read.

## Why it matters

Over the dimension of samples, each prediction depends on what else is in the batch, and classes do not compete. The
loss falls a little and stays there. Attention whose weights sum to 1 over queries returns sums of any size, and a key
that all queries need is divided among them.

`nn.Softmax()` and `F.softmax(x)` without `dim` take dimension 0 of a tensor with one or three dimensions, and 1 of all
others. PyTorch warns about it.

## What to change

    weights = F.softmax(scores, dim=-1)             # scores: (batch, heads, queries, keys)
    log_probabilities = F.log_softmax(logits, dim=1)  # logits: (batch, classes, ...)

`F.cross_entropy` takes logits, of shape (batch, classes, ...), and applies softmax itself.

## When to leave it alone

- Queries compete for keys on purpose, as in routing between capsules. Most such models divide the weights by their sum
  afterwards, and are not reported.

## References

- PyTorch, `torch.nn.functional.softmax`:
  https://pytorch.org/docs/stable/generated/torch.nn.functional.softmax.html
- PyTorch, NLLLoss, "Input: (N, C)": https://pytorch.org/docs/stable/generated/torch.nn.NLLLoss.html
- Vaswani et al., "Attention Is All You Need" (2017), section 3.2.1: softmax over the keys of each query.
  https://arxiv.org/abs/1706.03762
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Evidence
from dptune.rule import Rule, RunView, SoftmaxDimensionFacts
from dptune_rules.at_risk import results_at_risk
from dptune_rules.known import in_parentheses, known

WEIGHTS, CROSS_ENTROPY = "weights", "cross_entropy"  # as facts name what uses the result
LEAST_PASSES = 2  # the first may be of a script that looks whether it runs

RULE = Rule(
    code="DP319",
    name="softmax-dimension",
    family="batch",
    kind="risk",
    summary="softmax normalizes over another dimension than the one its result is used along",
    since="0.1",
    asked_when_busy=True,
    needs="recording",
)


def check(run: RunView) -> Iterator[Advice]:
    """Name each such softmax of the first rank that has one."""
    if run.recorded_about("softmax_dimensions") is None:
        return
    for found in [facts.softmax_dimensions for facts in run.facts if facts.softmax_dimensions][:1]:
        yield from (_advice(each) for each in found if each.passes >= LEAST_PASSES)


def _advice(found: SoftmaxDimensionFacts) -> Advice:
    return results_at_risk(
        RULE,
        title=f"Wrong dimension: {found.function}{in_parentheses(found.where)} normalizes over dimension {found.dim}, "
        f"but {_use(found)} dimension {found.expected}",
        why=_why(found),
        evidence=[
            Evidence(label="backward passes affected", value=found.passes, unit=f"of {found.passes_seen}"),
            Evidence(label=f"calls of {found.function} per pass", value=found.count),
            *known("shape", " x ".join(map(str, found.sizes or []))),
            *known(f"{found.function} is called at", found.where),
            *known("its result is used at", found.use_where),
        ],
        remedy=_remedy(found),
        watch="Losses before and after the change cannot be compared.",
        subject=f"{found.used_as}:{found.function}:{found.dim}:{found.expected}",
    )


def _use(found: SoftmaxDimensionFacts) -> str:
    return "the product with the values sums over" if found.used_as == WEIGHTS else "the loss takes classes from"


def _why(found: SoftmaxDimensionFacts) -> str:
    if found.used_as == WEIGHTS:
        return (
            f"The attention weights sum to 1 over dimension {found.dim}. Those of a single result do not, so its scale "
            "depends on other results."
        )
    return (
        f"The probabilities sum to 1 over dimension {found.dim}, not over classes: each depends on other predictions "
        "of the batch, and classes do not compete."
    )


def _remedy(found: SoftmaxDimensionFacts) -> str:
    if found.used_as == CROSS_ENTROPY:
        return f"Return the logits: cross_entropy applies softmax itself, over dimension {found.expected}."
    return f"Pass dim={found.expected} to {found.function}."
