"""A language model attends to the tokens that it is trained to predict: a causal mask is missing.

## What it measures

In up to six backward passes of the warm-up steps, dptune reads the autograd graph of each cross entropy:

- The targets are the token ids that the model embeds, shifted by one position. Targets that equal the input at their
  position are not counted, and 95 % of the others must be the next input.
- Every self-attention over these ids lets a position attend to the next one, for at least 90 % of these targets. Fused
  attention (`scaled_dot_product_attention`) shows this by its mask and its `is_causal`, attention that the script, a
  library or `nn.MultiheadAttention` computes with a softmax by the resulting weights.

One layer with causal attention, in any of the passes, keeps the rule quiet. Attention of an encoder over other ids,
attention over a part of the positions, and layers that checkpointing or `torch.compile` hides are not read.

## Why it matters

At position t the model is trained to predict token t + 1, which is its input at position t + 1. Without a causal mask
attention copies the answer from there. The loss becomes very low, also on held-out text, but generated text is
nonsense, because the next token is not an input when it is generated.

## What to change

Let each position attend to itself and earlier positions only:

    F.scaled_dot_product_attention(q, k, v, is_causal=True)

    mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1], device=ids.device)
    encoder(x, mask=mask, is_causal=True)

    scores = scores.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), float("-inf"))

For `scaled_dot_product_attention`, `True` in a boolean mask means that the position takes part. For
`nn.MultiheadAttention` and `nn.Transformer` it means that the position is hidden. In transformers, a model with both
forms needs `is_decoder=True` in its config.

## When to leave it alone

- The model is not used to generate, and its outputs may depend on later tokens. Its targets then usually are not the
  next inputs.

## References

- Vaswani et al., "Attention Is All You Need" (2017), section 3.2.3: positions of the decoder attend to earlier
  positions only. https://arxiv.org/abs/1706.03762
- A tutorial whose language model did not apply its mask: https://github.com/pytorch/tutorials/issues/2478
- PyTorch, `scaled_dot_product_attention`:
  https://pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Evidence
from dptune.rule import CausalMaskFacts, Rule, RunView
from dptune_rules.at_risk import results_at_risk
from dptune_rules.known import in_parentheses, known

LEAST_PASSES = 2  # the first may be of a script that looks whether it runs

RULE = Rule(
    code="DP317",
    name="causal-mask-missing",
    family="batch",
    kind="risk",
    summary="a language model attends to the tokens that it is trained to predict",
    since="0.1",
    asked_when_busy=True,
    needs="recording",
)


def check(run: RunView) -> Iterator[Advice]:
    """Name the attention of the first rank that has such a model."""
    if run.recorded_about("causal_masks") is None:
        return
    found = [masks for facts in run.facts for masks in facts.causal_masks if masks.passes >= LEAST_PASSES]
    yield from map(_advice, found[:1])


def _advice(found: CausalMaskFacts) -> Advice:
    return results_at_risk(
        RULE,
        title=f"Causal mask missing: self-attention{in_parentheses(found.where)} attends to the tokens that the model "
        "is trained to predict",
        why="The targets are the inputs shifted by one position, and no layer hides later positions, so the model can "
        "copy each answer from its input. The loss falls, but generated text is nonsense.",
        evidence=[
            Evidence(label="attention weight on later positions", value=found.later_share, unit="of all"),
            Evidence(label="targets that are the next input", value=found.targets, unit="per pass"),
            Evidence(label="targets whose position attends to the answer", value=found.seen_share, unit="of these"),
            Evidence(label="self-attention layers without a causal mask", value=found.layers),
            Evidence(label="positions", value=found.positions, unit="per sequence"),
            Evidence(label="backward passes with such targets", value=found.passes),
            *known("attention is called at", found.where),
        ],
        remedy="Pass is_causal=True to scaled_dot_product_attention, or a mask that hides later positions "
        "(nn.Transformer.generate_square_subsequent_mask) to the attention layers.",
        watch="The loss becomes higher: only then does it measure prediction.",
        subject="attention",
    )
