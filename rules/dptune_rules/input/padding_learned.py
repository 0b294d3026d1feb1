"""The loss counts padding: the model is trained to predict padding tokens.

## What it measures

In up to four calls and backward passes of the warm-up steps, the targets of the loss that are padding and not ignored:

- of a model of transformers that takes `labels` and `attention_mask` of the same shape, as its causal and masked
  language models and token classifiers do: labels other than -100 at positions where the mask is 0;
- of an encoder-decoder model of transformers: labels equal to `pad_token_id`, unless that is also `eos_token_id`;
- of a model of the script that takes both: the same, if these labels are targets of a cross entropy and not ignored;
- of other cross entropies: targets equal to the `padding_idx` of an embedding with one row per class of the loss, at
  positions where its input is padding, too, if `ignore_index` differs;
- where classes are not the rows of that embedding, as tags of words: targets of a class that all positions with padding
  in the input have, and no other position. Padding must be at the end or the start of each sequence.

Cross entropies without reduction or with class weights are left out: they can be masked later.

Reported from 1 % of the targets that count.

## Why it matters

Padding is easy to predict: the loss looks lower than it is and depends on how much padding a batch has, gradients of
real tokens get less weight, and generated text can end in padding.

## What to change

Ignore padding in the loss. For models of transformers, set labels to -100 where the mask is 0, not where the token is
the padding token, which may also mark the end of text:

    labels = ids.clone()
    labels[attention_mask == 0] = -100

In a loop of your own: `nn.CrossEntropyLoss(ignore_index=PAD)`.

## When to leave it alone

- The model should learn to generate padding, for example because only padding marks the end of text.

## References

- transformers, glossary, "labels": "tokens with indices set to -100 are ignored":
  https://huggingface.co/docs/transformers/glossary#labels
- torch.nn.CrossEntropyLoss, `ignore_index`: https://pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html
- 1 %: a text of 100 tokens may end in one padding token that marks its end.
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Evidence
from dptune.rule import CountedPaddingFacts, Rule, RunView, Threshold
from dptune_rules.at_risk import results_at_risk
from dptune_rules.known import known

WORTH_SHARE = Threshold("worth_share", 0.01, "of the targets: a text of 100 tokens may end in one padding token")

RULE = Rule(
    code="DP512",
    name="padding-learned",
    family="input",
    kind="risk",
    summary="the loss counts padding: the model is trained to predict padding tokens",
    since="0.1",
    thresholds=(WORTH_SHARE,),
    asked_when_busy=True,
    needs="recording",
)


def check(run: RunView) -> Iterator[Advice]:
    """Name the model or the loss with the largest share of padding among its targets."""
    if run.recorded_about("counted_padding") is None:
        return
    facts = next((facts for facts in run.facts if facts.counted_padding), None)
    found = max(facts.counted_padding if facts else [], key=_share, default=None)
    if facts is None or found is None or not found.padding or _share(found) < run.limit(WORTH_SHARE):
        return
    loader = max(facts.loaders, key=lambda loader: loader.batches_drawn or 0, default=None)
    preparing = loader.preparing if loader else None
    yield results_at_risk(
        RULE,
        title=f"The loss counts padding: {100 * _share(found):.0f} % of the targets are {_what(found)}",
        why="The model is trained to predict padding, and the loss looks lower than it is.",
        evidence=[
            Evidence(label="targets that are padding", value=found.padding, unit=f"of {found.targets:,} that count"),
            Evidence(label="passes looked at", value=found.passes),
            *known("batches are collated by", preparing.collated_by if preparing else None),
            *known("samples are read by", preparing.read_by if preparing else None),
        ],
        remedy=_remedy(found),
        watch="The loss rises, because it no longer counts padding: losses before and after cannot be compared.",
        subject="padding",
    )


def _share(found: CountedPaddingFacts) -> float:
    return found.padding / found.targets if found.targets else 0.0


def _what(found: CountedPaddingFacts) -> str:
    if found.shown_by == "attention_mask":
        return f"at positions that the attention mask of {found.model} masks"
    if found.shown_by == "place":
        return f"class {found.pad}, which only padding has"
    of = "the padding_idx of the embedding" if found.shown_by == "padding_idx" else f"the pad_token_id of {found.model}"
    return f"{found.pad}, {of}"


def _remedy(found: CountedPaddingFacts) -> str:
    if found.shown_by == "attention_mask":
        return "Set `labels[attention_mask == 0] = -100` where batches are made."
    if found.shown_by == "pad_token_id":
        return f"Set `labels[labels == {found.pad}] = -100` where batches are made."
    return f"Pass `ignore_index={found.pad}` to the cross entropy."
