"""The source files of the script that are loaded."""

from __future__ import annotations

import sys

from dptune.capture.injected.observe.places import is_the_users

_MOST = 200


def script_files() -> dict[str, dict[str, object]]:
    """By file, in the order of their names: the global variables of its module."""
    found = {
        file: vars(module)
        for module in list(sys.modules.values())
        if (file := getattr(module, "__file__", None)) and file.endswith(".py") and is_the_users(file)
    }
    return {file: found[file] for file in sorted(found)[:_MOST]}
