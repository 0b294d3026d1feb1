"""What a module of a rule pack declares, looked at before anything relies on it: it may be anything."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from math import isfinite
from types import ModuleType
from typing import get_args

from dptune.advice import Kind, Needs
from dptune.rule import Rule, Threshold

CODE = re.compile(r"[A-Z]{2,}[0-9]{3,}\Z")
NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*\Z")
_OF_DPTUNE = re.compile("DP[0-9]")


def declares(module: ModuleType) -> bool:
    """Whether the module is a rule, or looks as if it were to be one."""
    return hasattr(module, "RULE") or hasattr(module, "RULES") or callable(getattr(module, "check", None))


def faults(module: ModuleType, *, ours: bool) -> Iterator[str]:
    """Why this module cannot be run as a rule; nothing where it can. Later checks rely on earlier ones."""
    if not hasattr(module, "RULE"):
        yield f"it has {'RULES' if hasattr(module, 'RULES') else 'check(run)'} and no RULE: one module is one rule"
    rule = module.RULE
    if type(rule) is not Rule:  # one of a class below it may be different at each look
        yield "RULE is not a dptune.Rule"
    yield from _texts(rule, "RULE", ("code", "name", "family", "summary", "since"))
    if not CODE.match(rule.code):
        yield f"'{rule.code}' is not a rule code: capital letters, then at least three digits"
    if _OF_DPTUNE.match(rule.code) and not ours:
        yield f"'{rule.code}' is a code of dptune's own rules: begin it with other letters than DP"
    if not NAME.match(rule.name):
        yield f"'{rule.name}' is not the name of a rule: small letters and digits, in words joined by hyphens"
    if rule.kind not in get_args(Kind):
        yield f"RULE.kind is none of {', '.join(get_args(Kind))}"
    if rule.needs not in get_args(Needs):
        yield "RULE.needs is neither '' nor 'recording'"
    if not isinstance(rule.preview, bool):
        yield "RULE.preview is neither True nor False"
    yield from _thresholds(rule)
    if not callable(getattr(module, "check", None)):
        yield "it has no check(run)"
    if not isinstance(module.__doc__, str | None):
        yield "its docstring is not text"


def _thresholds(rule: Rule) -> Iterator[str]:
    if type(rule.thresholds) is not tuple or any(type(entry) is not Threshold for entry in rule.thresholds):
        yield "RULE.thresholds is not a tuple of Threshold"
    for threshold in rule.thresholds:
        yield from _texts(threshold, "Threshold", ("name", "reason"))
        number = isinstance(threshold.default, int | float) and not isinstance(threshold.default, bool)
        if not number or not isfinite(threshold.default):
            yield f"the default of its threshold '{threshold.name}' is not a finite number"
    for name, times in Counter(entry.name for entry in rule.thresholds).items():
        if times > 1:
            yield f"{times} of its thresholds are called '{name}'"


def _texts(declaration: Rule | Threshold, kind: str, names: tuple[str, ...]) -> Iterator[str]:
    for name in names:
        if not isinstance(getattr(declaration, name), str):
            yield f"{kind}.{name} is not text but of type {type(getattr(declaration, name)).__name__}"
