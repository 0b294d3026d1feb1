"""What a recorded command ran, in a word."""

from __future__ import annotations

import shlex
from pathlib import PurePath


def script_name(command: str) -> str:
    """The file name of the script, the name of its module, or the program."""
    words = _words(command)
    module = words[words.index("-m") + 1 :][:1] if "-m" in words else []
    return PurePath(next((word for word in [*words, *module] if word.endswith(".py")), [*module, *words, ""][0])).name


def _words(command: str) -> list[str]:
    """As a shell splits them; at spaces where a quote does not end, as in a file that was changed."""
    try:
        return shlex.split(command)
    except ValueError:
        return command.split()
