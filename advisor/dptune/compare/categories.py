"""Where the difference of a step lies: the account of A's step against that of B's, in nanoseconds that add up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from statistics import median_high, median_low

from dptune.compare.result import Basis, CategoryDifference
from dptune.compare.sides import ReadRun, Sides
from dptune.measured import CLASSES, Account, Missing

_EXPOSED = ("exposed_transfer_ns", "exposed_waiting_ns", "exposed_unsplit_ns")
_EXPOSED_CLASS = "exposed_communication_ns"
_INPUT = ("input_idle_ns", "host_idle_ns")
_INPUT_CLASS = "input_or_host_idle_ns"
_NO_DIFFERENCE = "the steps take the same time"


def categories(sides: Sides, basis: Basis) -> tuple[list[CategoryDifference] | None, str]:
    """The account of the side's step time; classes that not every run separates are one class."""
    try:
        a, b = (_parts(runs, basis) for runs in (sides.a, sides.b))
    except Missing as missing:
        return None, missing.reason
    names = list(CLASSES)
    for joined, classes, runs in ((_EXPOSED_CLASS, _EXPOSED, _unsplit(sides)), (_INPUT_CLASS, _INPUT, _unseen(sides))):
        if runs:
            for parts in (a, b):
                parts[joined] = sum(parts.pop(name) for name in classes)
            names[names.index(classes[0])] = joined
            names = [name for name in names if name not in classes]
    whole = sum(b.values()) - sum(a.values())
    return [_category(name, a[name], b[name], whole) for name in names], ""


def remarks(sides: Sides) -> Iterator[str]:
    """Why classes that some run separates are reported together."""
    unsplit = _unsplit(sides)
    if unsplit and any(_split_ns(run.measured.known("account")) for _, run in sides.runs):
        worst = max(unsplit, key=unsplit.__getitem__)
        percent = 100 * unsplit[worst]
        said = f"{percent:{'.0f' if percent >= 10 else '.2g'}} % of this time in {worst} cannot be split"
        yield f"exposed communication and waiting for ranks are shown together: {said}"
    unseen = _unseen(sides)
    if unseen:
        yield f"waiting for input and the host are shown together: no DataLoader was seen in {', '.join(unseen)}"


def _unsplit(sides: Sides) -> dict[str, float]:
    """Run -> share of its exposed communication that is neither known to be transfer nor waiting; those with any."""
    found = {}
    for side, run in sides.runs:
        account = run.measured.known("account")
        if account is not None and account.exposed_unsplit_ns:
            found[f"{run.name} ({side})"] = account.exposed_unsplit_ns / account.exposed_communication_ns
    return found


def _split_ns(account: Account | None) -> int:
    return account.exposed_transfer_ns + account.exposed_waiting_ns if account else 0


def _unseen(sides: Sides) -> list[str]:
    """Runs in which no DataLoader was seen, so that a wait for input is the host's time, where others have one."""
    unseen = [f"{run.name} ({side})" for side, run in sides.runs if not _loader_seen(run)]
    return unseen if len(unseen) < len(sides.runs) else []


def _loader_seen(run: ReadRun) -> bool:
    account = run.measured.known("account")
    waited = account is not None and account.input_idle_ns > 0
    return waited or run.measured.input.known("wait_share") is not None


def apportioned(steps: Sequence[tuple[Account, Fraction]]) -> dict[str, int]:
    """Class -> nanoseconds in steps of these lengths, each split by its account; they sum to the sum of the lengths.

    Rounded as running totals, so that no nanosecond is lost and a class that takes no time stays at 0.
    """
    begun, running, parts = 0, Fraction(0), {}
    for name in CLASSES:
        running += sum(
            (step_ns * getattr(account, name) / account.window_ns for account, step_ns in steps), Fraction(0)
        )
        end = round(running)
        parts[name], begun = end - begun, end
    return parts


def _parts(runs: Sequence[ReadRun], basis: Basis) -> dict[str, int]:
    """Class -> nanoseconds of the side's median step, by the accounts of the runs that take it.

    With an even number of runs those are the two in the middle, each with half of its step, so that a step and its
    parts are of the same runs. Of runs that take the same time each counts alike.
    """
    if not all(run.measured.account.window_ns for run in runs):
        raise Missing("the steps hold no time")
    times = [run.step_ns(basis) for run in runs]
    steps = []
    for middle_ns in (median_low(times), median_high(times)):
        taking = [run for run in runs if run.step_ns(basis) == middle_ns]
        steps += [(_account(run, basis), Fraction(middle_ns, 2 * len(taking))) for run in taking]
    return apportioned(steps)


def _account(run: ReadRun, basis: Basis) -> Account:
    """Of untraced steps as these are: see `Measured.step_account`."""
    return run.measured.step_account if basis == "untraced" else run.measured.account


def _category(name: str, a_ns: int, b_ns: int, whole_ns: int) -> CategoryDifference:
    return CategoryDifference(
        category=name,
        a_ns=a_ns,
        b_ns=b_ns,
        difference_ns=b_ns - a_ns,
        share=(b_ns - a_ns) / whole_ns if whole_ns else None,
        missing={} if whole_ns else {"share": _NO_DIFFERENCE},
    )
