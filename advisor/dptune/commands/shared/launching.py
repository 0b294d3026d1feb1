"""By whom the ranks of a script are started, from the command line of a verb that records."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from dptune.commands.shared.torchrun_options import torchrun_of
from dptune.errors import UsageError

if TYPE_CHECKING:
    from dptune.capture.launch import Launch
    from dptune.capture.torchrun import Torchrun


def script_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the script and its arguments, the last ones of the verb."""
    parser.add_argument("-m", dest="module", action="store_true", help="run a module, as `python -m` does")
    script = "the script, with -m the module, or the command of a launcher"
    parser.add_argument("script", nargs="?", metavar="train.py", help=script)
    parser.add_argument("script_arguments", nargs=argparse.REMAINDER, metavar="...", help="arguments of the script")


def launch_of(args: argparse.Namespace, verb: str) -> Launch:
    """Nobody, torchrun, a command of the user's, or whoever started dptune."""
    from dptune.capture import interpreter, job, launch

    if args.script is None:
        raise UsageError("there is nothing to record", f"dptune {verb} [options] train.py [its arguments]")
    script = launch.Script(args.script, tuple(args.script_arguments), args.module)
    torchrun = torchrun_of(args)
    program = script.program
    if program is not None:
        _refuse_for_command(args, torchrun, verb)
        return launch.own_command(script, interpreter.of_program(program))
    script.check()
    chosen = interpreter.choose(args.python)
    if torchrun.asked:
        return launch.under_torchrun(script, chosen, torchrun)
    around = job.surrounding()
    return launch.alone(script, chosen) if around is None else launch.as_rank(script, chosen, around)


def _refuse_for_command(args: argparse.Namespace, torchrun: Torchrun, verb: str) -> None:
    for option in [*torchrun.asked, *(["--python"] if args.python else [])]:
        what = f"{option} does not apply to a command that starts the ranks itself"
        raise UsageError(what, f"give it to {args.script}, or name the script alone: dptune {verb} {option} ...")
