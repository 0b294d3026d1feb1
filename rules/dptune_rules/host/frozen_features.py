"""Advice about a frozen module that computes the same in each epoch, or in each step."""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Evidence, Impact
from dptune.rule import FrozenFeatureFacts, LoaderFacts, Rule, RunView, Threshold
from dptune_rules.known import in_parentheses, known

LEAST_EPOCHS = 2


def fixed_inputs(rule: Rule, run: RunView, worth: Threshold) -> Iterator[Advice]:
    """Recommend keeping the result of a frozen module that gets the same inputs in every step."""
    if run.measured.device_kind != "cpu":
        return
    for found in run.any_facts().frozen_features:
        impact = run.impact(found.step_share, worth) if found.same_inputs else None
        if impact is not None:
            yield _of_fixed(rule, run, found, impact)


def _of_fixed(rule: Rule, run: RunView, found: FrozenFeatureFacts, impact: Impact) -> Advice:
    share, several = found.step_share, found.same_inputs > 1
    return Advice(
        rule=rule.code,
        slug=rule.name,
        kind=rule.kind,
        impact=impact,
        title=f"`{found.module}` is called with the same {'inputs' if several else 'input'} in every step"
        f"{in_parentheses(found.where)}, {100 * share:.0f} % of the step: call it once before training and keep the "
        f"{'results' if several else 'result'}",
        why="No optimizer trains it, it draws no random numbers, and its inputs and outputs were equal in every step "
        "that was checked.",
        changes=[],
        saves=run.without_fixed(found) or run.bound(0.0, share, "all of its calls"),
        confidence="medium" if run.times_hold else "low",
        evidence=[
            Evidence(label=f"calls of {found.module}", value=share, unit="of a step"),
            *known("called at", found.where),
            Evidence(label="different inputs", value=found.same_inputs),
            Evidence(label="steps that were compared", value=len(found.step_ns)),
        ],
        numerics="same",
        watch="Only steps of the warm-up were compared: call it again where its inputs change later.",
        fingerprint=f"{rule.code}:{found.module}:fixed",
    )


def frozen_features(rule: Rule, run: RunView, worth: Threshold) -> Iterator[Advice]:
    """Recommend storing the features, if samples are prepared without random numbers, for several epochs."""
    facts = run.any_facts()
    if run.measured.device_kind != "cpu":
        return
    loader = max(facts.loaders, key=lambda loader: loader.batches_drawn or 0, default=None)
    if loader is None or loader.random_samples is not False or loader.iterable:
        return
    for found in [each for each in facts.frozen_features if not each.same_inputs][:1]:
        epochs = max(facts.planned_epochs or 0, found.epochs)
        if epochs >= LEAST_EPOCHS and run.impact(found.step_share, worth) is not None:
            yield _advice(rule, run, worth, found, loader, epochs)


def _advice(
    rule: Rule, run: RunView, worth: Threshold, found: FrozenFeatureFacts, loader: LoaderFacts, epochs: int
) -> Advice:
    share = found.step_share
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
