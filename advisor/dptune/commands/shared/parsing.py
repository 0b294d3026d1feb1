"""A parser of one verb's arguments whose mistakes end as one sentence and a hint."""

from __future__ import annotations

import argparse
import difflib
import itertools
import re
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from dptune.errors import UsageError

_WIDEST = 100
_BEFORE_PERCENT, _KEPT = re.compile(r"(?<=\d) (?=%)"), "\N{NO-BREAK SPACE}"  # a line does not start with %
BETWEEN = "\0"  # what `--` becomes where it is kept: no path can be called that


def nearest(word: str, choices: Iterable[str]) -> str | None:
    """The choice that `word` begins, else the one most like it, or None where nothing is like it.

    An option of one letter is like no other.
    """
    if word.startswith("-") and len(word) == 2:
        return None
    choices = list(choices)
    begun = [choice for choice in choices if len(word) > 3 and choice.startswith(word)]
    if begun:
        return min(begun, key=len)
    near = difflib.get_close_matches(word, choices, n=1, cutoff=0.5)
    return near[0] if near else None


class _Paragraphs(argparse.RawDescriptionHelpFormatter):
    """Wraps paragraphs to the terminal's width and leaves indented lines as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        filled = []
        for as_it_is, lines in itertools.groupby(text.splitlines(), lambda line: not line or line[0].isspace()):
            paragraph = list(lines)
            if not as_it_is:
                joined = " ".join(paragraph)
                paragraph = _rows(joined, min(width, _WIDEST))
            filled += paragraph
        return "\n".join(indent + line for line in filled)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return _rows(" ".join(text.split()), width)


def _rows(text: str, width: int) -> list[str]:
    """The text in lines; a path or an option is on one, and so are a number and its %."""
    kept = _BEFORE_PERCENT.sub(_KEPT, text)
    return [row.replace(_KEPT, " ") for row in textwrap.wrap(kept, width, break_on_hyphens=False)]


class Parser(argparse.ArgumentParser):
    """An `ArgumentParser` that raises `UsageError` with the nearest thing it knows.

    `keeps_between`: a `--` separates arguments, which may be options still, and is among them as `BETWEEN`.
    `takes_command`: what stands after a `--` is a command line of the user's, found in `command` as it is.
    """

    keeps_between = False
    takes_command = False

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"allow_abbrev": False, "formatter_class": _Paragraphs, **settings})
        self.add_argument(
            "--debug", action="store_true", default=argparse.SUPPRESS, help="on an error, show the traceback too"
        )

    @classmethod
    def of_verb(cls, verb: str, docstring: str) -> Parser:
        """The parser of a verb: its module's first line describes it, the rest follows the options."""
        first, _, rest = docstring.strip().partition("\n")
        return cls(prog=f"dptune {verb}", description=first, epilog=rest.strip() or None)

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """As argparse's, but an option that is not there names the nearest one."""
        command: list[str] = []
        if self.takes_command and args is not None and "--" in args:
            at = args.index("--")
            args, command = args[:at], list(args[at + 1 :])
        if self.keeps_between and args is not None:
            args = [BETWEEN if word == "--" else word for word in args]
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            word = unknown[0]
            kind = "option" if word.startswith("-") else "argument"
            near = nearest(word.split("=")[0], self._options()) if kind == "option" else None
            raise UsageError(
                f"`{self.prog}` has no {kind} '{word}'",
                f"did you mean '{near}'?" if near else f"see `{self.prog} --help`",
            )
        if self.takes_command:
            found.command = command
        return found

    def error(self, message: str) -> NoReturn:
        """Raise what argparse would print and exit on."""
        hint = f"see `{self.prog} --help`"
        choice = re.search(r"invalid choice: '?([^'(]+?)'? \(choose from (.*)\)", message)
        if choice and (near := nearest(choice[1], re.findall(r"[\w-]+", choice[2]))):
            hint = f"did you mean '{near}'?"
        raise UsageError(message, hint)

    def _options(self) -> list[str]:
        names = list(self._option_string_actions)
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                for parser in action.choices.values():
                    names += parser._option_string_actions
        return names
