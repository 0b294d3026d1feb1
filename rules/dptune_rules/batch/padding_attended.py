"""Attention attends to padding: a padding mask is missing.

## What it measures

In up to six backward passes of the warm-up steps, dptune reads the autograd graph of the loss:

- Rows of embedded token ids end, or start, with the same id, which they have nowhere else, and differ in length.
- All attention over these tokens that can be read gives weight to the padding: fused attention
  (`scaled_dot_product_attention`) by its inputs and its mask, attention that the script, a library or
  `nn.MultiheadAttention` computes with a softmax by the resulting weights. In self-attention only queries that are not
  padding count, so a causal mask is enough where the padding is at the end.

Reported from 1 % of the weight, of the sequences with most padding, if one has 10 % or more. Self-attention and
attention of other queries to the tokens (cross-attention) are looked at apart. One layer that leaves out the padding,
in any of the passes, keeps the rule quiet, and so do targets at padding that the loss counts, and results that the
script takes from these positions. Confidence is high if the embedding names the padding (`padding_idx`), if the script
masks these positions elsewhere or ignores their targets, or if sequences differ in length between passes; else medium.

Not read: layers that checkpointing or `torch.compile` hides; additive attention; pooling by one score per token;
a softmax over another dimension than the last; frozen embeddings; sequences of fewer than 16 tokens; padding whose id
is also inside sequences.

## Why it matters

The output for a sequence then depends on its padding: the same text gives different results in a batch with a longer
one, and at inference, where sequences are padded differently or not at all. Weight on padding is weight that words do
not get.

## What to change

Pass a mask of the padding to the attention layers, and to whatever pools their results:

    padding = ids == PAD
    encoder(x, src_key_padding_mask=padding)
    nn.Transformer(...)(source, target, src_key_padding_mask=padding, memory_key_padding_mask=padding)
    F.scaled_dot_product_attention(q, k, v, attn_mask=~padding[:, None, None])

For `nn.MultiheadAttention` and `nn.Transformer`, `True` means that a position is hidden. For
`scaled_dot_product_attention`, it means that the position takes part. Models of transformers take the `attention_mask`
that the tokenizer returns.

With padding at the start and a causal mask, queries at the padding attend to nothing, and their results are NaN. Let
each position attend to itself, or pad at the end, where the causal mask is enough for self-attention.

## When to leave it alone

- The model was trained without a mask, and all sequences are padded to the same length, as in SigLIP.
- The positions at the end are no padding, but where the model computes its answer.

## References

- transformers, glossary, "attention mask": https://huggingface.co/docs/transformers/glossary#attention-mask
- torch.nn.TransformerEncoder, `src_key_padding_mask`:
  https://pytorch.org/docs/stable/generated/torch.nn.TransformerEncoder.html
- 1 %: what hides padding leaves it no weight, and less changes little.
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Evidence
from dptune.rule import PaddedAttentionFacts, Rule, RunView
from dptune_rules.at_risk import results_at_risk
from dptune_rules.known import in_parentheses, known

LEAST_PASSES = 2  # the first may be of a script that looks whether it runs
MOST = 0.99  # of the weight on padding: an inverted mask leaves the tokens none
SELF = "self"

RULE = Rule(
    code="DP320",
    name="padding-attended",
    family="batch",
    kind="risk",
    summary="attention attends to padding: a padding mask is missing",
    since="0.1",
    asked_when_busy=True,
    needs="recording",
)


def check(run: RunView) -> Iterator[Advice]:
    """Name each kind of attention of the first rank that attends to padding."""
    if run.recorded_about("padded_attention") is None:
        return
    of_ranks = ([found for found in facts.padded_attention if found.passes >= LEAST_PASSES] for facts in run.facts)
    yield from map(_advice, next(filter(None, of_ranks), []))


def _advice(found: PaddedAttentionFacts) -> Advice:
    what, certain = f"{found.kind}-attention", found.certain or found.padding_idx
    attends = "Attention attends to padding" if certain else "Attention may attend to padding"
    return results_at_risk(
        RULE,
        title=f"{attends}: {what}{in_parentheses(found.where)} gives {100 * found.weight_share:.0f} % of its weight to "
        "it in the sequences with most padding",
        why="The output for a sequence depends on its padding: padded differently, in another batch or at inference, "
        f"the same sequence gives another output.{_INVERTED if found.weight_share >= MOST else ''}",
        evidence=[
            Evidence(label="weight on padding", value=found.weight_share, unit="in the sequences with most padding"),
            Evidence(label="positions that are padding", value=found.padding_share, unit="in the same sequences"),
            Evidence(label="positions", value=found.positions, unit="per sequence"),
            Evidence(label="token id of the padding", value=_named(found)),
            Evidence(label="attention layers that were read", value=found.layers),
            Evidence(label="backward passes with such attention", value=found.passes, unit=f"of {found.passes_seen}"),
            *known("attention is called at", found.where),
        ],
        remedy=f"{_REMEDIES[found.kind]}{_AT_THE_START if found.left and found.kind == SELF else ''}",
        watch=_POOLING if certain else f"{_POOLING} {_UNSURE.format(found.filler, 'start' if found.left else 'end')}",
        subject=what,
        confidence="high" if certain else "medium",
    )


def _named(found: PaddedAttentionFacts) -> str:
    return f"{found.filler}, the embedding's padding_idx" if found.padding_idx else f"{found.filler}"


_POOLING = "Whatever pools the results over positions needs the mask, too."
_UNSURE = "If id {} at the {} of sequences is a token and no padding, leave the script unchanged."
_INVERTED = (
    " The mask looks inverted: True hides a position from nn.MultiheadAttention, and shows it to "
    "scaled_dot_product_attention."
)
_AT_THE_START = (
    " Under a causal mask also let each position attend to itself, or pad at the end: a query that attends to nothing "
    "gives NaN."
)
_REMEDIES = {
    "self": "Pass a mask of the padding to the attention layers: src_key_padding_mask or key_padding_mask (True "
    "hides), attn_mask of scaled_dot_product_attention (False hides), or attention_mask of a model of transformers.",
    "cross": "Pass a mask of the padding to the layers that attend to these tokens: memory_key_padding_mask or "
    "key_padding_mask (True hides), attn_mask of scaled_dot_product_attention (False hides), or attention_mask of a "
    "model of transformers.",
}
