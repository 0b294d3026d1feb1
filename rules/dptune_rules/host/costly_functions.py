"""Advice about functions of the script that spend a share of the step in one kind of operator."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

from dptune.advice import Advice, Confidence, Evidence, Impact, Saving
from dptune.measured import FunctionOperators
from dptune.rule import Rule, RunView
from dptune_rules.call_paths import call_path_evidence


def costs(label: str, function: FunctionOperators) -> list[Evidence]:
    """The time of its operators in a step, and of their backward pass where it has one."""
    parts = {label: function.cost_ns, "their backward pass": function.backward_ns}
    return [
        Evidence(label=part, value=cost_ns / 1e6, unit="ms per step", rank=function.rank)
        for part, cost_ns in parts.items()
        if cost_ns or part == label
    ]


def seen_in_kernels(run: RunView, matches: Callable[[str], bool], least_share: float = 0.0) -> bool:
    """Whether the listed kernels and operators with such names take this share of a step; True where none are listed.

    Tells a run that lacks a detailed window and needs one from a run in which these operators cost nothing.
    """
    kernels = run.measured.known("kernels")
    if kernels is None:
        return True
    shares = [kernel.step_share for kernel in kernels.top if matches(kernel.name)]
    return bool(shares) and sum(shares) >= least_share


def advice(
    rule: Rule,
    run: RunView,
    function: FunctionOperators,
    impact: Impact,
    *,
    spends: str,
    why: str,
    most: str,
    confidence: Confidence,
    details: Iterable[Evidence],
    numerics: Literal["same", "changes"],
    watch: str,
    saved_share: float | None = None,
    saves: Saving | None = None,
) -> Advice:
    """The advice. `spends` ends the title after the share, `most` says what bounds the saving.

    `saved_share` is that bound where it is not the function's share of the step, `saves` a prediction if there is one.
    """
    where = run.hottest_line(function.name, function.at) or function.at
    return Advice(
        rule=rule.code,
        slug=rule.name,
        kind=rule.kind,
        impact=impact,
        title=f"`{function.name}` ({where}) spends {100 * function.share:.0f} % of the step {spends}",
        why=why,
        changes=[],
        saves=saves or run.bound(0.0, function.share if saved_share is None else saved_share, most),
        confidence=confidence,
        evidence=[
            *costs(f"{function.name} at {function.at}", function),
            *details,
            *call_path_evidence(run, function.name, function.at),
        ],
        numerics=numerics,
        watch=watch,
        fingerprint=f"{rule.code}:{function.name}",
    )
