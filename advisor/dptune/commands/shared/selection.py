"""Which advice of a report is meant, by the codes or names of rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dptune.advise.packs import find_rule
from dptune.errors import UsageError

if TYPE_CHECKING:
    from dptune.advice import Advice, Report


def codes(names: Sequence[str]) -> list[str]:
    """The codes of rules, each named by code or name in any case; raises UsageError naming the nearest one."""
    return [find_rule(name).rule.code for name in names]


def advised(report: Report, rules: Sequence[str]) -> list[Advice]:
    """What the rules of these codes advise, all of them where none is given.

    Raises UsageError where one of them advises nothing, with the reason if it could not be asked.
    """
    given = dict.fromkeys(advice.rule for advice in report.advice)
    skipped = {skipped_rule.rule: skipped_rule.reason for skipped_rule in report.skipped}
    for code in rules:
        if code not in given:
            why = f": {skipped[code]}" if code in skipped else ""
            others = f"its recommendations: {', '.join(given)}" if given else "it has none: `dptune report` shows why"
            raise UsageError(f"the report has no recommendation {code}{why}", others)
    return [advice for advice in report.advice if not rules or advice.rule in rules]
