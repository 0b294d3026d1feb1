"""What `dptune tune` found, as one page: before and after, every race with its interval, the patch, what was left."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from dptune.advice import Verified
from dptune.present.amounts import ns_as_ms, percent, several
from dptune.present.html import charts
from dptune.present.html.document import document
from dptune.present.html.intervals import Interval, forest
from dptune.present.html.markup import WIDE, Section, key, labelled, note, paragraph, prose, text
from dptune.present.html.style import COLORS
from dptune.present.html.tables import table
from dptune.present.sections import tuning as pages
from dptune.present.table import Column
from dptune.present.visible import visible
from dptune.tune.result import NotTried, Tried, Tuning

_COLORS = {"kept": COLORS["compute"], "undecided": COLORS["loader"], "dropped": COLORS["idle"]}
_MEANINGS = {
    "kept": "kept",
    "undecided": "undecided: another change won the race, or the time was up",
    "dropped": "dropped",
}
_BADGES = {"faster": "good", "results differ": "error"}
_SETTINGS = Column("settings", right=False)
_BEFORE, _AFTER = COLORS["host"], COLORS["compute"]


def tuning_page(tuning: Tuning, diff: str) -> str:
    """The whole page. `diff` is the text of the patch; empty where there is none."""
    title = f"dptune tune: {pages.VERDICTS[tuning.outcome]}, {shlex.join(tuning.command)}"
    footer = (
        f"Made by dptune {tuning.dptune} on {tuning.machine}. The chance that any kept change has no effect is at most "
        f"{100 * tuning.level:g} %."
    )
    return document(title, _first(tuning), list(_sections(tuning, diff)), footer)


def _first(tuning: Tuning) -> Iterator[str]:
    """The verdict, the step before and after, and what to do."""
    yield '<section id="summary">'
    yield f'<p class="faint small">{text(shlex.join(tuning.command))} \N{MIDDLE DOT} {text(tuning.directory)}</p>'
    badge = _BADGES.get(tuning.outcome, "warning")
    yield f'<h1><span class="badge {badge}">{text(pages.VERDICTS[tuning.outcome])}</span></h1>'
    verdict, *rest = pages.summary(tuning, WIDE)
    yield f'<p class="verdict">{prose("".join(span.text for span in verdict[1:]))}</p>'
    if tuning.final is not None and tuning.final.ratio is not None:
        yield _before_and_after(tuning.final, tuning.final.ratio)
    yield from labelled(rest)
    yield "</section>"


def _before_and_after(final: Verified, ratio: float) -> str:
    """Time per sample of the script and with the kept changes, as bars of one scale."""
    longest = max(1.0, ratio)
    step = "" if final.before_ns is None else f", {ns_as_ms(final.before_ns)} ms per step"
    parts = (
        ("before", 1.0, _BEFORE, f"100 %{step}"),
        ("after", ratio, _AFTER, f"{percent(ratio)} of the {final.objective} before"),
    )
    rows = [
        (name, charts.bar([charts.Part(share / longest, color, words)]), words) for name, share, color, words in parts
    ]
    cells = (
        f'<div class="name">{name}</div><div>{picture}</div><div class="value">{text(words)}</div>'
        for name, picture, words in rows
    )
    return f'<div class="rows three">{"".join(cells)}</div>'


def _sections(tuning: Tuning, diff: str) -> Iterator[Section]:
    yield Section("tried", "Changes that were tried", "Tried", _tried(tuning))
    if diff:
        yield Section("patch", "Patch", "Patch", _patch(tuning, diff))
    if tuning.not_tried:
        yield Section("left", "Changes that were left out", "Left out", _left(tuning.not_tried))


def _tried(tuning: Tuning) -> str:
    if not tuning.tried:
        return paragraph("No change was raced.")
    parts = []
    if intervals := [_interval(tried, tried.gain_share) for tried in tuning.tried if tried.gain_share is not None]:
        used = {tried.result for tried in tuning.tried if tried.gain_share is not None}
        parts += [
            forest(intervals),
            key((_COLORS[result], words) for result, words in _MEANINGS.items() if result in used),
            note(
                "Time saved compared with the changes kept before: the 99.8 % interval, with a line at the measured "
                "value; the line alone where there were too few rounds for an interval."
            ),
        ]
    rows = [[tried.name, _settings(tried), *pages.tried_row(tried)[1:]] for tried in tuning.tried]
    parts.append(table((pages.TRIED[0], _SETTINGS, *pages.TRIED[1:]), rows, "Changes that were tried"))
    spent = f"Trials took {tuning.seconds / 60:.1f} of {tuning.time_limit_s / 60:g} min."
    parts.append(note(f"{pages.races(tuning)} {spent}"))
    return "".join(parts)


def _settings(tried: Tried) -> str:
    """What it sets, where its name does not say so."""
    words = pages.setting_words(tried.settings)
    return "" if words == tried.name else words


def _interval(tried: Tried, gain: float) -> Interval:
    low = gain if tried.high_ratio is None else 1 - tried.high_ratio
    high = gain if tried.low_ratio is None else 1 - tried.low_ratio
    on = f" on {' + '.join(tried.stack)}" if tried.stack else ""
    words = f"{tried.result}: {pages.measured(tried)}, {several(tried.rounds, 'round')}"
    return Interval(f"{tried.name}{on}", low, high, gain, _COLORS[tried.result], words)


def _patch(tuning: Tuning, diff: str) -> str:
    rows = "\n".join(_diff_row(visible(row)) for row in diff.splitlines())
    return f"{paragraph(several(len(tuning.patched), 'file'))}<pre>{rows}</pre>"


def _diff_row(row: str) -> str:
    tag = "ins" if row.startswith("+") else "del" if row.startswith("-") else ""
    return f"<{tag}>{text(row)}</{tag}>" if tag else text(row)


def _left(left: list[NotTried]) -> str:
    rows = "".join(f"<dt>{text(each.name)}</dt><dd>{prose(each.reason)}</dd>" for each in left)
    return f"<dl>{rows}</dl>"
