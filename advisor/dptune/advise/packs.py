"""Rule packs: packages registered under the entry point `dptune.rules`, whose modules with a `RULE` are rules.

The rules that come with dptune are such a pack too. A pack or module that cannot be used is named and left out; the
others run.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import importlib.metadata
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import ModuleType

from dptune.advice import Advice
from dptune.errors import UsageError
from dptune.rule import Rule, RunView

GROUP = "dptune.rules"
CODE = re.compile(r"^[A-Z]{2,}[0-9]{3,}$")


@dataclass(frozen=True)
class LoadedRule:
    """A rule, its check, the docstring its page is made from, and where it came from."""

    rule: Rule
    check: Callable[[RunView], Iterable[Advice]]
    doc: str
    module: str
    pack: str


@dataclass(frozen=True)
class Survey:
    """Every rule that can be run, in the order of their codes, and what could not be used, one sentence each."""

    rules: list[LoadedRule]
    problems: list[str]


def survey() -> Survey:
    """Look through every installed pack. Never raises for a broken one."""
    loaded: dict[str, LoadedRule] = {}
    problems: list[str] = []
    for point in sorted(importlib.metadata.entry_points(group=GROUP), key=_dptune_first):
        pack = f"{point.dist.name} {point.dist.version}" if point.dist else point.name
        for module in _modules(point.value, f"rule pack '{point.name}' ({pack})", problems):
            if not hasattr(module, "RULE"):
                continue
            fault = _fault(module)
            if fault:
                problems.append(f"{module.__name__} ({pack}) is left out: {fault}")
                continue
            found = LoadedRule(module.RULE, module.check, module.__doc__ or "", module.__name__, pack)
            first = loaded.setdefault(found.rule.code, found)
            if first.module != found.module:
                problems.append(
                    f"{found.module} ({pack}) is left out: {first.module} is rule {first.rule.code} already"
                )
    return Survey([loaded[code] for code in sorted(loaded)], problems)


def load_packs() -> list[LoadedRule]:
    """Every rule that can be run, in the order of their codes. `problems()` says what was left out."""
    return survey().rules


def problems() -> list[str]:
    """What of the installed packs could not be used, one sentence each."""
    return survey().problems


def find_rule(code: str) -> LoadedRule:
    """The rule of that code or name, in any case; raises UsageError naming the nearest one."""
    rules = load_packs()
    wanted = code.casefold()
    for loaded in rules:
        if wanted in (loaded.rule.code.casefold(), loaded.rule.name.casefold()):
            return loaded
    names = {name.casefold(): name for loaded in rules for name in (loaded.rule.code, loaded.rule.name)}
    near = difflib.get_close_matches(wanted, names, n=1)
    known = ", ".join(loaded.rule.code for loaded in rules)
    raise UsageError(
        f"there is no rule '{code}'", f"did you mean '{names[near[0]]}'?" if near else f"rules: {known or 'none'}"
    )


def _dptune_first(point: importlib.metadata.EntryPoint) -> tuple[bool, str, str]:
    """Of two rules with one code ours is kept; between others the order is by name, the same everywhere."""
    distribution = point.dist.name if point.dist else ""
    return distribution != "dptune", distribution, point.name


def _modules(name: str, pack: str, problems: list[str]) -> Iterator[ModuleType]:
    """The module called `name` and, where it is a package, every module below it."""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            module = importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        problems.append(f"{pack}: {name} is left out: {type(error).__name__}: {error}")
        return
    yield module
    for child in pkgutil.iter_modules(getattr(module, "__path__", ())):
        yield from _modules(f"{name}.{child.name}", pack, problems)


def _fault(module: ModuleType) -> str:
    """Why this module cannot be run as a rule; empty where it can."""
    if not isinstance(module.RULE, Rule):
        return "RULE is not a dptune.Rule"
    if not CODE.match(module.RULE.code):
        return f"'{module.RULE.code}' is not a rule code: capital letters, then at least three digits"
    if not callable(getattr(module, "check", None)):
        return "it has no check(run)"
    return ""
