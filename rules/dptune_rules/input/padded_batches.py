"""Batches are padded to a fixed length that none of their samples reaches.

## What it measures

The columns at the end of a batch in which every row is padding, by the token ids or attention masks in the first
batches of each loader. Padding up to the longest sample of a batch is not counted.

## Why it costs time

The model computes on padding as on any token: linear layers in proportion to the length, attention with its square. A
batch padded to twice its longest sample takes twice the time, or more.

## What to change

Pad to the longest sample of the batch: `torch.nn.utils.rnn.pad_sequence` in the collate function. With Hugging Face,
drop `padding="max_length"` from the tokenizer call and use `DataCollatorWithPadding(tokenizer)`. Padding to a multiple
of 8 (`pad_to_multiple_of=8`) keeps matrix sizes efficient. Batches of samples of about equal length
(`group_by_length=True` of `TrainingArguments`) save more, but change the order of the samples.

The saving is an upper bound: forward and backward passes shrink with the square of the length.

## When to leave it alone

- `torch.compile` with static shapes, CUDA graphs, or an accelerator that compiles for each shape: each new length
  compiles anew. Pad to a few fixed lengths there.
- Models that need a fixed length.

## References

- Hugging Face, "Padding and truncation": https://huggingface.co/docs/transformers/pad_truncation
- torch.nn.utils.rnn.pad_sequence: https://pytorch.org/docs/stable/generated/torch.nn.utils.rnn.pad_sequence.html
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Evidence
from dptune.rule import Rule, RunView, Threshold

WORTH_SHARE = Threshold("worth_share", 0.05, "impact is medium from here; steps with equal batches vary by less")
LEAST_SHARE = Threshold(
    "least_share", 0.1, "of the columns: rounding usual lengths up to a multiple of 8 or 64 adds up to a tenth"
)

RULE = Rule(
    code="DP506",
    name="padded-batches",
    family="input",
    kind="time",
    summary="batches are padded to a length that none of their samples reaches",
    since="0.1",
    thresholds=(WORTH_SHARE, LEAST_SHARE),
)


def check(run: RunView) -> Iterator[Advice]:
    """Propose to pad to the longest sample of a batch where every row ends in padding."""
    facts = run.any_facts()
    loader = max(facts.loaders, key=lambda candidate: candidate.batches_drawn or 0, default=None)
    if loader is None or loader.padding is None or facts.compiled is not None:
        return
    needless = loader.padding.needless_share
    if needless < run.limit(LEAST_SHARE):
        return
    passes = 1 - run.measured.input.wait_share
    most = (1 - (1 - needless) ** 2) * passes
    impact = run.impact(needless * passes, WORTH_SHARE)
    if impact is None:
        return
    at = loader.preparing.collated_by if loader.preparing else None
    where = f"`{at.partition(' (')[0]}`, {at.partition(' (')[2].rstrip(')')}" if at else loader.where
    yield Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact=impact,
        title=f"{100 * needless:.0f} % of each batch is padding that no sample needs"
        f"{f' ({where})' if where else ''}: pad to the longest sample of the batch",
        why="The model computes on padding as on any token.",
        changes=[],
        saves=run.bound(
            0.0, most, "no more than forward and backward passes, which shrink with the square of the length"
        ),
        confidence="medium",
        evidence=[
            Evidence(label="columns that are padding in every row", value=needless, unit="of a batch"),
            Evidence(label="elements that are not padding", value=loader.padding.filled_share, unit="of a batch"),
            *([Evidence(label="collated by", value=at)] if at else []),
            *([Evidence(label="loader", value=loader.where)] if loader.where else []),
        ],
        numerics="same",
        watch="Lengths then vary from batch to batch, and the longest batch sets peak memory. Results are unchanged "
        "if the model masks padding.",
        fingerprint=f"{RULE.code}:{loader.dataset or 'dataset'}",
    )
