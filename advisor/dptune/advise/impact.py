"""The impact of advice that saves time: what it is expected to save, and how sure that is. And what saves nothing.

A rule states what a step pays for a problem; how much of it a change saves is another matter. The impact in a report:

- The expected gain is the middle of the interval (`Saving.expected_share`): high from 15 % of a step, medium from 5 %,
  else low. The limits are those of what a step pays (`impact_of`).
- A bound starts at zero, so it counts half of what it allows. In the project's benchmark of planted faults the measured
  saving was 0.75 times the bound in the median, at least 0.45 times in 18 of 19, and 0.1 times in the worst: there the
  cause was known to be real, so half is what is left for causes that are not. Nor is its impact above what the rule
  states that a step pays.
- Where the bound is above half of the step (`Saving.large_unknown`), no saving is counted: the impact is what a step
  pays. In that benchmark such bounds went with savings from 7 to 86 %. They are ranked as a bound of half of the step.
- Low confidence: low impact, whatever the gain. Its cause has to be checked before anything is changed, so it neither
  comes before advice that can be acted on nor fails a gate by its impact. What it may save is in its interval.

Advice on risks and on convergence has the impact that its rule gives it.
"""

from __future__ import annotations

from collections.abc import Iterable

from dptune.advice import IMPACTS, Advice, Confidence, Impact, Saving, Skipped, impact_of


def with_impact(advice: Advice) -> Advice:
    """The advice with the impact that follows from its gain and confidence; unchanged where it saves no time."""
    if advice.kind != "time" or advice.saves is None:
        return advice
    return advice.model_copy(update={"impact": impact_of_saving(advice.saves, advice.confidence, advice.impact)})


def impact_of_saving(saves: Saving, confidence: Confidence, paid: Impact) -> Impact:
    """Impact of a change; `paid` is the impact of what a step pays for the problem, as the rule has it."""
    if confidence == "low":
        return "low"
    impact = paid if saves.large_unknown else impact_of(saves.expected_share) or "low"
    if saves.basis == "bound":
        impact = min(impact, paid, key=IMPACTS.index)
    return impact


def saving_time(advice: Iterable[Advice]) -> tuple[list[Advice], list[Skipped]]:
    """The advice that is expected to save something, with its impact; what is predicted to save nothing, as skipped."""
    kept: list[Advice] = []
    dropped: list[Skipped] = []
    for recommendation in advice:
        if recommendation.kind == "time" and recommendation.saves is not None and recommendation.saves.may_be_nothing:
            dropped.append(Skipped.giving_way(recommendation.rule, _may_be_nothing(recommendation.saves)))
        else:
            kept.append(with_impact(recommendation))
    return kept, dropped


def _may_be_nothing(saves: Saving) -> str:
    of = "a step" if saves.samples_times == 1 else "a sample's time"
    return f"the predicted saving, 0 to {100 * saves.high_share:.1f} % of {of}, includes zero"
