"""The `dptune` command: one verb, its options, and an exit status.

Only the module of the verb that was asked for is imported, so that `dptune --help` stays quick.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any, TextIO, cast

from dptune.commands.shared.parsing import Parser, nearest
from dptune.errors import DptuneError, UsageError

# verb -> (its module, the first line of that module's docstring); a test keeps the second column true.
VERBS = {
    "profile": ("dptune.commands.profile", "Record a few steps of an unmodified training script."),
    "report": ("dptune.commands.report", "Show where step time goes and what to change."),
    "check": ("dptune.commands.check", "Performance gate for CI: fail on findings, budgets or regressions."),
    "compare": ("dptune.commands.compare", "Show what changed between two runs, or two sets of runs, and why."),
    "history": ("dptune.commands.history", "List recordings: step time, throughput and verdict of each."),
    "export": ("dptune.commands.export", "Write chosen ranks to one Perfetto file, on one clock."),
    "whatif": ("dptune.commands.whatif", "Predict step time after changes, from a recording alone."),
    "verify": (
        "dptune.commands.verify",
        "Verify a change by running the script with and without it.",
    ),
    "tune": ("dptune.commands.tune", "Find the changes that make a script faster, by running them."),
    "links": ("dptune.commands.links", "Measure latency and bandwidth of the links between ranks."),
    "rules": (
        "dptune.commands.rules",
        "List rules, knobs and figures, or explain a rule.",
    ),
    "demo": ("dptune.commands.demo", "Show the report of a packaged sample run, or record it here."),
    "mcp": ("dptune.commands.mcp", "Serve dptune to coding agents over the Model Context Protocol."),
    "skill": ("dptune.commands.skill", "Print a skill file that shows coding agents how to use dptune."),
    "completion": ("dptune.commands.completion", "Print the shell completion script."),
}
_GLOBAL = ("--help", "-h", "--version", "--debug")
INTERRUPTED = 130
PIPE_CLOSED = 141
# Objects made until garbage is collected, and collections until older objects are looked at, too. Python's own are 700,
# 10 and 10. Modules and reports are objects that stay: looking at them that often is a twentieth of a report's time.
BETWEEN_COLLECTIONS = (50_000, 20, 50)


def main(argv: Sequence[str] | None = None) -> int:
    """Run `dptune` with the arguments (those of the process where none are given) and return its exit status."""
    if "_ARGCOMPLETE" in os.environ:
        _complete()
    if argv is None:
        gc.set_threshold(*BETWEEN_COLLECTIONS)
    words = list(sys.argv[1:] if argv is None else argv)
    session = _Session(debug=False)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError, OSError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    original_stdout, stdout = sys.stdout, _Stdout(sys.stdout)
    sys.stdout = cast(TextIO, stdout)
    try:
        status = _status(session, words, stdout)
    finally:
        sys.stdout = original_stdout
    for stream in (
        original_stdout,
        sys.stderr,
    ):  # what cannot be written now would change the exit status at the very end
        _settle(stream)
    return status


def _status(session: _Session, words: list[str], stdout: _Stdout) -> int:
    """The exit status, with every failure reported."""
    try:
        status = session.run(words)
        stdout.flush()
        if stdout.lost:  # and somebody kept it to themselves
            raise stdout.lost
    except KeyboardInterrupt:
        session.show_traceback()
        with contextlib.suppress(OSError):
            print("dptune: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        return PIPE_CLOSED
    except Exception as error:
        session.show_traceback()
        return _complain(*_explained(error, stdout.lost, session.debug))
    return status


def _explained(error: Exception, lost: OSError | None, debug: bool) -> tuple[str, str, int]:
    """Message, hint and exit status of whatever went wrong."""
    if isinstance(error, DptuneError):
        return error.message, error.hint, error.exit_status
    if isinstance(error, OSError):
        if error is lost:
            hint = "check that the output is still open and the disk is not full"
            return f"cannot write to stdout: {_reason(error)}", hint, 2
        if error.filename is None and not _is_somewhere():
            return "the working directory no longer exists", "change to a folder that exists", 2
        if error.filename is None:
            return f"a file cannot be read or written: {_reason(error)}", "--debug shows which", 2
        return f"cannot open {_short(error.filename)}: {_reason(error)}", "check the path and its permissions", 2
    if isinstance(error, RecursionError):
        return "what was read is nested too deeply", "look for a file that is damaged or is not a trace", 2
    if isinstance(error, MemoryError):
        return "there is not enough memory", "read fewer traces at once, or use a machine with more memory", 2
    hint = "" if debug else "run it again with --debug for the traceback, and report it"
    return f"internal error: {type(error).__name__}: {error}", hint, 2


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
                from dptune.commands.version import lines

                print("\n".join(lines()))
                return 0
            if option != "--debug":
                raise UsageError(f"unknown option '{option}' before the command", _did_you_mean(option, _GLOBAL))
            self.debug = True
        if not words:
            print(_help(), file=sys.stderr)
            return 2
        verb = words.pop(0)
        if verb not in VERBS:
            raise UsageError(f"unknown command '{verb}'", _did_you_mean(verb, VERBS))
        module, parser = _parser(verb)
        try:
            args = parser.parse_args(words)
        except SystemExit as leave:  # --help
            return int(leave.code or 0)
        self.debug = self.debug or "debug" in args
        return int(module.run(args))

    def show_traceback(self) -> None:
        if self.debug:
            with contextlib.suppress(OSError):
                traceback.print_exc()


def _parser(verb: str) -> tuple[Any, Parser]:
    """The module of a verb, and the parser of its arguments."""
    module = importlib.import_module(VERBS[verb][0])
    parser = Parser.of_verb(verb, module.__doc__ or "")
    module.arguments(parser)
    return module, parser


def _complete() -> None:
    """Answer the shell that asks what may come next; only the verb that stands there already is imported."""
    from dptune.commands.completion import complete

    standing = os.environ.get("COMP_LINE", "").split()[1:2]
    complete(
        {verb: _parser(verb)[1] for verb in standing if verb in VERBS},
        {name: line for name, (_, line) in VERBS.items()},
    )


class _Stdout:
    """stdout, closed perhaps before dptune began (None), that remembers why it could not be written."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self.lost: OSError | None = None

    def write(self, text: str) -> int:
        try:
            if self._stream is None:
                raise OSError(errno.EBADF, "it is closed")
            return self._stream.write(text)
        except OSError as error:
            self.lost = error
            raise

    def flush(self) -> None:
        try:
            if self._stream is not None:
                self._stream.flush()
        except OSError as error:
            self.lost = error
            raise

    def isatty(self) -> bool:
        return self._stream is not None and self._stream.isatty()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _did_you_mean(word: str, choices: Any) -> str:
    near = nearest(word, choices)
    return f"did you mean '{near}'?" if near else "see `dptune --help`"


def _complain(message: str, hint: str, status: int) -> int:
    from dptune.present.visible import visible

    with contextlib.suppress(OSError):
        print(f"dptune: error: {visible(message)}", file=sys.stderr)
        if hint:
            print(f"hint: {visible(hint)}", file=sys.stderr)
    return status


def _settle(stream: TextIO | None) -> None:
    """Write what is left; where nobody can take it, keep the interpreter's own last try from complaining."""
    try:
        if stream is not None:
            stream.flush()
    except OSError:
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), cast(TextIO, stream).fileno())
    except ValueError:  # closed from within
        pass


def _is_somewhere() -> bool:
    """Whether the working directory is there."""
    try:
        os.getcwd()  # noqa: PTH109 - Path.cwd() is the same call
    except OSError:
        return False
    return True


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


def _short(path: object) -> str:
    text = os.fsdecode(path) if isinstance(path, str | bytes) else str(path)
    return text if len(text) <= 120 else f"{text[:60]}...{text[-40:]}"


def _help() -> str:
    width = max(map(len, VERBS))
    verbs = "\n".join(f"  {name:<{width}}  {line}" for name, (_, line) in VERBS.items())
    return f"""usage: dptune [--version] [--debug] COMMAND ...

dptune records a few steps of a PyTorch training run, shows where step time goes, what to change, and how much each
change can save.

commands:
{verbs}

options:
  -h, --help  show this help; of one command: dptune COMMAND --help
  --version   print the versions of dptune and its dependencies
  --debug     on an error, show the traceback too

start here:
  dptune demo                    see a report without a GPU or your own script
  dptune profile train.py        record your training, instead of `python train.py`
  dptune report                  read the latest recording"""
