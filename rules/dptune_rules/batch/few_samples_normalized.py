"""BatchNorm normalizes over very few samples per rank.

## What it measures

The input of BatchNorm layers with trained parameters and running statistics in training mode, in the warm-up steps: the
largest number of samples in a call. Reported for two samples or fewer, and for up to four if a layer also has at most
four values per channel. SyncBatchNorm counts the samples of all its ranks.

## Why it matters

It hurts accuracy. DistributedDataParallel does not synchronize BatchNorm: each rank normalizes by the mean and variance
of its own samples. With two samples these are mostly noise, and differ from the running averages that evaluation uses.
On ImageNet, ResNet-50 has an error of 23.6 % with 32 samples per GPU, 27.3 % with 4 and 34.7 % with 2. Gradient
accumulation does not help: each micro-batch is normalized by itself.

## What to change

On GPUs with several ranks, let them normalize together, before DDP wraps the model:

    model = nn.SyncBatchNorm.convert_sync_batchnorm(model)

It adds a collective per layer to the forward and the backward pass. Otherwise normalize each sample by itself, which
works for any batch size:

    nn.GroupNorm(num_groups=32, num_channels=channels)

or give each rank a larger batch. For fine-tuning, keep pretrained statistics: `.eval()` on the BatchNorm layers.

## When to leave it alone

- Each sample has many varied values per channel, for example a large image in segmentation: its statistics are then
  close to those of the data.

## References

- Wu, He, "Group Normalization" (2018), table 2 (error by samples per GPU): https://arxiv.org/abs/1803.08494
- torch.nn.SyncBatchNorm: https://pytorch.org/docs/stable/generated/torch.nn.SyncBatchNorm.html
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Evidence
from dptune.rule import NormSampleFacts, Rule, RunView, Threshold
from dptune_rules.at_risk import results_at_risk
from dptune_rules.known import known

SAMPLES = Threshold("samples", 2, "the error rises by 11 points with 2 samples, by less than 4 with 4 (Wu, He 2018)")

RULE = Rule(
    code="DP311",
    name="few-samples-normalized",
    family="batch",
    kind="risk",
    summary="BatchNorm normalizes over very few samples per rank",
    since="0.1",
    thresholds=(SAMPLES,),
    asked_when_busy=True,
    needs="recording",
)
FEW_VALUES = 4  # of a channel: as few numbers as two samples of two positions


def check(run: RunView) -> Iterator[Advice]:
    """Name the layers, and what normalizes over more samples or over none."""
    if run.recorded_about("norm_samples") is None:
        return
    facts = next((facts for facts in run.facts if facts.norm_samples), None)
    found = facts.norm_samples if facts else None
    if facts is None or found is None or min(found.layers, found.samples, found.values) < 1:
        return
    if not (found.samples <= run.limit(SAMPLES) or found.values <= FEW_VALUES):
        return
    device = facts.device.kind if facts.device else ""
    yield _advice(found, facts.world_size, device)


def _advice(found: NormSampleFacts, ranks: int, device: str) -> Advice:
    count = f"{found.samples} sample{'s' if found.samples > 1 else ''}{' per rank' if ranks > 1 else ''}"
    layers = f"{found.layers} layer{'s' if found.layers > 1 else ''}"
    named = ", ".join(f"`{name}`" for name in found.names) + (", ..." if found.layers > len(found.names) else "")
    synchronizes = ranks > 1 and device not in ("", "cpu") and found.samples * ranks > FEW_VALUES
    return results_at_risk(
        RULE,
        title=f"BatchNorm normalizes over {count} in {layers} ({named}): its statistics are mostly noise",
        why="Each rank normalizes by the mean and variance of its own samples. Evaluation uses running averages, which "
        "differ from them."
        if ranks > 1
        else "The mean and variance of so few samples are far from the running averages that evaluation uses.",
        impact="high" if found.values < 16 * FEW_VALUES else "medium",
        confidence="high" if found.samples > 1 else "medium",
        evidence=[
            Evidence(label="most samples in a call", value=found.samples),
            Evidence(label="most values of a channel in a call", value=found.values),
            Evidence(label="layers", value=found.layers, unit=f"of {found.of_layers}"),
            *known("called at", found.where),
        ],
        remedy="Before DDP wraps the model: `model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)`."
        if synchronizes
        else f"Use `nn.GroupNorm` in place of BatchNorm, or a larger batch{' per rank' if ranks > 1 else ''}.",
        watch="Train again from the start: the layers normalize differently.",
        subject=found.names[0] if found.names else "layers",
    )
