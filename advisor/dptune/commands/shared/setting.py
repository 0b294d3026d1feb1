"""Options that say what to change in a script from outside: `--set`, and `--apply` with what a report advised."""

from __future__ import annotations

import argparse
import re
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dptune.errors import UsageError
from dptune.knobs import PATCHED, Knob, Value, knob, written

LARGEST_BYTES = 64 * 2**20
_LONGEST_SHOWN = 60
_OPENED = re.compile(r"/dev/(?:stdin|fd/\d+)|/proc/self/fd/\d+")
_WRITTEN = "write one with: dptune report RUN --format json > FILE"


def setting_arguments(parser: argparse._ArgumentGroup) -> None:
    """Declare the options."""
    words = "set a knob, e.g. ddp.bucket_cap_mb=1 or env.OMP_NUM_THREADS=4; repeatable (see `dptune rules knobs`)"
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="KNOB=VALUE", help=words)
    words = "apply the recommendations of a JSON report (`dptune report --format json`)"
    parser.add_argument("--apply", dest="advised", type=Path, metavar="FILE", help=words)


def settings_of(args: argparse.Namespace) -> dict[str, Value]:
    """What is to be set, by the names of knobs. What --set says wins over what advice proposes."""
    found = {} if args.advised is None else advised(args.advised)
    return {**found, **parsed(args.settings)}


def parsed(words: Sequence[str], named: Callable[[str], Knob] = knob) -> dict[str, Value]:
    """Settings from `knob=value` words; raises UsageError on the first that is none, or that stands there twice."""
    found: dict[str, Value] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            raise UsageError(f"--set takes a knob and its value: '{word}'", "like --set ddp.bucket_cap_mb=1")
        if name in found:
            raise UsageError(f"{name} is set twice", "give it one value")
        if named is knob and name in PATCHED:
            raise UsageError(
                f"{name} cannot be set from outside: only a patch of the script sets it",
                f"dptune verify --set {name}={text} runs a patched copy; dptune report --patch --set prints the diff",
            )
        found[name] = named(name).parse(text)
    return found


def advised(path: Path) -> dict[str, Value]:
    """The changes that the advice of a report proposes.

    Raises UsageError where two of them contradict each other, or one proposes what its knob cannot be.
    """
    found: dict[str, Value] = {}
    by: dict[str, str] = {}
    for rule, change in _changes(path):
        if isinstance(change["knob"], str) and change["knob"] in PATCHED:
            continue
        name, then = _checked(f"{rule} of {path}", change)
        if name in found and found[name] != then:
            raise UsageError(f"{by[name]} and {rule} of {path} propose two values for {name}", "choose one with --set")
        found[name], by[name] = then, rule
    if not found:
        raise UsageError(
            f"{path} proposes no change", "it has no recommendations, or none that can be set from outside"
        )
    return found


def _checked(by: str, change: dict[str, Any]) -> tuple[str, Value]:
    """Name and value of a change, as --set would take them. Raises UsageError that says by what it is proposed."""
    name, then = change["knob"], change["then"]
    if not isinstance(name, str) or not (then is None or isinstance(then, (bool, int, float, str))):
        raise UsageError(f"{by} proposes something that is not a setting: {_short(name)}={_short(then)}", _WRITTEN)
    try:
        return name, knob(name).parse(written(then))
    except UsageError as error:
        raise UsageError(f"{by} cannot be applied: {error.message}", error.hint) from None


def _short(value: object) -> str:
    text = "[...]" if isinstance(value, list) else "{...}" if isinstance(value, dict) else str(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


def _changes(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """Rule and change, of each change in a JSON report, or in a list of advice."""
    import json

    try:
        document = json.loads(_text(path))
    except RecursionError:
        raise UsageError(f"{path} is not a JSON report: it is nested too deeply", _WRITTEN) from None
    except ValueError:
        raise UsageError(f"{path} is not a JSON report", _WRITTEN) from None
    try:
        advice = document["advice"] if isinstance(document, dict) else document
        return [
            (str(entry["rule"]), {**change})
            for entry in advice
            for change in entry["changes"]
            if {"knob", "then"} <= {**change}.keys()
        ]
    except (KeyError, TypeError):
        raise UsageError(f"{path} is not a JSON report: it has no list `advice`", _WRITTEN) from None


def _text(path: Path) -> str:
    """What a file holds, or a pipe that the shell opened: `--apply <(dptune report --format json)`."""
    try:
        found = path.stat()
        if stat.S_ISDIR(found.st_mode):
            raise UsageError(f"cannot read {path}: it is a folder", _WRITTEN)
        if not stat.S_ISREG(found.st_mode) and not (stat.S_ISFIFO(found.st_mode) and _OPENED.fullmatch(str(path))):
            raise UsageError(f"cannot read {path}: it is not a file", _WRITTEN)  # it may never end
        with path.open("rb") as file:
            read = file.read(LARGEST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", _WRITTEN) from None
    if len(read) > LARGEST_BYTES:
        raise UsageError(f"{path} is not a JSON report: it holds more than {LARGEST_BYTES >> 20} MiB", _WRITTEN)
    return read.decode("utf-8")
