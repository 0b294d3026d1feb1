"""Rules that could not run, rules that had nothing to say, and what to type next."""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Report
from dptune.present.lines import Line, heading, labelled, wrapped

_UNJUDGED = "the run cannot be judged"


def skipped(report: Report, width: int) -> Iterator[Line]:
    """Rules by the reason they could not run for, and those that ran and were quiet."""
    reasons: dict[str, list[str]] = {}
    needing = [skip.rule for skip in report.skipped if skip.needs]
    for skip in report.skipped:
        if skip.needs:
            continue
        reason = _UNJUDGED if skip.reason.startswith(_UNJUDGED) else skip.reason  # the headline says why
        reasons.setdefault(reason, []).append(skip.rule)
    if reasons:
        yield from heading("Skipped rules (missing data, or superseded)", width)
    for reason, rules in reasons.items():
        yield from wrapped(f"{', '.join(rules)}: {reason}", width, "  ", "    ")
    if needing:
        yield from heading(f"Rules that need a recording ({len(needing)}): dptune profile train.py", width)
        yield from wrapped(", ".join(needing), width, "  ")
    if report.quiet and report.trust.level != "unjudgeable":
        yield from heading("Rules with no findings", width)
        yield from wrapped(", ".join(sorted(report.quiet)), width, "  ")


def next_command(report: Report, width: int) -> Iterator[Line]:
    """The one command to type next."""
    yield from heading("Next command", width)
    if report.advice:
        first = report.advice[0]
        words = "what the first recommendation means, and when not to follow it"
        command = f"dptune rules explain {first.rule}"
        if first.verify:
            command, words = first.verify, "verifies the first recommendation by running it"
    elif report.run.command is None:
        command, words = (
            "dptune profile train.py",
            "records what these traces lack: untraced step times",
        )
    elif report.trust.level == "unjudgeable":
        command = f"dptune profile {report.run.command.removeprefix('python ')}"
        words = "records the run again; add the options for its ranks, as before"
    else:
        command, words = "dptune rules list", "lists all rules"
    yield from labelled("$", command, width, column=2, indent="  ", role="code")
    yield from wrapped(words, width, "    ", role="dim")
