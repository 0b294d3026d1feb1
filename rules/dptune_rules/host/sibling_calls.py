"""Advice about a loop over like modules that compute on the same input, as one module for each head of attention."""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Evidence
from dptune.rule import Rule, RunView, SliceCallsFacts, Threshold

MOSTLY = 0.5  # of a function's time
CALL_NS = 2_000_000  # of longer calls most is compute, which one module for all also needs


def sibling_calls(rule: Rule, run: RunView, worth: Threshold) -> Iterator[Advice]:
    """Recommend one module for all, for each loop of short calls that takes a share of the step worth it."""
    shares = {}
    for found in (each for facts in run.facts for each in facts.slice_calls if each.siblings):
        share = run.line_share(found.where)
        if share is not None and run.impact(share, worth) is not None:
            shares[found.where] = found, share
    for found, share in shares.values():
        inside = [each for each in shares.values() if each[0] is not found and _runs_in(run, each[0], found)]
        short = any(
            part * run.measured.step.time_ns <= CALL_NS * each.calls for each, part in [(found, share), *inside]
        )
        if short and not any(_runs_in(run, found, each) for each, _ in shares.values() if each is not found):
            yield _advice(rule, run, found, share, worth)


def _runs_in(run: RunView, found: SliceCallsFacts, other: SliceCallsFacts) -> bool:
    """Whether the function with the one loop mostly runs in the modules that the other calls."""
    name = found.function.rpartition(".")[2]
    return (run.part_at(name, found.at, other.where) or 0.0) > MOSTLY


def _advice(rule: Rule, run: RunView, found: SliceCallsFacts, share: float, worth: Threshold) -> Advice:
    most = min(1.0, 3 * share) * (found.slices - 1) / found.slices
    return Advice(
        rule=rule.code,
        slug=rule.name,
        kind=rule.kind,
        impact="low" if run.impact(share, worth) == "low" else "medium",
        title=f"{found.slices} modules of class `{found.module}` are called on the same input one after the other "
        f"({found.where}), {100 * share:.0f} % of the step in the forward pass: compute all of them in one module",
        why="Each call launches the same small operators again, and so does its backward pass. One module with their "
        "weights side by side launches them once.",
        changes=[],
        saves=run.bound(0.0, most, "all calls but one of each loop, with up to twice the time in the backward pass"),
        confidence="medium",
        evidence=[
            Evidence(label="called at", value=found.where),
            Evidence(label=f"calls of {found.module}", value=found.calls, unit="per step"),
            Evidence(label="modules of a loop", value=found.slices),
            Evidence(label="time at this line", value=share, unit="of a step"),
        ],
        numerics="same",
        watch="Use one Linear of N times the width, and reshape its output into N parts (heads of attention: `view` "
        "and `transpose`, then scaled_dot_product_attention). Old checkpoints must be joined, and dropout draws other "
        "masks.",
        fingerprint=f"{rule.code}:siblings:{found.where}",
    )
