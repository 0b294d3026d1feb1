"""Facts for rules: asking for one that could not be read raises Missing, so that no rule takes its default for true."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from dptune.measured import Missing
from dptune.runfile.facts import Facts


class _KnownFacts(Facts):
    """The facts of one rank; `_lacking` has the reason for each that could not be read, by its name."""

    def __getattribute__(self, name: str) -> Any:
        if why := object.__getattribute__(self, "__dict__")["_lacking"].get(name):
            raise Missing(why)
        return object.__getattribute__(self, name)


def known(facts: Facts) -> Facts:
    """The same facts, guarded where some could not be read."""
    if not facts.unread:
        return facts
    lacking = {each.name: why for each in fields(facts) if (why := facts.lacking(each.name))}
    if not lacking:
        return facts
    guarded = object.__new__(_KnownFacts)
    object.__getattribute__(guarded, "__dict__").update(facts.__dict__, _lacking=lacking)
    return guarded
