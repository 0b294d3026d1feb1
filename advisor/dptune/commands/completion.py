"""Print the shell completion script.

Completes options, knobs and their values after --set, rules after --advice, names and commits of recordings, formats,
run folders and files. It asks `dptune` at each Tab and needs nothing else.

examples:
  eval "$(dptune completion bash)"      in ~/.bashrc
  eval "$(dptune completion zsh)"       in ~/.zshrc
  dptune completion fish > ~/.config/fish/completions/dptune.fish
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping

import argcomplete
from argcomplete.completers import BaseCompleter, FilesCompleter
from argcomplete.shell_integration import shellcode

from dptune.commands.export import CHOSEN_RANKS, RANK_CHOICES
from dptune.commands.shared.engine import CHOICES
from dptune.commands.shared.gate_formats import FORMATS, OUTPUT
from dptune.commands.shared.recordings import recordings
from dptune.knobs import KNOBS
from dptune.runfile.paths import RUNS

SHELLS = ("bash", "zsh", "fish", "powershell")
_OF_KNOBS = ("settings", "sweep")  # where options keep KNOB=VALUE
_OF_RULES = ("advice", "code")
_OF_CHANGES = ("only", "skip")  # rules and knobs
_CHOICES = {CHOSEN_RANKS: RANK_CHOICES, **CHOICES}
_OF_RECORDINGS = ("baseline", "paths", "runs", "words", "folders", "recording")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("shell", choices=SHELLS, help="which shell")


def run(args: argparse.Namespace) -> int:
    """Print the shell's code."""
    print(shellcode(["dptune"], shell=args.shell), end="")
    return 0


def complete(parsers: Mapping[str, argparse.ArgumentParser], lines: Mapping[str, str]) -> None:
    """Answer a shell that asks what may come next, and end the process; return where no shell asks.

    `lines` has every verb with what it does, `parsers` those whose options are wanted.
    """
    top = argparse.ArgumentParser(prog="dptune", add_help=False)
    for option in ("--help", "--version", "--debug"):
        top.add_argument(option, action="store_true")
    verbs = top.add_subparsers()
    for verb, line in lines.items():
        verbs.add_parser(verb, help=line)
    verbs.choices.update(parsers)
    argcomplete.autocomplete(top, default_completer=_Names(), always_complete_options=False)


class _Names(BaseCompleter):
    """What an argument may be: a knob and its value, a format and its file, a rule, a recording, else a file."""

    def __call__(
        self, *, prefix: str, action: argparse.Action, parser: argparse.ArgumentParser, parsed_args: argparse.Namespace
    ) -> Iterable[str]:
        before, equals, after = prefix.partition("=")
        if action.dest in _OF_KNOBS:
            return [f"{before}={value}" for value in _values(before)] if equals else [f"{name}=" for name in KNOBS]
        if action.metavar == OUTPUT and not equals:
            return [f"{form}=" for form in FORMATS]
        if action.metavar == OUTPUT:
            return [f"{before}={file}" for file in FilesCompleter()(after)]
        if action.dest in _OF_RULES:
            return _rules(by_name=prefix[:1].islower())
        if action.dest in _OF_CHANGES:
            return [*_rules(), *KNOBS]
        if isinstance(action.metavar, str) and action.metavar in _CHOICES:
            return _CHOICES[action.metavar]
        if action.dest in _OF_RECORDINGS:
            names = (name for run in recordings([RUNS]) for name in (run.folder.name, run.commit) if name)
            return [*dict.fromkeys(names), *FilesCompleter()(prefix)]
        return FilesCompleter()(prefix)


def _values(name: str) -> tuple[str, ...]:
    """The words that a knob takes, where they can be counted."""
    found = KNOBS.get(name)
    if found is None:
        return ()
    return found.choices or (("true", "false") if found.kind is bool else ())


def _rules(*, by_name: bool = False) -> list[str]:
    from dptune.advise.packs import load_packs  # most of what a Tab would take

    rules = [loaded.rule for loaded in load_packs()]
    return [rule.name if by_name else rule.code for rule in rules]
