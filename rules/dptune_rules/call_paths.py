"""Evidence of where the script calls a function, and which of its lines take most time."""

from __future__ import annotations

from collections.abc import Collection

from dptune.advice import Evidence
from dptune.rule import CallPath, RunView, call_path


def call_path_evidence(run: RunView, name: str, at: str, besides: Collection[str] = ()) -> list[Evidence]:
    """From stack samples of untraced steps; empty without them. `besides`: lines that the advice names anyway.

    `name` is the function's, perhaps with its class, `at` its file and line.
    """
    path = call_path(run.facts, name, at)
    called = [line for line in path.called_at if line not in besides]
    found = [Evidence(label="called at", value=", ".join(called))] if called else []
    return [*found, *_lines(path)]


def line_evidence(run: RunView, name: str, at: str) -> list[Evidence]:
    """The lines alone, of an advice that names where the function is called."""
    return _lines(call_path(run.facts, name, at))


def _lines(path: CallPath) -> list[Evidence]:
    both = (("lines that take most time", path.lines), ("loops around them", path.loops))
    return [
        Evidence(label=label, value=", ".join(f"{at} ({100 * share:.0f} %)" for at, share in places))
        for label, places in both
        if places
    ]
