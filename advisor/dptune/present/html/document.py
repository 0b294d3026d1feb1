"""The frame of a page: its head, links to its sections, the sections, and the script that sorts tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dptune.present.html.markup import Section, text
from dptune.present.html.script import SORT, policy
from dptune.present.html.style import CSS


def document(title: str, first: Iterable[str], sections: Sequence[Section], footer: str, description: str = "") -> str:
    """The whole page, one file that fetches nothing. `first` is above the links to the sections; `description` is what
    a chat shows of a link to the page.
    """
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy()}">',
        f"<title>{text(title)}</title>",
        f'<meta name="description" content="{text(description)}">' if description else "",
        f"<style>{CSS}</style></head><body><main>",
        *first,
        "<nav>",
        *(f'<a href="#{section.anchor}">{text(section.short)}</a>' for section in sections),
        "</nav>",
    ]
    parts += [
        f'<section id="{section.anchor}"><h2>{text(section.title)}</h2>{section.body}</section>' for section in sections
    ]
    parts.append(f"</main><footer>{text(footer)}</footer><script>{SORT}</script></body></html>")
    return "\n".join(parts) + "\n"
