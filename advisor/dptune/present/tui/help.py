"""The keys and what they do, made from the bindings themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from textual.binding import Binding

from dptune.present.lines import Line, heading, labelled, line, wrapped

_MOVING = "Up, down, Page Up and Page Down move in a list or a text. A mouse works too."
_THEMES = "Colours: ctrl+p, then Theme; TEXTUAL_THEME=textual-light sets the default, NO_COLOR=1 turns colours off."


def keys(groups: Mapping[str, Sequence[Binding]], width: int) -> Iterator[Line]:
    """A line for each key of each part of the report."""
    for number, (name, bindings) in enumerate(groups.items()):
        yield from heading(name, width) if number else (line(name, "strong"),)
        shown = [binding.key_display or binding.key.replace(",", ", ") for binding in bindings]
        for binding, key in zip(bindings, shown, strict=True):
            yield from labelled(
                _without(key, shown), f"{binding.description}: {_uncapitalized(binding.tooltip)}", width, column=11
            )
    yield line("")
    yield from wrapped(f"{_MOVING} {_THEMES}", width)


def _without(key: str, shown: Sequence[str]) -> str:
    """The keys of a binding, `+ -` in the footer, without those that have a line of their own."""
    return " ".join(part for part in key.split(" ") if key == part or part not in shown)


def _uncapitalized(text: str) -> str:
    return text[:1].lower() + text[1:]
