"""Where the difference of a step lies: the account of A's step against that of B's, in nanoseconds that add up."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from statistics import median

from dptune.compared import Basis, CategoryDifference
from dptune.measure.comparing.sides import ReadRun, Sides
from dptune.measured import CLASSES, Account, Missing

_EXPOSED = ("exposed_transfer_ns", "exposed_waiting_ns", "exposed_unsplit_ns")
_EXPOSED_CLASS = "exposed_communication_ns"
_NO_DIFFERENCE = "the steps take the same time"


def categories(sides: Sides, basis: Basis) -> tuple[list[CategoryDifference] | None, str]:
    """The account of the side's step time; waiting and transfer apart only where every run tells them apart."""
    try:
        a, b = (_parts(runs, basis) for runs in (sides.a, sides.b))
    except Missing as missing:
        return None, missing.reason
    names = list(CLASSES)
    if a["exposed_unsplit_ns"] or b["exposed_unsplit_ns"]:
        for parts in (a, b):
            parts[_EXPOSED_CLASS] = sum(parts.pop(name) for name in _EXPOSED)
        names[names.index(_EXPOSED[0]) : names.index(_EXPOSED[-1]) + 1] = [_EXPOSED_CLASS]
    whole = sum(b.values()) - sum(a.values())
    return [_category(name, a[name], b[name], whole) for name in names], ""


def apportioned(accounts: Sequence[Account], step_ns: int) -> dict[str, int]:
    """Class -> nanoseconds of a step of that length, by the mean of its shares over the accounts; they sum to it.

    Rounded as running totals, so that no nanosecond is lost and a class that takes no time stays at 0.
    """
    begun, running, parts = 0, Fraction(0), {}
    for name in CLASSES:
        running += sum((Fraction(getattr(own, name), own.window_ns) for own in accounts), Fraction(0)) / len(accounts)
        end = round(running * step_ns)
        parts[name], begun = end - begun, end
    return parts


def _parts(runs: Sequence[ReadRun], basis: Basis) -> dict[str, int]:
    accounts = [run.measured.account for run in runs]
    if not all(account.window_ns for account in accounts):
        raise Missing("the steps hold no time")
    return apportioned(accounts, round(median(run.step_ns(basis) for run in runs)))


def _category(name: str, a_ns: int, b_ns: int, whole_ns: int) -> CategoryDifference:
    return CategoryDifference(
        category=name,
        a_ns=a_ns,
        b_ns=b_ns,
        difference_ns=b_ns - a_ns,
        share=(b_ns - a_ns) / whole_ns if whole_ns else None,
        missing={} if whole_ns else {"share": _NO_DIFFERENCE},
    )
