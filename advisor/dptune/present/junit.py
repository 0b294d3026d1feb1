"""The outcome of `dptune check` as JUnit XML: a test case for each rule, each budget, and the baseline.

Written as the readers of CI systems take it: `failure` and `skipped` with a message, `file` and `line` of a case.
"""

from __future__ import annotations

from xml.etree import ElementTree

from dptune.advice import Advice
from dptune.judged import Gate
from dptune.present.advice import saving
from dptune.present.gate import budget_in_words, opening
from dptune.present.visible import visible


def text(gate: Gate) -> str:
    """The document, in ASCII."""
    suite = ElementTree.Element("testsuite", name="dptune")
    if gate.outcome == "unjudgeable":
        _failure(_case(suite, "run", "can be judged"), opening(gate), "\n".join(f.text for f in gate.trust.findings))
    for one in gate.tripped:
        _failure(_case(suite, "rules", f"{one.rule} {one.slug}", one), one.title, _told(one, gate))
    for over in gate.passed_over:
        case = _case(suite, "rules", f"{over.advice.rule} {over.advice.slug}", over.advice)
        ElementTree.SubElement(case, "skipped", message=visible(f"{over.why}: {over.advice.title}"))
    for rule in gate.quiet:
        _case(suite, "rules", rule)
    for missed in gate.skipped:
        case = _case(suite, "rules", missed.rule)
        ElementTree.SubElement(case, "skipped", message=visible(missed.reason))
    for budget in gate.budgets:
        case = _case(suite, "budgets", budget.name)
        if not budget.kept:
            _failure(case, budget_in_words(budget))
    if gate.regression is not None:
        case = _case(suite, "baseline", gate.regression.objective)
        if gate.regression.outcome == "failed":
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


def _case(suite: ElementTree.Element, of: str, name: str, advice: Advice | None = None) -> ElementTree.Element:
    at = next((change.at for change in advice.changes if change.at), None) if advice else None
    where = {"file": visible(at.file), "line": str(at.line)} if at else {}
    return ElementTree.SubElement(suite, "testcase", {"classname": f"dptune.{of}", "name": visible(name), **where})


def _failure(case: ElementTree.Element, message: str, body: str = "") -> None:
    made = ElementTree.SubElement(case, "failure", message=visible(message))
    made.text = "\n".join(visible(row) for row in body.splitlines()) or visible(message)


def _told(one: Advice, gate: Gate) -> str:
    lines = [one.title, one.why]
    if one.saves:
        lines.append(f"Saves {saving(one.saves, gate.step_ns)}.")
    lines += [f"{change.paste}" + (f"  ({change.at})" if change.at else "") for change in one.changes]
    return "\n".join(lines)
