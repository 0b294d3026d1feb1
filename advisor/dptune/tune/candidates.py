"""What to try: the changes of recommendations and of the predicted search, and settings that nothing predicts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dptune.advice import Advice, Change, Location, Report
from dptune.capture import effect
from dptune.knobs import KNOBS, PATCHED, Value, knob
from dptune.measured import Missing
from dptune.patch.diff import patches
from dptune.predicted import WhatIf
from dptune.prove.recorded_task import named
from dptune.runfile.facts import Facts
from dptune.tune.candidate import LEAST_GAIN, Candidate, part_of_training
from dptune.tune.unpredicted import unpredicted

Allowed = Literal["same", "may-change"]


@dataclass(frozen=True)
class Choice:
    """What the user lets a search try. `only` and `skip` have codes of rules and names of knobs."""

    numerics: Allowed = "same"
    only: frozenset[str] = frozenset()
    skip: frozenset[str] = frozenset()

    def refuses(self, candidate: Candidate) -> str:
        """Why it is not tried; "" where it is."""
        names = {candidate.rule, *candidate.settings}
        if candidate.numerics == "changes" and self.numerics == "same":
            return "may change training results (--numerics may-change)"
        if names & self.skip:
            return "left out by --skip"
        if self.only and not names & self.only:
            return "not in --only"
        return ""


@dataclass(frozen=True)
class Left:
    """What is not tried, and why."""

    name: str
    title: str
    why: str


def candidates(
    report: Report, predicted: WhatIf, facts: Sequence[Facts], choice: Choice
) -> tuple[list[Candidate], list[Left]]:
    """The candidates, those with the largest expected gain first, and what is left out."""
    found: list[Candidate] = []
    left = [
        Left(advice.rule, advice.title, f"change the script by hand: {advice.remedy or advice.why}")
        for advice in report.advice
        if advice.kind == "time" and not advice.changes
    ]
    located = {(change.knob, change.then): change for advice in report.advice for change in advice.changes}
    offered = (
        *_of_rules(report.advice),
        *_of_search(predicted, facts, located),
        *unpredicted(report.measured, facts),
    )
    for candidate in offered:
        if _tries_already(candidate, found, facts):
            continue
        if why := choice.refuses(candidate):
            left.append(Left(candidate.name, candidate.title, why))
        elif candidate.expected < LEAST_GAIN:
            left.append(Left(candidate.name, candidate.title, f"expected to save less than {100 * LEAST_GAIN:g} %"))
        else:
            found.append(candidate)
    return sorted(found, key=lambda candidate: candidate.expected, reverse=True), left


def patchable(candidates: Sequence[Candidate], left: Sequence[Left], root: Path) -> tuple[list[Candidate], list[Left]]:
    """The candidates without those that only a patch sets where the script below `root` cannot be patched."""
    why = {candidate.name: _unpatched(candidate, root) for candidate in candidates}
    refused = [
        Left(candidate.name, candidate.title, why[candidate.name]) for candidate in candidates if why[candidate.name]
    ]
    return [candidate for candidate in candidates if not why[candidate.name]], [*left, *refused]


def _unpatched(candidate: Candidate, root: Path) -> str:
    """Why a change that only a patch makes cannot be made; empty where it can, or needs none."""
    if not any(change.knob in PATCHED for change in candidate.changes):
        return ""
    left_out = patches(candidate.changes, root).left_out
    return f"change the script by hand: {left_out[0].why}" if left_out else ""


def _tries_already(candidate: Candidate, found: Iterable[Candidate], facts: Sequence[Facts]) -> bool:
    """Whether another candidate sets the same, or the script does already."""
    settings = candidate.settings
    in_force = facts and all(effect.in_force(name, value, facts) for name, value in settings.items())
    return bool(in_force) or any(settings == other.settings for other in found)


def _of_rules(recommendations: Iterable[Advice]) -> Iterator[Candidate]:
    """Their changes; of a risk those that keep training results: debug options cost time that no rule states."""
    for advice in recommendations:
        saves = advice.saves
        pays = advice.kind == "time" if saves is not None else advice.kind == "risk" and advice.numerics == "same"
        if pays and advice.changes:
            yield Candidate(
                name=advice.rule,
                changes=tuple(advice.changes),
                rule=advice.rule,
                title=advice.title,
                numerics=advice.numerics,
                low_share=0.0 if saves is None else saves.low_share,
                high_share=0.0 if saves is None else saves.high_share,
                basis="" if saves is None else saves.basis,
                subjects=subjects(change.knob for change in advice.changes),
            )


def _of_search(
    predicted: WhatIf, facts: Sequence[Facts], located: Mapping[tuple[str, Value], Change]
) -> Iterator[Candidate]:
    """The settings that the search found, each for itself, so that none is kept for what another one saves.

    Changes that nobody can set, as of the links, are left out. The saving of several is an upper bound for each.
    """
    for prediction in predicted.predictions:
        try:
            before, low, high = predicted.replayed_ns, prediction.low_ns, prediction.high_ns
        except Missing:
            continue
        if not prediction.changes.keys() <= KNOBS.keys() or not before or high >= before:
            continue
        parts = list(_parts(prediction.changes))
        for settings in parts:
            alone = len(parts) == 1
            yield Candidate(
                name=named(settings),
                changes=tuple(
                    located.get(setting)
                    or Change(knob=setting[0], now=None, then=setting[1], at=_line(setting[0], facts))
                    for setting in settings.items()
                ),
                title="best setting of the predicted search",
                numerics="changes" if any(knob(name).numerics == "changes" for name in settings) else "same",
                low_share=1 - high / before if alone else 0.0,
                high_share=min(1.0, 1 - low / before),
                basis="replayed" if alone else "bound",
                subjects=subjects(settings),
            )


def _parts(settings: Mapping[str, Value]) -> Iterator[dict[str, Value]]:
    """The settings of the loader together, and each other one."""
    loader = {name: value for name, value in settings.items() if name.startswith("loader.")}
    if loader:
        yield loader
    yield from ({name: value} for name, value in settings.items() if name not in loader)


def subjects(names: Iterable[str]) -> frozenset[str]:
    """The parts of training that knobs belong to."""
    return frozenset(part_of_training(name) for name in names)


def _line(name: str, facts: Sequence[Facts]) -> Location | None:
    """Where the object that it belongs to is created, where there is one such object only."""
    setting = knob(name)
    objects = getattr(facts[0], setting.call.facts) if facts and setting.call and setting.argument else []
    return Location.parse(objects[0].where) if len(objects) == 1 else None
