"""The outcome of `dptune check` as Markdown: for the summary of a CI job, or a comment on a pull request.

GitHub drops a summary of more than 1 MiB as a whole, so that no more advice is written out than a reader would read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from dptune.advice import Advice, Report
from dptune.check.result import Gate
from dptune.present.sections.advice import savings
from dptune.present.sections.gate import budget_value, opening
from dptune.present.text import first_screen
from dptune.present.visible import visible

MOST_SCREENS = 4
MOST = 50  # pieces of advice, runs, findings
_MOST_CHARACTERS = 500  # of a cell: a title or a name out of a trace may be as long as someone likes
# What Markdown or HTML would take for its own; addresses and names are not to become links or mentions either.
# Parentheses and the like are theirs only beside one of these, and colons where they make an address or a picture.
_SIGNS = re.compile(r"([\\`*_{}\[\]#|~<>&@]|:(?=//|[\w+-]+:))")
# What GitHub takes for a mention, an issue or an address once Markdown is gone.
_LINKING = re.compile(r"(@|#(?=\d)|\bwww)")


def text(gate: Gate, reports: Sequence[tuple[Report, bool]] = ()) -> str:
    """The whole of it, ending with a line break; with the first screen of each report, and whether its first fix can be
    made as a patch.
    """
    screens = [row for report, patches in reports[:MOST_SCREENS] for row in _screen(report, patches)]
    return "\n".join([*_rows(gate), *screens]) + "\n"


def _screen(report: Report, patches: bool) -> Iterator[str]:
    """The first screen as a block of code, whose fence is longer than any row of backquotes in it."""
    shown = first_screen(report, patches=patches)
    fence = "`" * max([3, *(len(row) + 1 for row in re.findall("`+", shown))])
    yield from ("", f"{fence}text", shown.rstrip("\n"), fence)


def _rows(gate: Gate) -> Iterator[str]:
    yield f"## dptune: {_plain(opening(gate))}"
    yield ""
    yield from _capped([f"run: {_plain(run)}" for run in gate.runs])
    yield from _capped([f"baseline: {_plain(run)}" for run in gate.baseline])
    yield from _capped(
        [f"{finding.level}: {_plain(finding.text)}" for finding in gate.trust.findings if finding.level != "info"]
    )
    if gate.tripped:
        yield from ("", "| impact | confidence | rule | what | saves | where |", "|---|---|---|---|---|---|")
        yield from (_advice(advice, gate) for advice in gate.tripped[:MOST])
        if len(gate.tripped) > MOST:
            yield from ("", f"and {len(gate.tripped) - MOST} more")
    if gate.budgets:
        yield from ("", "| budget | now | at most | kept |", "|---|---:|---:|---|")
        for budget in gate.budgets:
            kept = "not checked" if budget.value is None else "yes" if budget.kept else "**no**"
            name = f"{_plain(budget.name)}, {_plain(budget.what)}"
            yield f"| {name} | {budget_value(budget)} | {budget.limit:g} | {kept} |"
    if gate.regression is not None:
        yield from ("", f"Against the baseline: **{gate.regression.outcome}**. {_plain(gate.regression.text)}")
    if gate.outcome != "passed" and gate.reservations:
        yield ""
        yield from (f"- but: {_plain(reservation)}" for reservation in gate.reservations)
    if gate.passed_over:
        yield ""
        passed_over = [(over.why, over.advice) for over in gate.passed_over]
        yield from _capped(
            [f"not counted ({why}): {_plain(advice.rule)} {_plain(advice.title)}" for why, advice in passed_over]
        )


def _capped(points: Sequence[str]) -> Iterator[str]:
    yield from (f"- {point}" for point in points[:MOST])
    if len(points) > MOST:
        yield f"- and {len(points) - MOST} more"


def _advice(advice: Advice, gate: Gate) -> str:
    at = next((str(change.at) for change in advice.changes if change.at), "")
    words = savings(advice, gate.verified, gate.step_ns)
    saves = "<br>".join(_plain(sentence.removeprefix("Saves ").removeprefix("Saving: ")) for sentence in words)
    rule = f"{_plain(advice.rule)} {_plain(advice.slug)}"
    return f"| {advice.impact} | {advice.confidence} | {rule} | {_plain(advice.title)} | {saves} | {_plain(at)} |"


def _plain(words: str) -> str:
    """Words that read as they are, in one line."""
    shown = visible(words)
    if len(shown) > _MOST_CHARACTERS:
        shown = shown[: _MOST_CHARACTERS - 3] + "..."
    return _LINKING.sub(r"\1<!-- -->", _SIGNS.sub(r"\\\1", shown))
