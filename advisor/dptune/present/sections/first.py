"""The first screen as lines: for a terminal, a file, and the overview of the full-screen report."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import PurePath

from dptune.advice import Report
from dptune.present.columns import both_ends
from dptune.present.first_screen import EXPLAIN, Bar, FirstScreen, Fix, first_screen, sentences_of, verdict_role
from dptune.present.lines import BLANK, LONGEST_SENTENCE, Line, Role, Span, command_line, line, wrapped
from dptune.present.sections import kernels
from dptune.present.step_classes import PARTS, cells
from dptune.present.table import Column, table
from dptune.present.visible import visible

_WIDEST_BAR = 60
_LONGEST_NAME = 14
_LONGEST_WHERE = 20
_LEAST_NAME = 12  # of the script or folder that was read
MOST_LINES, _USUAL = 24, 80  # lines and columns that the screen fits
_NARROW = _USUAL - 10  # columns: with fewer, lines are folded rather than cut; frames of a full screen take some of 80
_MOST_KERNELS = 5
_LEAST_PARTS = 3  # of what ran: script, ranks, devices
_MOST_SENTENCE, _MOST_CAUSE = 2, 3  # lines at 80 columns
_NAMES = (48, 36, 24)  # columns of names in a sentence that does not fit
_NAME = re.compile(r"`([^`]+)`")
_NO_CODE = re.compile(r"`(?!dptune |python |torchrun )([^`()=]+)`")  # of a text that may hold code and commands
_MOST_NEXT, _MOST_UNSEEN = 2, 2  # one more where there is room
_KEYS = {"--section outliers": "key 3", "`dptune report --section skipped`": "Key 2"}
_COLUMNS = (
    Column("#"),
    Column("FIX", right=False, least=20),
    Column("WHERE", right=False),
    Column("SAVES", right=False),
    Column("CONFIDENCE", right=False),
    Column("RESULTS", right=False),
)


def first(report: Report, width: int, keys: bool = False, patches: bool = True) -> Iterator[Line]:
    """The first screen.

    `keys`: whether keys of the full-screen report lead to the rest, rather than options; `patches`: whether the script
    can be read here, for a diff of it.
    """
    screen = first_screen(report, patches=patches)
    above = [
        *_run(screen, width),
        *([] if keys else [line("─" * width, "dim")]),  # lines of a small full screen are few
        *_verdict(screen, width, keys),
        *_sentences(screen, width, keys),
        *_bars(screen, width),
        *_fixes(screen, width, keys),
        *_kernels(report, width),
        BLANK,
    ]
    above += _next(_with_keys(screen) if keys else screen, width, MOST_LINES - len(above) - 1)
    yield from above
    room = MOST_LINES - len(above) - 1
    for number, text in enumerate(reversed(screen.unseen)):  # what was not checked matters more than how times are had
        further = _MOST_UNSEEN * (len(screen.unseen) - number - 1)
        most = _MOST_UNSEEN + (room - further > _MOST_UNSEEN)
        if width >= _USUAL:
            most = max(1, min(most, room))
        rows = list(_short(_whole_clauses(text, width - 10, most), width - 10, most, "", role="dim"))
        if number and len(rows) > room and width >= _USUAL:
            break
        room -= len(rows)
        yield from _labelled("" if number else "Limits", rows)
    if not keys:
        more = "--full: everything; --section NAME: one part (--help lists them)"
        yield from _labelled("More", [*wrapped(more, width - 10, role="dim")])


def _run(screen: FirstScreen, width: int) -> Iterator[Line]:
    """What ran, on one line of a usual page: without the last parts, and with a shorter name, where they do not fit."""
    parts, between = [visible(part) for part in screen.run], " · "
    while len(parts) > _LEAST_PARTS and width >= _NARROW and len(between.join(parts)) >= width:
        del parts[-1]
    excess = len(between.join(parts)) + 1 - width
    if excess > 0 and width >= _NARROW:
        parts[0] = _ending(parts[0], max(_LEAST_NAME, len(parts[0]) - excess))
    yield from wrapped(between.join(parts), width, " ", role="dim")


def _verdict(screen: FirstScreen, width: int, keys: bool) -> Iterator[Line]:
    """The label and the rates; on a narrow full screen without the step time, which its title shows."""
    role = verdict_role(screen.label)
    rates = "   ".join(screen.rates)
    label = visible(screen.label.upper())
    if keys and len(label) + len(rates) + 5 > width:
        rates = "   ".join(screen.rates[1:])
    if len(label) + len(rates) + 5 > width:
        yield from wrapped(label, width, " ", role=role)
        yield from wrapped(rates, width, " ", role="strong")
    else:
        yield Span(f" {label}", role), Span(f"    {visible(rates)}".rstrip(), "strong")


def _short(text: str, width: int, most: int, indent: str, role: Role = "plain") -> Iterator[Line]:
    """The text folded, cut after `most` lines; after twice as many on a narrow page."""
    yield from wrapped(text, width, indent, role=role, most=most if width >= _NARROW else 2 * most)


def _whole_clauses(text: str, width: int, most: int) -> str:
    """As many clauses as fit the lines, so that none is cut: up to a semicolon, else to a colon that ends more than a
    label; the text where not even the first fits.
    """
    lines = most if width >= _NARROW else 2 * most
    ends = [("; ", at) for at in range(len(text), 0, -1)] + [(": ", at) for at in range(len(text), width // 2, -1)]
    kept = (text, *(text[:at] for mark, at in ends if text.startswith(mark, at)))
    return next((words for words in kept if len(list(wrapped(words, width))) <= lines), text)


def _sentences(screen: FirstScreen, width: int, keys: bool) -> Iterator[Line]:
    """The verdict, and below it as many whole sentences on its cause as fit."""
    verdict, *cause = (_led(text, keys) for text in screen.sentences)
    yield from _short(verdict, width, _MOST_SENTENCE, " ")
    yield from _fitting(cause, width, _MOST_CAUSE, " ", _NAME)


def _with_keys(screen: FirstScreen) -> FirstScreen:
    """The screen with keys in place of options, without the command that the key of a recommendation answers."""
    commands = tuple(command for command in screen.commands if command[0] != EXPLAIN)
    return replace(screen, next=_led(screen.next, keys=True), commands=commands)


def _led(text: str, keys: bool) -> str:
    """The text with keys in place of the options that show the same outside of the full screen."""
    for option, key in _KEYS.items() if keys else ():
        text = text.replace(option, key)
    return text


def _fitting(sentences: Sequence[str], width: int, most: int, indent: str, names: re.Pattern[str]) -> Iterator[Line]:
    """As many whole sentences as fit `most` lines; names are shortened, then the first is cut, to fit.
    Twice as many lines on a narrow page.
    """
    lines = most if width >= _NARROW else 2 * most
    texts = [" ".join(sentences[:count]) for count in range(1, len(sentences) + 1)]
    whole = [text for text in texts if len(list(wrapped(text, width, indent))) <= lines]
    for longest in () if whole else _NAMES:
        texts = [_with_short_names(text, longest, names) for text in texts]
        whole = whole or [text for text in texts if len(list(wrapped(text, width, indent))) <= lines]
    yield from _short(whole[-1] if whole else next(iter(texts), ""), width, most, indent)


def _with_short_names(text: str, longest: int, names: re.Pattern[str]) -> str:
    """The text with both ends of each quoted name that is longer."""
    return names.sub(lambda name: f"`{both_ends(visible(name[1]), longest)}`", text)


def _bars(screen: FirstScreen, width: int) -> Iterator[Line]:
    if not screen.bars:
        return
    yield BLANK
    names = [_name(bar) for bar in screen.bars]
    mean = "mean" if len(names) > 1 else ""  # over ranks, of which there is then more than one bar
    column = max(map(len, (*names, mean))) if mean or screen.bars[0].ranks != (0,) else 0
    widest = width // 2 if width > LONGEST_SENTENCE else _WIDEST_BAR
    room = max(10, min(widest, width - column - 4 - max(len(_odd(bar)) for bar in screen.bars)))
    for bar, name in zip(screen.bars, names, strict=True):
        mark = "▶" if bar.marked else " "
        lead = f" {name:<{column}}{mark} " if column else " "
        drawn = cells(zip(PARTS, bar.shares, strict=True), room)
        yield Span(lead, "error" if bar.marked else "plain"), *drawn, Span(f" {_odd(bar)}")
    legend: list[Span] = [Span(f" {mean:<{column}}  " if column else " ", "dim")]
    used = len(legend[0].text)
    for part, share in screen.mean_shares():
        text = f" {part.name} {100 * share:.0f} %  " if share >= 0.01 else f" {part.name} <1 %  "
        if used + len(text) > width:
            yield tuple(legend)
            legend = [Span(" " * (column + 3 if column else 1))]
            used = len(legend[0].text)
        legend += [Span(part.block, part.role), Span(text, "dim")]
        used += len(text) + 1
    yield tuple(legend)


def _name(bar: Bar) -> str:
    return bar.name if len(bar.name) <= _LONGEST_NAME else f"{len(bar.ranks):,} ranks"


def _odd(bar: Bar) -> str:
    return f"{bar.odd.name} {100 * bar.shares[PARTS.index(bar.odd)]:.0f} %"


def _fixes(screen: FirstScreen, width: int, keys: bool) -> Iterator[Line]:
    if not screen.fixes:
        return
    yield BLANK
    placed = any(fix.where for fix in screen.fixes)
    rows = [_cell_texts(number, fix, placed) for number, fix in enumerate(screen.fixes, 1)]
    yield from table([column for column in _COLUMNS if placed or column.heading != "WHERE"], rows, width, " ")
    if screen.more_fixes:
        yield line(f"   and {screen.more_fixes} more: {'key 2' if keys else '--section advice'}", "dim")
    if screen.together:
        yield from _short(screen.together, width, 1, "   ")


def _kernels(report: Report, width: int) -> Iterator[Line]:
    """Of a recording without steps, or with too few for a verdict: the kernels with the most time."""
    found = report.measured.known("kernels")
    few = any(finding.code == "steps-few" for finding in report.trust.findings)
    if (few or report.measured.tables_of == "recording") and found is not None and found.top:
        yield BLANK
        columns = kernels.columns(report.measured, found)
        kept = [at for at, column in enumerate(columns) if column.heading != "kind" or found.known("kinds_ns")]
        rows = [kernels.row(kernel) for kernel in found.top[:_MOST_KERNELS]]
        yield from table([columns[at] for at in kept], [[row[at] for at in kept] for row in rows], width, " ")


def _cell_texts(number: int, fix: Fix, placed: bool) -> list[str]:
    where = [_ending(fix.where, _LONGEST_WHERE)] if placed else []
    return [str(number), f"{fix.rule} {fix.slug}", *where, fix.saves, fix.confidence, fix.results]


def _ending(text: str, most: int) -> str:
    """The end of a name, which tells more than its begin: a line number, a file."""
    return text if len(text) <= most else f"..{text[2 - most :]}"


def _next(screen: FirstScreen, width: int, room: int) -> list[Line]:
    """What to do next: a line more where all limits fit beside it, or where its first sentence would be cut."""
    first, *_ = sentences_of(screen.next)
    limits = len(screen.unseen)
    if len(list(wrapped(first, width - 10))) > _MOST_NEXT:
        limits = min(1, limits)
    longer = list(_commands(screen, width, _MOST_NEXT + 1))
    fits = len(longer) + _MOST_UNSEEN * limits <= room
    return longer if fits else list(_commands(screen, width, _MOST_NEXT))


def _commands(screen: FirstScreen, width: int, most: int) -> Iterator[Line]:
    """What to do next, in at most that many lines, and the commands for it."""
    if screen.next:
        text = screen.next
        if screen.path and len(list(wrapped(text, width - 10))) > most:
            text = text.replace(screen.path, _short_path(screen.path))
        yield from _labelled("Next", [*_fitting(sentences_of(text), width - 10, most, "", _NO_CODE)])
    for label, command in screen.commands:
        yield from command_line(label, command, width)


def _short_path(path: str) -> str:
    """A quoted path with its last part alone, `.../trace.json`: a command with it is not cut."""
    shorter = shlex.quote(f".../{PurePath(*shlex.split(path)).name}")
    return shorter if len(shorter) < len(path) else path


def _labelled(label: str, rows: list[Line]) -> Iterator[Line]:
    for number, row in enumerate(rows):
        yield (Span(f" {label if number == 0 else '':<9}", "dim"), *row)
