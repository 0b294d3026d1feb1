"""Options that say what to change in a script from outside: `--set`, and `--apply` with what a report advised."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dptune.errors import UsageError
from dptune.knobs import Value, knob


def setting_arguments(parser: argparse._ArgumentGroup) -> None:
    """Declare the options."""
    words = "set a knob, like ddp.bucket_cap_mb=1 or env.OMP_NUM_THREADS=4; once for each (see `dptune rules knobs`)"
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="KNOB=VALUE", help=words)
    words = "set what the advice of a JSON report proposes (`dptune report --format json`)"
    parser.add_argument("--apply", dest="advised", type=Path, metavar="FILE", help=words)


def settings_of(args: argparse.Namespace) -> dict[str, Value]:
    """What is to be set, by the names of knobs. What --set says wins over what advice proposes."""
    found = {} if args.advised is None else advised(args.advised)
    return {**found, **parsed(args.settings)}


def parsed(words: Sequence[str]) -> dict[str, Value]:
    """Settings from `knob=value` words; raises UsageError on the first that is none, or that stands there twice."""
    found: dict[str, Value] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            raise UsageError(f"--set takes a knob and its value: '{word}'", "like --set ddp.bucket_cap_mb=1")
        if name in found:
            raise UsageError(f"{name} is set twice", "give it one value")
        found[name] = knob(name).parse(text)
    return found


def advised(path: Path) -> dict[str, Value]:
    """The changes that the advice of a report proposes; raises UsageError where two of them contradict each other."""
    found: dict[str, Value] = {}
    by: dict[str, str] = {}
    for rule, change in _changes(path):
        name, then = str(change["knob"]), change["then"]
        knob(name)
        if found.get(name, then) != then:
            raise UsageError(f"{by[name]} and {rule} of {path} propose two values for {name}", "choose by --set")
        found[name], by[name] = then, rule
    if not found:
        raise UsageError(f"{path} proposes no change", "it holds no advice, or only what cannot be set")
    return found


def _changes(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """Rule and change, of each change in a JSON report, or in a list of advice."""
    import json

    hint = "write one with: dptune report RUN --format json > FILE"
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", hint) from None
    except ValueError:
        raise UsageError(f"{path} is not a JSON report", hint) from None
    try:
        advice = told["advice"] if isinstance(told, dict) else told
        return [
            (str(one["rule"]), change) for one in advice for change in one["changes"] if {"knob", "then"} <= set(change)
        ]
    except (KeyError, TypeError):
        raise UsageError(f"{path} is not a JSON report: it has no list of advice", hint) from None
