"""Evidence of where the script calls a function, and which of its lines take most time."""

from __future__ import annotations

from collections.abc import Collection

from dptune.advice import Evidence
from dptune.rule import RunView, call_path


def call_path_evidence(run: RunView, name: str, at: str, besides: Collection[str] = ()) -> list[Evidence]:
    """From stack samples of untraced steps; empty without them. `besides`: lines that the advice names anyway.

    `name` is the function's, perhaps with its class, `at` its file and line.
    """
    path = call_path(run.facts, name, at)
    called = [line for line in path.called_at if line not in besides]
    found = [Evidence(label="called at", value=", ".join(called))] if called else []
    for label, places in (("lines that take most time", path.lines), ("loops around them", path.loops)):
        if places:
            found.append(Evidence(label=label, value=", ".join(f"{at} ({100 * share:.0f} %)" for at, share in places)))
    return found
