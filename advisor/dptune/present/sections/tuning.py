"""What a search of `dptune tune` will do, does and came to, as pages and lines of text."""

from __future__ import annotations

from collections.abc import Iterator

from dptune.knobs import Value, written
from dptune.present.amounts import Hole, percent, several
from dptune.present.lines import Line, code, command_line, heading, labelled, wrapped
from dptune.present.sections.advice import change, changes, in_words
from dptune.present.sections.proof import line_of
from dptune.present.table import Cell, Column, table
from dptune.prove.result import Proof
from dptune.tune.race import Race
from dptune.tune.result import NotTried, Plan, Planned, Tried, Tuning
from dptune.tune.search import Attempt, Moment

_PLAN = (Column("change", right=False), Column("predicted saving", right=False), Column("rounds"), Column("minutes"))
TRIED = (
    Column("change", right=False),
    Column("on top of", right=False, least=8),
    Column("rounds"),
    Column("time per sample", right=False),
    Column("result", right=False, least=12),
)
VERDICTS = {
    "faster": "Faster",
    "not confirmed": "Not confirmed",
    "results differ": "Do not apply: training results differ",
    "not compared": "Not compared",
    "nothing kept": "Nothing kept",
}


def plan_page(plan: Plan, width: int) -> Iterator[Line]:
    """The candidates in their order, with what is predicted and how long their trials are likely to take."""
    if not plan.candidates:
        yield from wrapped("No candidates: nothing would be tried.", width)
    yield from table(_PLAN, [_planned(candidate) for candidate in plan.candidates], width)
    if plan.candidates:
        words = (
            f"A trial takes about {plan.trial_s:.0f} s. Rounds, minutes: expected effort to show a saving, if trials "
            "vary by 3 %. Up to three candidates race together."
        )
        yield from wrapped(words, width, "  ", role="dim")
    yield from _settings({candidate.name: candidate.settings for candidate in plan.candidates}, width)
    yield from _not_tried(plan.not_tried, width)


def page(tuning: Tuning, width: int) -> Iterator[Line]:
    """Verdict, what to do, what was tried, and what was not."""
    yield from summary(tuning, width)
    yield from heading("Tried", width)
    if tuning.tried:
        yield from table(TRIED, [tried_row(tried) for tried in tuning.tried], width)
        yield from wrapped(races(tuning), width, "  ", role="dim")
    else:
        yield from wrapped("No change was raced.", width, "  ")
    yield from _settings({tried.name: tried.settings for tried in tuning.tried}, width)
    yield from _not_tried(tuning.not_tried, width)


def summary(tuning: Tuning, width: int) -> Iterator[Line]:
    """Verdict, reason, kept changes and the commands that apply them."""
    verdict = VERDICTS[tuning.outcome]
    if tuning.final is not None and tuning.outcome != "not compared":
        words = in_words(tuning.final)
        verdict = f"{verdict}: {words.removeprefix('faster: ').removeprefix('inconclusive: ')}"
    yield from labelled("Verdict", f"{verdict.removesuffix('.')}.", width, role="strong")
    yield from labelled("Why", f"{tuning.reason[:1].upper()}{tuning.reason[1:]}.", width)
    if tuning.kept:
        yield from labelled("Kept", f"{', '.join(tuning.kept)}: {setting_words(tuning.settings)}.", width)
    if tuning.apply and tuning.outcome != "results differ":
        yield from command_line("Apply", tuning.apply, width)
    if tuning.start:
        yield from command_line("Start", tuning.start, width)
    if tuning.by_hand:
        yield from labelled("By hand", "Add to the script:", width)
        for text in tuning.by_hand:
            yield from code(text, " " * 12)
    if tuning.ended == "interrupted":
        yield from command_line("Continue", tuning.resume, width)
    elif tuning.ended == "out of time" or tuning.outcome == "not confirmed":
        yield from labelled("Time", "The search continues with a longer --time-limit:", width)
        yield from command_line("Continue", tuning.resume, width)


def races(tuning: Tuning) -> str:
    """What the figures of the races compare."""
    return (
        "Each race compares new trials with the changes kept before it; only the verdict above is the saving of all "
        f"kept changes. The chance that any of them has no effect is at most {100 * tuning.level:g} %."
    )


def trial_line(moment: Moment, time_limit_s: float) -> str:
    """The trial that starts, what is kept so far, which candidate is ahead in the race, and the time left."""
    kept = " + ".join(candidate.name for candidate in moment.stack)
    best = f"kept {kept}, {percent(1 - moment.stack_ratio)} less time so far" if kept else "nothing kept yet"
    left_min = max(0.0, time_limit_s - moment.spent_s) / 60
    where = f"race {moment.race}, round {moment.round}" if moment.race else "first run"
    ahead = "" if moment.standing is None else _ahead(moment.standing)
    return f"{where}: {moment.name} ({best}; {ahead}{left_min:.0f} min left)"


def _ahead(race: Race) -> str:
    leader = race.leader
    return "" if leader is None else f"{leader.candidate.name} ahead: {percent(race.gain(leader))} less time; "


def attempt_line(attempt: Attempt) -> str:
    """What a race said about one of its candidates."""
    gain = "" if attempt.gain is None else f", {change(1 - attempt.gain)} time in {several(attempt.rounds, 'round')}"
    why = f": {attempt.why}" if attempt.why else ""
    return f"{attempt.candidate.name} {attempt.result}{why or gain}"


def final_line(proof: Proof, what: str) -> str:
    """The final comparison as it stands."""
    return f"final comparison: {line_of(proof, what)}"


def _planned(candidate: Planned) -> list[Cell]:
    return [
        candidate.name,
        _prediction(candidate),
        str(candidate.rounds),
        f"{candidate.seconds / 60:.1f}",
    ]


def _prediction(candidate: Planned) -> str:
    if not candidate.basis:
        return "not predicted"
    if candidate.basis == "bound":
        return f"up to {percent(candidate.predicted_high_share)}"
    return f"{percent(candidate.predicted_low_share)} to {percent(candidate.predicted_high_share)}"


def tried_row(tried: Tried) -> list[Cell]:
    """One race of a candidate, as a row of a table."""
    words = measured(tried)
    if words and tried.low_ratio is None:
        words = f"{words}, no interval"
    result = f"{tried.result}: {tried.reason}" if tried.reason else tried.result
    ratio: Cell = words or Hole(tried.reason or "no trial ran")
    return [tried.name, " + ".join(tried.stack) or "original", str(tried.rounds), ratio, result]


def measured(tried: Tried) -> str:
    """The time with it, compared with the time without: an interval, or one value; empty where no trial ran."""
    if tried.low_ratio is not None and tried.high_ratio is not None:
        return changes(tried.low_ratio, tried.high_ratio)
    return "" if tried.gain_share is None else change(1 - tried.gain_share)


def _settings(settings: dict[str, dict[str, Value]], width: int) -> Iterator[Line]:
    """What the changes that are named by a rule set."""
    named = {name: values for name, values in settings.items() if name != setting_words(values) and values}
    if named:
        yield from heading("Settings", width)
    for name, values in named.items():
        yield from wrapped(f"{name}: {setting_words(values)}", width, "  ", "    ")


def setting_words(settings: dict[str, Value]) -> str:
    """Settings with their values, as on a command line."""
    return ", ".join(f"{name}={written(value)}" for name, value in settings.items())


def _not_tried(left: list[NotTried], width: int) -> Iterator[Line]:
    if left:
        yield from heading("Left out", width)
    for each in left:
        yield from wrapped(f"{each.name}: {each.reason}", width, "  ", "    ")
