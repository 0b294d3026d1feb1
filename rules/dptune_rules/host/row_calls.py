"""Advice about a loop over a list that calls a module with one row for each item."""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Evidence, Impact
from dptune.rule import RowCallsFacts, Rule, RunView, Threshold

MOSTLY = 0.5  # of a function's time: then advice about the loop is about this function, too
_KEY = "rows"


def row_calls(rule: Rule, run: RunView, worth: Threshold) -> Iterator[Advice]:
    """Recommend one call with all rows, for each loop that takes a share of the step worth it."""
    for found in _of(run):
        share = run.line_share(found.where)
        impact = run.impact(share or 0.0, worth)
        if share is not None and impact is not None:
            yield _advice(rule, run, found, share, impact)


def covered(run: RunView, name: str, at: str) -> bool:
    """Whether a function of the script spends most of its time in loops that this advice is about."""
    places = [place for advice in run.advised if (place := _place(advice.fingerprint))]
    return any((run.part_at(name, at, place) or 0.0) > MOSTLY for place in places)


def _place(fingerprint: str) -> str:
    _, _, rest = fingerprint.partition(f":{_KEY}:")
    return rest


def _of(run: RunView) -> list[RowCallsFacts]:
    return next((facts.row_calls for facts in run.facts if facts.row_calls), [])


def _advice(rule: Rule, run: RunView, found: RowCallsFacts, share: float, impact: Impact) -> Advice:
    once = (found.items - 1) / found.items if found.items else 0.0
    return Advice(
        rule=rule.code,
        slug=rule.name,
        kind=rule.kind,
        impact=impact,
        title=f"`{found.function}` ({found.where}) is called {found.calls:,} times in a step with one row each, "
        f"{100 * share:.0f} % of the step: stack the {found.items:,} rows of each loop and call it once",
        why="A call costs the host about the same for one row as for all of them.",
        changes=[],
        saves=run.bound(0.0, once * share, f"all but one of the {found.items:,} calls of each loop"),
        confidence="medium",
        evidence=[
            Evidence(label="called at", value=found.where),
            Evidence(label=f"calls of {found.module}", value=found.calls, unit="per step"),
            Evidence(label="items of a loop", value=found.items),
            Evidence(label="time at this line", value=share, unit="of a step"),
        ],
        numerics="same",
        watch="Results agree up to floating-point rounding, and random numbers are drawn in another order. Do not "
        "stack calls that need the result of an earlier one.",
        fingerprint=f"{rule.code}:{_KEY}:{found.where}",
    )
