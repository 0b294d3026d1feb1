"""The outcome of `dptune check` as annotations of a GitHub Actions job: they stand at the lines of the script.

GitHub shows ten of each level for a step and drops the rest without a word: what there are more is counted in the last.
Source: https://docs.github.com/en/actions/reference/workflows-and-actions/workflow-commands
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from dptune.check.result import Gate
from dptune.present.sections.advice import savings
from dptune.present.sections.gate import budget_in_words, opening
from dptune.present.visible import visible

MOST = 10
_MOST_CHARACTERS = 2000  # of a message or a title: a name out of a trace may be as long as someone likes
_LEVELS = {"high": "error", "medium": "warning", "low": "notice"}


class _Annotation(NamedTuple):
    level: str
    title: str
    text: str
    file: str = ""
    line: int = 0


def text(gate: Gate) -> str:
    """Workflow commands, a line each."""
    lines = [line for level in _LEVELS.values() for line in _capped(gate, level)]
    return "".join(f"{line}\n" for line in lines)


def _capped(gate: Gate, level: str) -> Iterator[str]:
    of_level = [annotation for annotation in _annotations(gate) if annotation.level == level]
    kept = of_level if len(of_level) <= MOST else of_level[: MOST - 1]
    yield from map(_command, kept)
    if len(of_level) > len(kept):
        more = f"{len(of_level) - len(kept)} more not shown: see the report, or dptune check --format text"
        yield _command(_Annotation(level, "dptune", more))


def _annotations(gate: Gate) -> Iterator[_Annotation]:
    first = {"passed": "notice", "inconclusive": "warning"}.get(gate.outcome, "error")
    yield _Annotation(first, "dptune check", opening(gate))
    if gate.outcome == "unjudgeable":
        for finding in gate.trust.findings:
            if finding.level != "info":
                yield _Annotation("error", "why there is no verdict", finding.text)
    for budget in gate.budgets:  # before advice, of which there may be more than is shown
        if not budget.kept:
            yield _Annotation("error", f"budget {budget.name}", budget_in_words(budget))
    if gate.regression is not None and gate.regression.outcome != "passed":
        level = "warning" if gate.regression.outcome == "inconclusive" and not gate.baseline_fails else "error"
        yield _Annotation(level, "slower than the baseline?", gate.regression.text)
    if gate.outcome != "passed":
        for reservation in gate.reservations:
            yield _Annotation("notice", "dptune check", f"but: {reservation}")
    for advice in gate.tripped:
        at = advice.place
        where = (at.file, at.line) if at else ("", 0)
        message = " ".join(
            [*(f"{words}." for words in [advice.title, *savings(advice, gate.verified, gate.step_ns)]), advice.why]
        )
        yield _Annotation(_LEVELS[advice.impact], f"{advice.rule} {advice.slug}", message, *where)


def _command(annotation: _Annotation) -> str:
    """`::error file=train.py,line=31,title=DP101 bucket-size::what is wrong`."""
    where = {"file": annotation.file, "line": str(annotation.line)} if annotation.file else {}
    properties = ",".join(f"{name}={_property(value)}" for name, value in {**where, "title": annotation.title}.items())
    return f"::{annotation.level} {properties}::{_data(annotation.text)}"


def _data(text: str) -> str:
    shown = visible(text)
    if len(shown) > _MOST_CHARACTERS:
        shown = shown[: _MOST_CHARACTERS - 3] + "..."
    return shown.replace("%", "%25")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
