"""Advice about a frozen module that computes the same features of the same samples in each epoch."""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Evidence
from dptune.rule import FrozenFeatureFacts, LoaderFacts, Rule, RunView, Threshold
from dptune_rules.known import in_parentheses, known

LEAST_EPOCHS = 2


def frozen_features(rule: Rule, run: RunView, worth: Threshold) -> Iterator[Advice]:
    """Recommend storing the features, if samples are prepared without random numbers, for several epochs."""
    facts = run.any_facts()
    if run.measured.device_kind != "cpu" or (facts.planned_epochs or 0) < LEAST_EPOCHS:
        return
    loader = max(facts.loaders, key=lambda loader: loader.batches_drawn or 0, default=None)
    if loader is None or loader.random_samples is not False or loader.iterable:
        return
    for found in facts.frozen_features[:1]:
        if run.impact(found.step_share, worth) is not None:
            yield _advice(rule, run, worth, found, loader)


def _advice(rule: Rule, run: RunView, worth: Threshold, found: FrozenFeatureFacts, loader: LoaderFacts) -> Advice:
    share, epochs = found.step_share, run.any_facts().planned_epochs or 0
    return Advice(
        rule=rule.code,
        slug=rule.name,
        kind=rule.kind,
        impact=run.impact(share, worth) or "low",
        title=f"`{found.module}` computes the same features of the same samples in each of {epochs} epochs"
        f"{in_parentheses(found.where)}, {100 * share:.0f} % of the step: compute them once and store them",
        why="No optimizer trains it, it gets the batch as the loader prepares it, and the loader draws no random "
        "numbers for its samples.",
        changes=[],
        saves=run.bound(0.0, share, "all of its calls"),
        confidence="medium",
        evidence=[
            Evidence(label=f"calls of {found.module}", value=share, unit="of a step"),
            *known("called at", found.where),
            *known("samples of the data set", loader.dataset_samples),
            Evidence(label="epochs planned", value=epochs),
        ],
        numerics="same",
        watch="The features of all samples must fit into memory or on disk. Not if samples will be augmented.",
        fingerprint=f"{rule.code}:{found.module}:frozen",
    )
