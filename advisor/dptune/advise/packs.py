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
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import ModuleType

from dptune.advice import Advice
from dptune.advise.declared import declares, faults
from dptune.errors import UsageError, described
from dptune.rule import Rule, RunView

GROUP = "dptune.rules"


@dataclass(frozen=True)
class LoadedRule:
    """A rule, its check, the docstring its page is made from, and where it came from. `ours`: it comes with dptune."""

    rule: Rule
    check: Callable[[RunView], Iterable[Advice]]
    doc: str
    module: str
    pack: str
    ours: bool = False


@dataclass(frozen=True)
class Survey:
    """Every rule that can be run, in the order of their codes, and what could not be used, one sentence each."""

    rules: list[LoadedRule]
    problems: list[str]

    @property
    def not_loaded(self) -> str:
        """The problems, to be added to a hint; empty where there are none."""
        return f" Packs that did not load: {'; '.join(self.problems)}" if self.problems else ""


def survey() -> Survey:
    """Look through every installed pack. Never raises for a broken one."""
    taken: dict[str, LoadedRule] = {}  # by code and by name
    problems: list[str] = []
    for point, distribution in _points(problems):
        pack, ours = distribution or point.name, _is_ours(distribution)
        title = f"rule pack '{point.name}' ({pack})"
        if not all(part.isidentifier() for part in point.value.split(".")):
            problems.append(f"{title} is left out: '{point.value}' is not the name of a module or package")
            continue
        for name, module in _modules(point.value, title, problems):
            try:
                if not declares(module):
                    continue
                why = next(faults(module, ours=ours), "")
                if not why:
                    why = _clash(LoadedRule(module.RULE, module.check, module.__doc__ or "", name, pack, ours), taken)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # what stands in for a module may raise anything
                why = described(error)
            if why:
                problems.append(f"{name} ({pack}) is left out: {why}")
    by_code = {loaded.rule.code: loaded for loaded in taken.values()}
    return Survey([by_code[code] for code in sorted(by_code)], problems)


def load_packs() -> list[LoadedRule]:
    """Every rule that can be run, in the order of their codes. `problems()` says what was left out."""
    return survey().rules


def problems() -> list[str]:
    """What of the installed packs could not be used, one sentence each."""
    return survey().problems


def find_rule(code: str) -> LoadedRule:
    """The rule of that code or name, in any case; raises UsageError naming the nearest one."""
    installed = survey()
    rules, wanted = installed.rules, code.casefold()
    for loaded in rules:
        if wanted in (loaded.rule.code.casefold(), loaded.rule.name.casefold()):
            return loaded
    names = {name.casefold(): name for loaded in rules for name in (loaded.rule.code, loaded.rule.name)}
    near = difflib.get_close_matches(wanted, names, n=1)
    hint = f"did you mean '{names[near[0]]}'?" if near else "`dptune rules list` lists the rules"
    raise UsageError(f"unknown rule '{code}'", f"{hint}{installed.not_loaded}")


def _points(problems: list[str]) -> list[tuple[importlib.metadata.EntryPoint, str]]:
    """With their distributions; ours first: of two rules with one code or name it is kept. The others by name."""
    try:
        found = [*importlib.metadata.entry_points(group=GROUP)]
    except Exception:  # those of some distribution cannot be read, and with them all
        found = []
        for package in importlib.metadata.distributions():
            try:
                found += package.entry_points.select(group=GROUP)
            except Exception as error:
                whose = _distribution(package) or "a distribution without a name"
                problems.append(f"the entry points of {whose} are left out: {described(error)}")

    def order(named: tuple[importlib.metadata.EntryPoint, str]) -> tuple[bool, str, str]:
        point, distribution = named
        return not _is_ours(distribution), distribution, point.name

    return sorted(((point, _distribution(point.dist)) for point in found), key=order)


def _distribution(found: importlib.metadata.Distribution | None) -> str:
    """Name and version; empty where its metadata do not tell. They are parsed anew each time they are asked for."""
    try:
        metadata = found.metadata if found else None
        return f"{metadata['Name']} {metadata['Version']}" if metadata and metadata["Name"] else ""
    except Exception:
        return ""


def _is_ours(distribution: str) -> bool:
    return distribution.startswith("dptune ")


def _clash(found: LoadedRule, taken: dict[str, LoadedRule]) -> str:
    """Which rule has its code or its name already, for a rule is found by either; where none has, they are taken."""
    for word in (found.rule.code, found.rule.name):
        first = taken.get(word.casefold(), found)
        if first.module != found.module:
            return f"{first.module} is rule {word} already"
    taken[found.rule.code.casefold()] = taken[found.rule.name.casefold()] = found
    return ""


def _modules(name: str, pack: str, problems: list[str]) -> Iterator[tuple[str, ModuleType]]:
    """The module called `name` and, where it is a package, every module below it, each with its name."""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            module = importlib.import_module(name)
            below = _below(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        problems.append(f"{pack}: {name} is left out: {described(error)}")
        return
    yield name, module
    for child in below:
        yield from _modules(f"{name}.{child}", pack, problems)


def _below(module: ModuleType) -> list[str]:
    """The modules of a package but for `__main__`, which is a program; raises where its `__path__` is no list."""
    folders = getattr(module, "__path__", ())
    if isinstance(folders, str | None) or not all(isinstance(folder, str) for folder in folders):
        raise TypeError("its __path__ is not a list of folders")
    return [child.name for child in pkgutil.iter_modules(folders) if child.name != "__main__"]
