"""Pieces of the page: text made safe, sections with an anchor, lists of terms, keys of colors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from html import escape
from itertools import groupby
from typing import NamedTuple

from dptune.present.html.style import shade
from dptune.present.lines import Line
from dptune.present.visible import visible

_OPTION = re.compile(r"(?<![\w-])--\w[\w-]{,30}")  # which a browser would break at its hyphens
_UNIT = re.compile(r"(?<=\d) (?=(?:%|ms|us|[KMG]iB|GB/s)(?!\w))")
_QUOTED = re.compile(r"`([^`]+)`")  # names out of traces are escaped before, so that they add no element
WIDE = 10_000  # lines are not folded: a browser does that


class Section(NamedTuple):
    """One section of the page: what links to it, its heading, its name in the list of sections, what it holds."""

    anchor: str
    title: str
    short: str
    body: str


def text(words: object) -> str:
    """Anyone's words, as text of a page or value of an attribute."""
    return escape(visible(str(words)))


def prose(words: object) -> str:
    """Anyone's words as content of an element: what is between backquotes as code, numbers beside their units.

    No attribute may hold it.
    """
    return _UNIT.sub("&nbsp;", _QUOTED.sub(lambda quoted: f"<code>{_unbroken(quoted[1])}</code>", text(words)))


def _unbroken(code: str) -> str:
    """Escaped code whose options stay on one line each."""
    return _OPTION.sub(r'<span class="option">\g<0></span>', code)


def text_block(words: str) -> str:
    """Lines of text, with their breaks."""
    return "\n".join(text(row) for row in words.split("\n"))


def paragraph(words: str) -> str:
    """A paragraph; nothing for no words."""
    return f"<p>{prose(words)}</p>" if words else ""


def note(words: str) -> str:
    """A small remark below a picture or table; nothing for no words."""
    return f'<p class="faint small">{prose(words)}</p>' if words else ""


def key(entries: Iterable[tuple[str, str]], heading: str = "") -> str:
    """What each color stands for, after what all entries are."""
    items = [f"<li>{text(heading)}</li>"] if heading else []
    items += [f'<li><span style="background:{shade(color)}"></span>{prose(name)}</li>' for color, name in entries]
    return f'<ul class="key">{"".join(items)}</ul>' if items else ""


def labelled(lines: Iterable[Line]) -> Iterator[str]:
    """Lines with a label in their first columns as a list of terms; consecutive rows of code as one block."""
    yield "<dl>"
    for is_code, rows in groupby((line for line in lines if line), _is_code):
        if is_code:
            block = "\n".join(text("".join(span.text for span in line[1:])) for line in rows)
            yield f"<dt></dt><dd><pre>{block}</pre></dd>"
            continue
        for line in rows:
            words = joined(line)
            label = line[0].text.strip() if line[0].role == "dim" and len(line) > 1 else ""
            description = "".join(span.text for span in line[1:]) if label else words
            role = line[-1].role
            look = ' class="saves"' if role == "strong" else f' class="{role}"' if role in ("error", "good") else ""
            shown = prose(description.strip())
            yield f"<dt>{text(label)}</dt><dd{look}>{f'<code>{shown}</code>' if role == 'code' else shown}</dd>"
    yield "</dl>"


def joined(line: Line) -> str:
    """The words of a line."""
    return "".join(span.text for span in line).strip()


def _is_code(line: Line) -> bool:
    """Whether it is a row to paste: an empty span for the margin, then the code with its own indentation."""
    return len(line) > 1 and not line[0].text.strip() and any(span.role == "code" for span in line)
