"""What a rule declares: its code and its thresholds."""

from __future__ import annotations

from dataclasses import dataclass

from dptune.advice import Kind, Needs


@dataclass(frozen=True)
class Threshold:
    """A number that a rule decides by: its name in `[tool.dptune.rules.<code>]`, its default, and the reason for it."""

    name: str
    default: float
    reason: str


@dataclass(frozen=True)
class Rule:
    """What a rule declares. `code` is the family and a number; `since` the version it appeared in.

    A `preview` rule runs with `preview = true`, or when its whole code is selected. A `last` rule runs after all others
    and sees their advice in `RunView.advised`. A rule with `asked_when_busy` also runs where step times are too
    unreliable for advice; `RunView.times_hold` is then False. A rule that `needs` a "recording" judges what only the
    live process has: a trace that dptune did not record can show at most that there is nothing to judge, or, with
    `also_traces`, some of its findings. A risk with `asked_without_steps` needs no traced step of a recording.
    """

    code: str
    name: str
    family: str
    kind: Kind
    summary: str
    since: str
    thresholds: tuple[Threshold, ...] = ()
    preview: bool = False
    last: bool = False
    asked_when_busy: bool = False
    needs: Needs = ""
    also_traces: bool = False
    asked_without_steps: bool = False
