"""Rules that could not run by what they lack, rules without findings, and what to type next."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from dptune.advice import Report, Skipped
from dptune.advise.trust import NO_VERDICT
from dptune.present.amounts import several
from dptune.present.lines import Line, heading, labelled, wrapped

_INFERENCE = "this looks like inference"
_FEW = 3  # rules, which are named first and not counted
_RECORDING = "a recording by `dptune profile train.py`"
_RANGE = 3  # codes that follow one another, from which on they are a range


def skipped(report: Report, width: int) -> Iterator[Line]:
    """Rules by what they lack, what most rules lack first; then those without findings."""
    lacking: dict[str, list[str]] = {}
    for skip in report.skipped:
        lacking.setdefault(_lack(skip), []).append(skip.rule)
    if lacking:
        yield from heading("Skipped rules (missing data, or superseded)", width)
    for lack, rules in sorted(lacking.items(), key=lambda item: -len(item[1])):
        yield from wrapped(_without(lack, rules), width, "  ", "    ")
    if report.quiet:
        verdict = ", no verdict on this run" if report.trust.level == "unjudgeable" else ""
        yield from heading(f"Rules with no findings ({len(report.quiet)}{verdict})", width)
        yield from wrapped(folded(report.quiet), width, "  ")


def _without(lack: str, rules: Sequence[str]) -> str:
    """That these rules lack something: their codes, counted where there are many."""
    few = len(rules) <= _FEW
    if lack == _RECORDING:
        needing = f"{folded(rules)} need{'s' if len(rules) == 1 else ''}" if few else f"{len(rules)} rules need"
        return f"{needing} {lack}{'' if few else f': {folded(rules)}'}"
    return f"{folded(rules)}: {lack}" if few else f"{several(len(rules), 'rule')}: {lack} ({folded(rules)})"


def _lack(skip: Skipped) -> str:
    """What the rule lacks; of a run without a verdict in short, since the headline has the reason."""
    if skip.needs_recording:
        return _RECORDING
    return NO_VERDICT if skip.reason.startswith(NO_VERDICT) else skip.reason


def folded(codes: Iterable[str]) -> str:
    """Codes in order, three or more that follow one another as a range: `DP101-106, DP114`."""
    runs: list[list[str]] = []
    for code in sorted(codes):
        if runs and code == _following(runs[-1][-1]):
            runs[-1].append(code)
        else:
            runs.append([code])
    return ", ".join(f"{run[0]}-{_number(run[-1])}" if len(run) >= _RANGE else ", ".join(run) for run in runs)


def _following(code: str) -> str:
    number = _number(code)
    return f"{code.removesuffix(number)}{int(number or 0) + 1:0{len(number)}}"


def _number(code: str) -> str:
    return code[len(code.rstrip("0123456789")) :]


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
        if _INFERENCE in report.headline.why or _INFERENCE in report.headline.next.lower():
            yield from wrapped("None: `dptune profile` records training, and this looks like inference.", width, "  ")
            return
        command, words = "dptune profile train.py", "records what these traces lack: untraced step times"
        if report.measured.known("steps") is None:
            words = "records what these traces lack: steps; or call `profiler.step()` after each step"
    elif report.trust.level == "unjudgeable":
        command = f"dptune profile {report.run.command.removeprefix('python ')}"
        words = "records the run again"
    else:
        command, words = "dptune rules list", "lists all rules"
    yield from labelled("$", command, width, column=2, indent="  ", role="code")
    yield from wrapped(words, width, "    ", role="dim")
