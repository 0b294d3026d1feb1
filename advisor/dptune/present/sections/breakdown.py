"""Where the time of a step goes, as a bar and as a table."""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Report
from dptune.measured import Account, Measured, Missing
from dptune.present.amounts import Hole, milliseconds, ns_as_ms, percent, several, shown, step_milliseconds
from dptune.present.lines import Line, Span, heading, wrapped
from dptune.present.step_classes import CLASSES, Class, cells, part_of

_NARROWEST = 46  # below it a row is a sentence
_NARROW = 70  # below it the words stand under each row


_LEAST_SHARE = 0.0005  # a row of less would read 0.0 %
_ALWAYS = ("compute_ns", "input_idle_ns", "unexplained_idle_ns")  # shown even where there is none of it


def basis(measured: Measured) -> str:
    """What the milliseconds of this report are."""
    if measured.step.basis == "untraced" and not _on_cpu(measured):
        return (
            "Compute, transfers and copies: traced ms; idle and waiting: the rest of the untraced step time (the "
            "profiler slows the host, not the device)"
        )
    if measured.step.basis == "untraced":
        return "ms = share of traced steps x untraced step time (the profiler inflates traced times)"
    return "ms are traced and include profiler overhead (no untraced steps were timed): trust shares more than ms"


def _on_cpu(measured: Measured) -> bool:
    return measured.known("device_kind") in ("cpu", None)


def account(report: Report, width: int) -> Iterator[Line]:
    """The account of a step: every moment counted once, so that the rows add up to the step."""
    measured = report.measured
    label = "traced"
    if measured.step.basis == "untraced":
        label = "scaled" if _on_cpu(measured) else "untraced"
    try:
        shares = [(kind, measured.step_share(kind.field)) for kind in CLASSES]
    except Missing as missing:
        yield from _without_steps(measured, missing.reason, width)
        return
    yield from heading(f"Step time breakdown ({label})", width)
    yield from _bar(shares, width)
    for kind, share in shares:
        if share >= _LEAST_SHARE or kind.field in _ALWAYS:
            yield from _row(measured, kind, share, step_milliseconds(measured, share), width)
    step = shown(lambda: measured.step.time_ns, lambda ns: milliseconds(ns / 1e6))
    average = measured.step.average
    yield from wrapped(
        f"The {average} step takes {step}." if isinstance(step, str) else f"Step time {step}",
        width,
        "  ",
        role="strong",
    )
    if measured.step.slow_share:
        mean = milliseconds(measured.step.untraced_mean_ns / 1e6)
        yield from wrapped(
            f"Slow steps are excluded from these rows: with them the mean step takes {mean}.", width, "  "
        )
    stepped = sum(any(device.steps for device in rank.devices) for rank in measured.ranks)
    if stepped > 1:
        yield from wrapped(f"The rows are the mean over {stepped:,} ranks.", width, "  ", role="dim")
    yield from wrapped(_hidden(measured.step_account, "step"), width, "  ")
    yield from wrapped(f"{basis(measured)}.", width, "  ", role="dim")


def _without_steps(measured: Measured, reason: str, width: int) -> Iterator[Line]:
    """The account of the whole recording; else why there is none."""
    wholes = [device.whole for rank in measured.ranks for device in rank.devices if device.whole.window_ns]
    if not wholes:
        yield from heading("Step time breakdown", width)
        yield from wrapped(str(Hole(reason)), width, "  ")
        return
    whole = sum(wholes[1:], wholes[0])
    mean_ns = whole.window_ns / len(wholes)
    yield from heading("Time breakdown of the whole recording (traced): no steps were found", width)
    shares = [(kind, whole.share(kind.field)) for kind in CLASSES]
    yield from _bar(shares, width)
    for kind, share in shares:
        if share >= _LEAST_SHARE:
            yield from _row(measured, kind, share, milliseconds(share * mean_ns / 1e6), width)
    mean = f", the mean of {several(len(wholes), 'device')}" if len(wholes) > 1 else ""
    words = f"From the start of the first device operation to the end of the last: {ns_as_ms(mean_ns)} ms{mean}."
    yield from wrapped(words, width, "  ", role="strong")
    yield from wrapped(_hidden(whole, "recording"), width, "  ")


def _bar(shares: list[tuple[Class, float]], width: int) -> Iterator[Line]:
    """The step as one bar."""
    yield (Span("  "), *cells(((part_of(kind.field), share) for kind, share in shares), max(width - 4, 10)))


def _row(measured: Measured, kind: Class, share: float, time: str | Hole, width: int) -> Iterator[Line]:
    part = part_of(kind.field)
    time = time if isinstance(time, str) else ""  # why it is missing stands below the rows
    if width < _NARROWEST:
        yield from wrapped(f"{part.block} {kind.name} {time} {percent(share)}", width, "  ", "    ", part.role)
        return
    words = kind.words
    shown_share = percent(share)
    if kind.field == "input_idle_ns" and not share and measured.input.known("wait_share") is None:
        time, shown_share, words = "?", "?", "unknown: no DataLoader traced"
    figures = f"{kind.name:<21}  {time:>8}  {shown_share:>7}"
    start = (Span(f"  {part.block}", part.role), Span(f" {figures}"))
    margin = len(figures) + 6
    if width < _NARROW:
        yield start
        if share:
            yield from wrapped(words, width, "      ", role="dim")
        return
    lines = list(wrapped(words, width, " " * margin, role="dim"))
    yield (*start, Span(lines[0][0].text[margin - 2 :], "dim"))
    yield from lines[1:]


def _hidden(account: Account, of: str) -> str:
    if not account.communication_ns:
        return f"No communication was seen inside the {of}{'s' if of == 'step' else ''}."
    share = account.share("hidden_communication_ns")
    return (
        f"Hidden (overlapped) communication is not in these rows: {percent(share)} of the {of}; "
        f"{percent(account.overlap_share)} of all communication is hidden."
    )
