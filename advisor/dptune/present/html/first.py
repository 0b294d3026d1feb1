"""The top of the page: the same first screen that a terminal shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dptune.present.first_screen import Bar, FirstScreen, verdict_role
from dptune.present.html import charts
from dptune.present.html.markup import key, note, paragraph, prose, text
from dptune.present.step_classes import PARTS

_HEADINGS = ("", "Fix", "Where", "Saves", "Confidence", "Results")
_LONGEST_NAME = 24
_OPTION, _LINK = "--section outliers", '<a href="#outliers">Outliers</a>'


def first(screen: FirstScreen, anchors: Sequence[str]) -> Iterator[str]:
    """What ran, the verdict, the bars, the fixes with links to their cards (`anchors`), the commands, the limits."""
    yield '<section id="summary">'
    run = " \N{MIDDLE DOT} ".join(screen.run)
    yield f'<p class="faint small">{text(run)}</p>'
    rates = "".join(f'<span class="rate">{text(rate)}</span>' for rate in screen.rates)
    yield f'<h1><span class="badge {verdict_role(screen.label)}">{text(screen.label)}</span></h1>'
    yield f"<p>{rates}</p>" if rates else ""
    verdict, *cause = screen.sentences
    yield f'<p class="verdict">{prose(verdict)}</p>'
    yield paragraph(" ".join(cause)).replace(text(_OPTION), _LINK)
    yield from _bars(screen)
    yield from _fixes(screen, anchors)
    yield from _commands(screen)
    yield "</section>"


def _bars(screen: FirstScreen) -> Iterator[str]:
    if not screen.bars:
        return
    yield '<div class="rows">'
    for bar in screen.bars:
        late = " late" if bar.marked else ""
        mark = charts.MARK if bar.marked else ""
        yield f'<div class="name{late}">{mark}{text(_name(bar))}</div>{_bar(bar)}'
    yield "</div>"
    if any(bar.marked for bar in screen.bars):
        yield note(f"{charts.MARK}straggler; ranks with similar steps share a bar (their mean)")
    shares = screen.mean_shares()
    colors = [
        (part.color, f"{part.name} {100 * share:.0f} %" if share >= 0.01 else f"{part.name} <1 %")
        for part, share in shares
    ]
    yield key(colors, "mean over ranks:" if len(screen.bars) > 1 else "")


def _name(bar: Bar) -> str:
    return bar.name if len(bar.name) <= _LONGEST_NAME else f"{len(bar.ranks):,} ranks"


def _bar(bar: Bar) -> str:
    return charts.bar(
        charts.Part(share, part.color, f"{part.name} {100 * share:.1f} %", f"{100 * share:.0f} %", part.name)
        for part, share in zip(PARTS, bar.shares, strict=True)
    )


def _fixes(screen: FirstScreen, anchors: Sequence[str]) -> Iterator[str]:
    if not screen.fixes:
        return
    placed = any(fix.where for fix in screen.fixes)
    head = "".join(f'<th scope="col">{name}</th>' for name in _HEADINGS if placed or name != "Where")
    yield f'<table class="fixes"><thead><tr>{head}</tr></thead><tbody>'
    for number, (fix, anchor) in enumerate(zip(screen.fixes, anchors, strict=False), 1):
        cells = [
            ("", str(number)),
            ("", f'<a href="#{anchor}">{text(f"{fix.rule} {fix.slug}")}</a>'),
            *([("", text(fix.where))] if placed else []),
            ("saves ", text(fix.saves)),
            ("confidence ", text(fix.confidence)),
            ("results ", text(fix.results)),
        ]
        row = "".join(f'<td data-name="{name}">{cell}</td>' for name, cell in cells)
        yield f"<tr>{row}</tr>"
    yield "</tbody></table>"
    more = f'<a href="#advice">and {screen.more_fixes} more</a>' if screen.more_fixes else ""
    yield f"<p>{more}</p>" if more else ""
    yield paragraph(f"Combined: {screen.together}." if screen.together else "")


def _commands(screen: FirstScreen) -> Iterator[str]:
    rows = [("Next", prose(screen.next))] if screen.next else []
    rows += [(label, f"<pre>{text(command)}</pre>") for label, command in screen.commands]
    for number, limit in enumerate(reversed(screen.unseen)):  # what was not checked matters more than how times are had
        rows.append(("" if number else "Limits", f'<span class="faint">{prose(limit)}</span>'))
    if rows:
        yield f"<dl>{''.join(f'<dt>{text(label)}</dt><dd>{words}</dd>' for label, words in rows)}</dl>"
