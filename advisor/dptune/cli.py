"""The `dptune` command: one verb, its options, and an exit status.

Only the module of the verb that was asked for is imported, so that `dptune --help` stays quick.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

from dptune.commands.parsing import Parser, nearest
from dptune.errors import DptuneError, UsageError

# verb -> (its module, the first line of that module's docstring); a test keeps the second column true.
VERBS = {
    "profile": ("dptune.commands.profile", "Record a few steps of an unmodified training script."),
    "report": ("dptune.commands.report", "Say where the step's time goes and what to change."),
    "check": ("dptune.commands.check", "Fail when a run has advice of a given severity: for CI."),
    "rules": ("dptune.commands.rules", "List the rules, or explain one."),
    "demo": ("dptune.commands.demo", "Show the report of a small run that comes with dptune, or record it anew."),
}
_GLOBAL = ("--help", "-h", "--version", "--debug")
INTERRUPTED = 130
PIPE_CLOSED = 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run `dptune` with the arguments (those of the process where none are given) and return its exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    session = _Session(debug=False)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError, OSError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        status = session.run(words)
        sys.stdout.flush()
    except KeyboardInterrupt:
        session.show_traceback()
        print("dptune: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        _forget_stdout()
        return PIPE_CLOSED
    except DptuneError as error:
        session.show_traceback()
        return _complain(error.message, error.hint, error.exit_status)
    except Exception as error:
        session.show_traceback()
        hint = "" if session.debug else "run it again with --debug for the traceback, and report it"
        return _complain(f"internal error: {type(error).__name__}: {error}", hint, 2)
    return status


class _Session:
    """One call of the command: whether tracebacks are wanted, and the verb to run."""

    def __init__(self, debug: bool) -> None:
        self.debug = debug

    def run(self, words: list[str]) -> int:
        while words and words[0].startswith("-"):
            option = words.pop(0)
            if option in ("-h", "--help"):
                print(_help())
                return 0
            if option == "--version":
                from dptune import __version__

                print(f"dptune {__version__}")
                return 0
            if option != "--debug":
                raise UsageError(f"there is no option '{option}' before the verb", _did_you_mean(option, _GLOBAL))
            self.debug = True
        if not words:
            print(_help(), file=sys.stderr)
            return 2
        verb = words.pop(0)
        if verb not in VERBS:
            raise UsageError(f"there is no verb '{verb}'", _did_you_mean(verb, VERBS))
        module = importlib.import_module(VERBS[verb][0])
        parser = Parser.of_verb(verb, module.__doc__ or "")
        module.arguments(parser)
        try:
            args = parser.parse_args(words)
        except SystemExit as leave:  # --help
            return int(leave.code or 0)
        self.debug = self.debug or "debug" in args
        return _status(module, args)

    def show_traceback(self) -> None:
        if self.debug:
            traceback.print_exc()


def _status(module: Any, args: Any) -> int:
    return int(module.run(args))


def _did_you_mean(word: str, choices: Any) -> str:
    near = nearest(word, choices)
    return f"did you mean '{near}'?" if near else "see `dptune --help`"


def _complain(message: str, hint: str, status: int) -> int:
    from dptune.present.visible import visible

    with contextlib.suppress(BrokenPipeError):
        print(f"dptune: error: {visible(message)}", file=sys.stderr)
        if hint:
            print(f"hint: {visible(hint)}", file=sys.stderr)
    return status


def _forget_stdout() -> None:
    """Nobody reads stdout any more: keep the interpreter's last flush from complaining."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _help() -> str:
    width = max(map(len, VERBS))
    verbs = "\n".join(f"  {name:<{width}}  {line}" for name, (_, line) in VERBS.items())
    return f"""usage: dptune [--version] [--debug] VERB ...

dptune watches a few steps of a PyTorch training run, says where the time of a step goes, what to change, and how
much each change can save.

verbs:
{verbs}

options:
  -h, --help  show this help, or that of a verb: dptune VERB --help
  --version   print the version
  --debug     on an error, show the traceback too

start here:
  dptune demo                    see a report without a GPU or a script of your own
  dptune profile train.py        record your training, instead of `python train.py`
  dptune report                  read the latest recording"""
