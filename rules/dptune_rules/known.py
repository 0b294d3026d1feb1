"""Parts of an advice that are left out where their value is not known."""

from __future__ import annotations

from dptune.advice import Evidence
from dptune.rule import DdpFacts, LoaderFacts, OptimizerFacts, RunView, SchedulerFacts


def known(label: str, value: str | float | None) -> list[Evidence]:
    """One evidence; none where the value is None, empty or 0."""
    return [Evidence(label=label, value=value)] if value else []


def in_parentheses(where: str | None) -> str:
    """A line of the script behind what a title names; empty where it is not known."""
    return f" ({where})" if where else ""


def passed_at(made: DdpFacts | LoaderFacts | OptimizerFacts | SchedulerFacts | None, *names: str) -> list[Evidence]:
    """The lines that pass these arguments to the call that makes an object, where that call has several lines."""
    if made is None:
        return []
    lines = {name: made.argument_lines[name] for name in names if name in made.argument_lines}
    return [Evidence(label=f"{name} is passed at", value=line) for name, line in lines.items() if line != made.where]


def ratio_stays_one(run: RunView) -> bool:
    """Whether a policy's old log-probabilities are those of its current weights, as `ratio-always-one` reports.

    A second forward pass of the policy in a step is then the fault, and reusing the first would keep it.
    """
    return any(found.stays_one for facts in run.facts for found in facts.policy_ratios)


def named_with_class(run: RunView, name: str, at: str) -> bool:
    """Whether `same-results` names this method with its class, in the file of `at`."""
    called = f".{name}` ({at.rpartition(':')[0]}:"
    return any(advice.rule == "DP625" and called in advice.title for advice in run.advised)
