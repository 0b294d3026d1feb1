"""Batches are mostly padding: to a fixed length that no sample reaches, or because lengths differ within a batch.

## What it measures

From the token ids or masks in the first batches of each loader, if the model reads them: an embedding gets the ids in
warm-up steps, or a layer gets the features that are constant where a mask marks padding. Targets for each position do
not count.

- columns at the end, or at the start, of a batch in which every row is padding;
- if these are few, the mean length of the samples as a share of the longest one in their batch.

## Why it matters

The model computes on padding as on any token: linear layers take time in proportion to the length, attention to its
square. A batch padded to twice its longest sample takes twice the time or more.

## What to change

Pad to the longest sample of the batch: `torch.nn.utils.rnn.pad_sequence` in the collate function. With Hugging Face,
drop `padding="max_length"` from the tokenizer call and use `DataCollatorWithPadding(tokenizer)`. Padding to a multiple
of 8 (`pad_to_multiple_of=8`) keeps matrix sizes efficient.

Where lengths differ within a batch, group samples of similar length:

- transformers' `Trainer`: `train_sampling_strategy="group_by_length"` in `TrainingArguments`; before version 5,
  `group_by_length=True`.
- A sampler that shuffles, splits the order into chunks of about 50 batches and sorts each chunk by length (as
  `LengthGroupedSampler` does), or one with fixed length buckets. In each step give all ranks batches of about the same
  length, because they wait for the longest one.
- Packing: put several samples into one row, with an attention mask that separates them.

The saving is an upper bound: compute, and waiting for the rank with the longest batch, shrink with the square of the
length. On CPUs with DistributedDataParallel, if no sample reaches the length and batches are token ids that the step
hardly waits for, it is predicted: from what a replay with proportionally fewer samples saves, because layers compute on
each token alike, up to that bound.

## When to leave it alone

- `torch.compile` with static shapes, CUDA graphs, or an accelerator that compiles for each shape: each new length
  triggers a compilation. Pad to a few fixed lengths there.
- Models that need a fixed length.
- Recurrent layers on packed sequences (`pack_padded_sequence`) do not compute on padding.
- Grouping changes which samples share a batch, and so training results. Compare the validation loss.

## References

- Hugging Face, "Padding and truncation": https://huggingface.co/docs/transformers/pad_truncation
- transformers, `TrainingArguments`: https://huggingface.co/docs/transformers/main_classes/trainer
- torch.nn.utils.rnn.pad_sequence: https://pytorch.org/docs/stable/generated/torch.nn.utils.rnn.pad_sequence.html
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import Literal

from dptune.advice import Advice, Evidence, Saving
from dptune.measured import Missing
from dptune.rule import LoaderFacts, PaddingFacts, Rule, RunView, Threshold
from dptune_rules.known import in_parentheses, known

WORTH_SHARE = Threshold("worth_share", 0.05, "impact is medium from here; steps with equal batches vary by less")
LEAST_SHARE = Threshold(
    "least_share", 0.1, "of the columns: rounding usual lengths up to a multiple of 8 or 64 adds up to a tenth"
)
MOST_MEAN_LENGTH = Threshold(
    "most_mean_length",
    0.6,
    "of the longest sample in the batch: lengths spread evenly from half of the longest to all of it have a mean of "
    "75 %, and grouping them saves about a quarter of the compute, which does not justify another order of the samples",
)

ID_BYTES = 4 * 8  # of a token in a batch, at most: ids, a mask, types and labels, and no images or features beside them
MOST_WAIT = 0.05  # of a step for batches: a replay shortens that wait with the batch, padding does not

GROUPED = ("length", "bucket")  # in the class name of a sampler that groups by length

RULE = Rule(
    code="DP506",
    name="padded-batches",
    family="input",
    kind="time",
    summary="batches are mostly padding: no sample reaches their length, or lengths differ within them",
    since="0.1",
    thresholds=(WORTH_SHARE, LEAST_SHARE, MOST_MEAN_LENGTH),
    needs="recording",
)


def check(run: RunView) -> Iterator[Advice]:
    """Propose to pad to the longest sample of a batch, or to group samples by length."""
    if (facts := run.recorded_about("loaders")) is None:
        return
    loader = max(facts.loaders, key=lambda candidate: candidate.batches_drawn or 0, default=None)
    if loader is None or loader.padding is None or facts.compiled is not None:
        return
    user_code = run.measured.known("user_code")
    if user_code is not None and user_code.packs:
        return
    needless = loader.padding.needless_share
    if needless >= run.limit(LEAST_SHARE):
        yield from _fixed_length(run, loader, loader.padding)
    elif loader.padding.mean_length_share <= run.limit(MOST_MEAN_LENGTH) and not _is_grouped(loader):
        yield from _mixed_lengths(run, loader, loader.padding)


def _is_grouped(loader: LoaderFacts) -> bool:
    samplers = f"{loader.sampler} {loader.batch_sampler}".lower()
    return any(word in samplers for word in GROUPED)


def _fixed_length(run: RunView, loader: LoaderFacts, padding: PaddingFacts) -> Iterator[Advice]:
    needless = padding.needless_share
    yield from _card(
        run,
        loader,
        padding,
        needless,
        which=" that no sample needs",
        remedy="pad to the longest sample of the batch",
        cause=Evidence(label="columns that are padding in every row", value=needless, unit="of a batch"),
        numerics="same",
        watch="Lengths then vary from batch to batch, and the longest batch sets peak memory. Results are unchanged "
        "if the model masks padding.",
        subject=loader.dataset or "dataset",
    )


def _mixed_lengths(run: RunView, loader: LoaderFacts, padding: PaddingFacts) -> Iterator[Advice]:
    mean = padding.mean_length_share
    yield from _card(
        run,
        loader,
        padding,
        1 - mean,
        which=", because the lengths of its samples differ",
        remedy="group samples of similar length",
        how=" transformers' Trainer groups with "
        'train_sampling_strategy="group_by_length" (before version 5: group_by_length=True); other scripts need a '
        "sampler that sorts chunks of a shuffled order by length, or packing.",
        cause=Evidence(label="mean length of a sample", value=mean, unit="of the longest one in its batch"),
        numerics="changes",
        watch="The samples come in another order, with similar ones in a batch: compare the validation loss. Give all "
        "ranks batches of similar length in a step.",
        subject=f"lengths:{loader.dataset or 'dataset'}",
    )


def _card(
    run: RunView,
    loader: LoaderFacts,
    padding: PaddingFacts,
    needless: float,
    *,
    which: str,
    remedy: str,
    how: str = "",
    cause: Evidence,
    numerics: Literal["same", "changes"],
    watch: str,
    subject: str,
) -> Iterator[Advice]:
    """The advice to remove this share of a batch, if that shortens steps enough."""
    impact = run.impact(needless * _shrinking(run), WORTH_SHARE)
    if impact is None:
        return
    yield Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact=impact,
        title=f"{100 * needless:.0f} % of each batch is padding{which}{in_parentheses(_where(loader))}: {remedy}",
        why=f"The model computes on padding as on any token.{how}",
        changes=[],
        saves=_saving(run, loader, padding, needless),
        confidence="medium",
        evidence=[cause, *_evidence(loader, padding)],
        numerics=numerics,
        watch=watch,
        fingerprint=f"{RULE.code}:{subject}",
    )


def _shrinking(run: RunView) -> float:
    """The share of a step that shorter batches shorten: compute, and waiting for the rank with the longest batch."""
    rest = 1 - run.measured.input.wait_share
    account = run.measured.known("account")
    if account is None:
        return rest
    parts = ("compute_ns", "exposed_waiting_ns", "exposed_unsplit_ns")
    return min(rest, run.unstretched(sum(account.share(part) for part in parts)))


def _saving(run: RunView, loader: LoaderFacts, padding: PaddingFacts, needless: float) -> Saving:
    """Predicted where all rows of a batch of token ids get shorter alike, else bounded."""
    most = (1 - (1 - needless) ** 2) * _shrinking(run)
    bound = run.bound(0.0, most, "compute and waiting for ranks, which shrink with the square of the length")
    samples = loader.batch_size
    if needless != padding.needless_share or not samples or not _is_of_ids(run, samples, padding):
        return bound
    try:
        fewer = ceil((1 - needless) * samples)
        return run.predict_of_less(fewer, bound, f"replayed with {fewer} instead of {samples} samples per batch")
    except Missing as lack:
        return bound.without_prediction(lack.reason)


def _is_of_ids(run: RunView, samples: int, padding: PaddingFacts) -> bool:
    """Whether CPUs compute on batches that are token ids and hardly wait for them."""
    preparing = run.measured.input.known("preparing")
    if run.measured.known("device_kind") != "cpu" or run.measured.input.wait_share > MOST_WAIT:
        return False
    if preparing is None or not preparing.tensor_bytes or not padding.batches:
        return False
    return bool(preparing.tensor_bytes <= ID_BYTES * samples * padding.columns / padding.batches)


def _where(loader: LoaderFacts) -> str | None:
    """The function of the script that collates, with its line that pads; else a line that does, or makes the loader."""
    lines = loader.padding.lines if loader.padding else []
    name, _, at = ((loader.preparing and loader.preparing.collated_by) or "").partition(" (")
    if lines and (not at or at.rpartition(":")[0] != lines[0].rpartition(":")[0]):
        return lines[0]
    return f"`{name}`, {lines[0] if lines else at.rstrip(')')}" if at else loader.where


def _evidence(loader: LoaderFacts, padding: PaddingFacts) -> Iterator[Evidence]:
    yield Evidence(label="elements that are not padding", value=padding.filled_share, unit="of a batch")
    yield from known("collated by", loader.preparing.collated_by if loader.preparing else None)
    yield from known("padded at", ", ".join(padding.lines))
    yield from known("loader", loader.where)
