"""The recommendations as cards, each with an anchor and links to the sections that show its cause."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from dptune.advice import Advice, Report
from dptune.present.first_screen import first_screen, reported_straggler, verdict_role
from dptune.present.html.markup import WIDE, Section, joined, labelled, paragraph, prose, text
from dptune.present.sections.advice import body, nothing_to_say, other_proofs, sections, tag

# Where the cause of a rule's findings shows, by the first digit of its code, which is its family.
_SHOWN_IN: Mapping[str, tuple[str, ...]] = {
    "1": ("communication", "timeline", "collective-table"),
    "2": ("shard-units", "links", "communication", "collective-table"),
    "3": ("ranks", "changes"),
    "4": ("kernels", "kernel-table"),
    "5": ("timeline", "ranks", "steps"),
    "6": ("timeline", "kernels", "kernel-table"),
    "7": ("timeline", "lateness", "outliers", "steps", "rank-table"),
    "8": ("steps", "ranks"),
}
_OF_PAGE = "Recommendations: "  # the heading above
_CODE = re.compile(r"DP(\d)\d+")


def anchors(advice: Sequence[Advice]) -> list[str]:
    """An anchor for each card, none of them twice."""
    found: list[str] = []
    for card in advice:
        name = f"advice-{re.sub(r'[^A-Za-z0-9_-]', '-', card.rule)}"
        earlier = sum(other == name or other.startswith(f"{name}.") for other in found)
        found.append(f"{name}.{earlier + 1}" if earlier else name)
    return found


def recommendations(report: Report, shown: Mapping[str, str]) -> Section:
    """Every card. `shown` are the names of the sections that the page has, by anchor."""
    parts = [] if report.advice else [paragraph(nothing_to_say(report))]
    named = list(zip(anchors(report.advice), report.advice, strict=True))
    for title, cards in sections(report.advice):
        parts.append(f"<h3>{prose(title.removeprefix(_OF_PAGE).capitalize())}</h3>")
        for anchor, card in named:
            if any(card is other for other in cards):
                parts += _card(card, anchor, report, shown)
    parts += [paragraph(joined(line)) for line in other_proofs(report, WIDE) if line]
    return Section("advice", "Recommendations", "Recommendations", "".join(parts))


def _card(card: Advice, anchor: str, report: Report, shown: Mapping[str, str]) -> Iterator[str]:
    yield f'<article class="card {card.impact}" id="{anchor}"><div class="tag">{text(tag(card))}</div>'
    yield f"<h4>{prose(card.title)}</h4>"
    yield from labelled(body(card, report, WIDE))
    links = "".join(f'<a href="#{name}">{text(shown[name])}</a>' for name in _sections_of(card, shown))
    yield f'<p class="see">See {links}</p></article>' if links else "</article>"


def shows_late_ranks(report: Report) -> bool:
    """Whether the page shows how late ranks are: not where the verdict is that nothing is wrong, and no recommendation
    has its cause there. Traced steps vary, so some rank is late in some step of any run.
    """
    calm = verdict_role(first_screen(report).label) in ("good", "note")
    explains = any(_sections_of(card, ["lateness"]) for card in report.advice)
    return not calm or explains or reported_straggler(report) is not None


def _sections_of(card: Advice, shown: Collection[str]) -> list[str]:
    code = _CODE.fullmatch(card.rule)
    return [name for name in _SHOWN_IN.get(code[1], ()) if name in shown] if code else []
