"""A function of another observer of dptune, which stands between the script and what is observed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dptune.capture.injected.observe.places import OURS


def through_another_observer(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, called by one whose code is of a file of dptune."""
    names = {"function": function}
    code = "def passed_on(*args, **kwargs):\n    return function(*args, **kwargs)"
    exec(compile(code, f"{OURS}observe/another.py", "exec"), names)
    return names["passed_on"]
