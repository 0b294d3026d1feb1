"""The outcome of `dptune check` as JUnit XML: a test case for each rule, each budget, and the baseline.

Written as the readers of CI systems take it: `failure` and `skipped` with a message, `file` and `line` of a case.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree import ElementTree

from dptune.advice import Advice
from dptune.check.result import Gate
from dptune.present.sections.advice import savings
from dptune.present.sections.gate import budget_in_words, opening
from dptune.present.visible import visible

_COMMAND = re.compile(r"^(\s*)::")  # what a log of GitHub Actions takes for a command


def text(gate: Gate) -> str:
    """The document, in ASCII."""
    suite = ElementTree.Element("testsuite", name="dptune")
    if gate.outcome == "unjudgeable":
        _failure(_case(suite, "run", "can be judged"), opening(gate), [f.text for f in gate.trust.findings])
    for rule, tripped in _by_rule(gate.tripped).items():
        rows = [row for advice in tripped for row in (*_rows(advice, gate), "")]
        _failure(_case(suite, "rules", rule, tripped[0]), "; ".join(advice.title for advice in tripped), rows[:-1])
    named = {advice.rule for advice in gate.tripped}
    for rule, over in _by_rule([passed.advice for passed in gate.passed_over]).items():
        if rule not in named:
            why = "; ".join(
                f"{passed.why}: {passed.advice.title}" for passed in gate.passed_over if passed.advice.rule == rule
            )
            ElementTree.SubElement(_case(suite, "rules", rule, over[0]), "skipped", message=visible(why))
    named |= {passed.advice.rule for passed in gate.passed_over} | {*gate.below, *gate.quiet}
    for rule in [*gate.below, *gate.quiet]:
        _case(suite, "rules", rule)
    for missed in gate.skipped:
        if missed.rule not in named:
            case = _case(suite, "rules", missed.rule)
            ElementTree.SubElement(case, "skipped", message=visible(missed.reason))
    for budget in gate.budgets:
        case = _case(suite, "budgets", budget.name)
        if not budget.kept:
            _failure(case, budget_in_words(budget))
    if gate.regression is not None:
        case = _case(suite, "baseline", gate.regression.objective)
        if gate.baseline_fails or gate.regression.outcome == "unjudgeable":
            _failure(case, gate.regression.text)
        elif gate.regression.outcome == "inconclusive":
            ElementTree.SubElement(case, "skipped", message=visible(f"inconclusive: {gate.regression.text}"))
    cases = suite.findall("testcase")
    counts = {"failures": "failure", "skipped": "skipped"}
    suite.set("tests", str(len(cases)))
    for name, tag in counts.items():
        suite.set(name, str(sum(case.find(tag) is not None for case in cases)))
    whole = ElementTree.Element("testsuites", {name: suite.get(name, "") for name in ("tests", *counts)})
    whole.append(suite)
    ElementTree.indent(whole)
    written: bytes = ElementTree.tostring(whole, encoding="us-ascii")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{written.decode()}\n'


def _by_rule(found: list[Advice]) -> dict[str, list[Advice]]:
    """A case has one name however it ends, so that a CI system knows it again."""
    of: dict[str, list[Advice]] = {}
    for advice in found:
        of.setdefault(advice.rule, []).append(advice)
    return of


def _case(suite: ElementTree.Element, of: str, name: str, advice: Advice | None = None) -> ElementTree.Element:
    at = next((change.at for change in advice.changes if change.at), None) if advice else None
    where = {"file": visible(at.file), "line": str(at.line)} if at else {}
    return ElementTree.SubElement(suite, "testcase", {"classname": f"dptune.{of}", "name": visible(name), **where})


def _failure(case: ElementTree.Element, message: str, body: Sequence[str] = ()) -> None:
    """A failure with rows; each stays one row, and none is taken for a command by the log of a CI job."""
    made = ElementTree.SubElement(case, "failure", message=visible(message))
    made.text = "\n".join(_COMMAND.sub(r"\1: :", visible(row)) for row in body or [message])


def _rows(advice: Advice, gate: Gate) -> list[str]:
    rows = [advice.title, advice.why]
    rows += [f"{words}." for words in savings(advice, gate.verified, gate.step_ns)]
    for change in advice.changes:
        *before, last = change.paste.split("\n")
        rows += [*before, f"{last}  ({change.at})" if change.at else last]
    return rows
