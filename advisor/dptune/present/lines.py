"""Lines of a page: text with the role it plays, before anyone gives the role a colour.

A page is made once, as lines; a terminal, a file and a pane of the interface each paint it in their own way.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from typing import Literal, NamedTuple

from dptune.present.columns import filled, unfilled
from dptune.present.terminal import WIDEST_ASKED
from dptune.present.visible import visible

Role = Literal["plain", "strong", "dim", "code", "note", "warning", "error", "good"]


class Span(NamedTuple):
    """A piece of a line. Painters show `text` through `visible`."""

    text: str
    role: Role = "plain"


Line = tuple[Span, ...]
BLANK: Line = ()
_LABEL = 10  # columns of the label of a command
_CONTINUES = " \\"
LONGEST_SENTENCE = 140  # columns: of a wider page tables and bars take more, sentences do not
NARROW = 60  # below it code is folded: on a page this narrow a line that runs over cannot be read


def line(text: str, role: Role = "plain") -> Line:
    """A line of one span, as long as it is."""
    return (Span(visible(text), role),)


def heading(text: str, width: int) -> Iterator[Line]:
    """A blank line and the name of a section."""
    yield BLANK
    yield from wrapped(text, width, role="strong")


_BEFORE_UNIT = re.compile(r"(?<=\d) (?=(?:%|ms|us|ns|KiB|MiB|GiB)(?:\W|$))")


def wrapped(
    text: str,
    width: int,
    indent: str = "",
    then: str | None = None,
    role: Role = "plain",
    most: int | None = None,
) -> Iterator[Line]:
    """The text folded at `width`, on a wide terminal at LONGEST_SENTENCE; its first line after `indent`, the others
    after `then`; cut after `most` lines.
    """
    clean = visible(" ".join(text.split(" ")).replace("\n", " ").strip())
    clean = _BEFORE_UNIT.sub("\N{NO-BREAK SPACE}", clean)  # a number stays with its unit
    wide = filled(clean)
    room = min(width, LONGEST_SENTENCE) if width <= WIDEST_ASKED else width
    folded = textwrap.wrap(
        wide,
        max(room, 20) - (wide != clean),  # a filler may be cut off its character
        initial_indent=indent,
        subsequent_indent=indent if then is None else then,
        break_on_hyphens=False,
        break_long_words="://" not in clean,  # an address stays whole, to be opened
        max_lines=most,
        placeholder=" ...",
    )
    for row in folded:
        yield line(unfilled(row).replace("\N{NO-BREAK SPACE}", " "), role)


def labelled(
    label: str, text: str, width: int, column: int = 12, indent: str = "", role: Role = "plain", hang: str = ""
) -> Iterator[Line]:
    """A label in its column, the text folded beside it; below it where the page is too narrow for two columns.

    `hang`: what further lines of the text are indented by.
    """
    if width - column - len(indent) < 30:
        yield line(f"{indent}{label}", "dim")
        yield from wrapped(text, width, f"{indent}  ", f"{indent}  {hang}", role=role)
        return
    margin = " " * column
    for number, (span,) in enumerate(wrapped(text, width, indent + margin, indent + margin + hang, role=role)):
        if number == 0:
            yield Span(f"{indent}{label:<{column}}", "dim"), Span(span.text[len(indent) + column :], role)
        else:
            yield (span,)


_WORD = re.compile(r"""(?:[^\s'"]|'[^']*'|"[^"]*")+""")  # of a shell command


def command_line(label: str, command: str, width: int) -> Iterator[Line]:
    """A command to copy beside its label: folded between words where it is too long, as a shell continues lines."""
    for number, row in enumerate(_continued(visible(command), width - _LABEL)):
        yield Span(f" {'' if number else label:<{_LABEL - 1}}", "dim"), Span(row, "code")


def _continued(command: str, room: int) -> Iterator[str]:
    words = _WORD.findall(command)
    if len(command) <= room or " ".join(words) != command:
        yield command
        return
    row = words[0]
    for word in words[1:]:
        if len(row) + len(word) + len(" ") + len(_CONTINUES) > room:
            yield row + _CONTINUES
            row = f"  {word}"
        else:
            row += f" {word}"
    yield row


def code(text: str, indent: str, fold_at: int | None = None) -> Iterator[Line]:
    """Lines to copy: folded only where `fold_at` says so, and then further in than they began."""
    for row in text.splitlines():
        clean = visible(row)
        if fold_at is None or len(indent) + len(clean) <= fold_at:
            yield Span(indent), Span(clean, "code")
            continue
        room = max(fold_at - len(indent), 20)
        begun = " " * min(len(clean) - len(clean.lstrip(" ")), room // 2)
        then = f"{begun}    " if len(begun) + 12 < room else begun
        for piece in textwrap.wrap(
            clean.strip(" "), room, initial_indent=begun, subsequent_indent=then, break_on_hyphens=False
        ):
            yield Span(indent), Span(piece, "code")
