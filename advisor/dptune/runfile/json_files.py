"""Dataclasses to JSON files and back.

Writing is closed: a record holds its declared fields and nothing else. Reading ignores fields it does not know and
fills in those that a file of another version lacks, so that old and new runs compare; of a newer major version it
reads nothing, for what fields are called there may mean something else.
"""

from __future__ import annotations

import functools
import json
import math
import os
import re
import stat
import types
import typing
from collections.abc import Collection, Sequence
from dataclasses import MISSING, asdict, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from dptune.runfile.paths import LATEST

T = TypeVar("T")
_VERSION = re.compile("([0-9]{1,9})(?![0-9])")
_FORMER_VERSIONS = re.compile(r"0\.[12]")  # of files in which windows, and fields about them, had these names
_FORMER_WINDOWS = {"unprofiled": "untraced", "lean": "light", "rich": "detailed"}
_FORMER_KEY = re.compile("(unprofiled|lean|rich)(?![a-z])")
_IN_WORDS: dict[type, str] = {
    dict: "an object",
    list: "a list",
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
}


class NewerError(ValueError):
    """A file that a newer dptune wrote in another form."""


def refuse_newer(name: str, version: object, known: str) -> None:
    """Raise NewerError where the major part of a schema's version is above that of the one that is known."""
    theirs, ours = (_VERSION.match(str(schema_version)) for schema_version in (version, known))
    if theirs and ours and int(theirs[1]) > int(ours[1]):
        theirs_is = f"{name} has schema version {str(version)[:20]!r}"
        raise NewerError(f"{theirs_is}, but this version reads {ours[1]}.x: update dptune")


def with_todays_windows(data: dict[str, Any]) -> dict[str, Any]:
    """What a JSON file holds, with today's names of windows where its schema version is one that had others."""
    former = _FORMER_VERSIONS.fullmatch(str(data.get("schema_version")))
    return typing.cast(dict[str, Any], _renamed(data)) if former else data


def _renamed(data: Any) -> Any:
    if isinstance(data, dict):
        return {_FORMER_KEY.sub(lambda at: _FORMER_WINDOWS[at[1]], key): _renamed(item) for key, item in data.items()}
    if isinstance(data, list):
        return [_renamed(item) for item in data]
    return _FORMER_WINDOWS.get(data, data) if isinstance(data, str) else data


def text(record: Any) -> str:
    """A dataclass as JSON text."""
    return json.dumps(_plain(asdict(record)), indent=1, allow_nan=False) + "\n"


def write(path: Path, record: Any) -> None:
    """Write a dataclass as JSON, whole or not at all."""
    put(path, text(record))


def put(path: Path, content: str) -> None:
    """Write a file whole or not at all: a temporary name, then a rename, which follows no symbolic link."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        temporary.write_text(content, encoding="utf-8")
        os.replace(temporary, path)  # noqa: PTH105 - atomic on every platform
    finally:
        temporary.unlink(missing_ok=True)


def overwrite(path: Path, record: Any) -> None:
    """Write a dataclass over a file that is there, whose room is already taken; what was in it stays on an error."""
    data = text(record).encode()
    with open(os.open(path, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0)), "r+b", buffering=0) as sink:
        before = sink.read()
        written = 0
        try:
            sink.seek(0)
            written = sink.write(data)
        finally:
            if written < len(data):
                sink.seek(0)
                sink.write(before)
            sink.truncate(len(data) if written == len(data) else len(before))
    if written < len(data):
        raise OSError(f"{path.name} could not be overwritten")


def name_newest(runs: Path, folder: str) -> None:
    """Write `latest`, which names the newest of a folder of recordings; git leaves that out from its first one on."""
    latest = runs / LATEST
    if not latest.exists():
        leave_out_of_git(runs)
    put(latest, f"{folder}\n")


def leave_out_of_git(folder: Path) -> None:
    """Make `git status` pass over a folder and all in it, by a file in the folder."""
    put(folder / ".gitignore", "*\n")


def read(path: Path, record: type[T]) -> T:
    """Read a file that `write` wrote. Raises OSError, or ValueError with one sentence on what does not fit."""
    return _built(path, record, _data(path, record))


def built(record: type[T], data: Any) -> T:
    """A dataclass of what JSON has of it. Raises ValueError with one sentence on what does not fit."""
    return typing.cast(T, _build(record, data, ""))


def read_partly(
    path: Path, record: type[T], needed: Collection[str], lists: Collection[str]
) -> tuple[T, dict[str, str]]:
    """Read a file as `read` does, without what does not fit; by name the sentence on why.

    A field is left out whole, of `lists` only the items that do not fit. Those that are `needed` have to fit.
    """
    data = _data(path, record)
    try:
        return _built(path, record, data), {}
    except ValueError:
        if not isinstance(data, dict):
            raise
    fitting: dict[str, Any] = {}
    lost: dict[str, str] = {}
    hints = typing.get_type_hints(record)
    for name in [name for name in data if name in hints]:
        if name in lists and isinstance(data[name], list):
            items = {f"{name}[{at}]": item for at, item in enumerate(data[name])}
            (kind,) = typing.get_args(hints[name])
            unfit = {at: why for at, item in items.items() if (why := _misfit_of(kind, item, at))}
            fitting[name] = [item for at, item in items.items() if at not in unfit]
            lost |= unfit
        elif name not in needed and (why := _misfit_of(hints[name], data[name], name)):
            lost[name] = why
        else:
            fitting[name] = data[name]
    return _built(path, record, fitting), lost


def _built(path: Path, record: type[T], data: Any) -> T:
    try:
        return typing.cast(T, _build(record, data, ""))
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from None


def _misfit_of(kind: Any, data: Any, where: str) -> str:
    """The sentence on what does not fit; empty where it does."""
    try:
        _build(kind, data, where)
    except ValueError as error:
        return str(error)
    return ""


def _data(path: Path, record: type[Any]) -> Any:
    """What the JSON of a file holds, in the form of this version."""
    content = regular(path)
    try:
        data = json.loads(content)
    except RecursionError:
        raise ValueError(f"{path.name} is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{path.name} is not JSON: {error}") from None
    except ValueError:  # Python reads no whole number of more than 4,300 digits
        raise ValueError(f"{path.name} holds a number of thousands of digits") from None
    if isinstance(data, dict):
        refuse_newer(path.name, data.get("schema_version"), getattr(record, "schema_version", ""))
        data = with_todays_windows(data)
    return data


def regular(path: Path, most_bytes: int | None = None) -> str:
    """The text of a regular file. Raises OSError, or ValueError with one sentence on why it is not read."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):  # a pipe or a device: reading it may never end
        raise ValueError(f"{path.name} is not a regular file")
    if most_bytes is not None and found.st_size > most_bytes:
        raise ValueError(f"{path.name} is larger than {most_bytes / 2**20:g} MiB")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{path.name} is not text in UTF-8") from None


def _plain(value: Any) -> Any:
    """JSON has no infinities and no NaN, and one odd learning rate must not lose a recording: they become words."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _build(kind: Any, data: Any, where: str) -> Any:
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        if data is None:
            return None
        kinds = [a for a in typing.get_args(kind) if a is not type(None)]
        if len(kinds) == 1:
            return _build(kinds[0], data, where)
        if not isinstance(data, tuple(kinds)):
            raise _misfit(where, kinds, data)
        return data
    if is_dataclass(kind):
        if not isinstance(data, dict):
            raise _misfit(where, [dict], data)
        hints = _hints(typing.cast(type, kind))
        for field in fields(kind):
            if field.name not in data and field.default is MISSING and field.default_factory is MISSING:
                raise ValueError(f"{f'`{where}`' if where else 'it'} has no `{field.name}`")
        named = [f.name for f in fields(kind) if f.name in data]
        at = f"{where}." if where else ""
        return typing.cast(Any, kind)(**{n: _build(hints[n], data[n], f"{at}{n}") for n in named})
    if origin is list:
        if not isinstance(data, list):
            raise _misfit(where, [list], data)
        return [_build(typing.get_args(kind)[0], item, f"{where}[{i}]") for i, item in enumerate(data)]
    if origin is dict:
        if not isinstance(data, dict):
            raise _misfit(where, [dict], data)
        return {key: _build(typing.get_args(kind)[1], item, f"{where}.{key}") for key, item in data.items()}
    if kind is float and data in ("inf", "-inf", "nan"):
        return float(data)
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        return _float(data, where)
    if kind in (int, float, str, bool) and (not isinstance(data, kind) or (kind is int and isinstance(data, bool))):
        raise _misfit(where, [kind], data)
    return data


def _float(number: int, where: str) -> float:
    try:
        return float(number)
    except OverflowError:
        raise ValueError(f"`{where}` is a number with hundreds of digits") from None


def _misfit(where: str, kinds: Sequence[type], data: Any) -> ValueError:
    """One sentence on a value that is of another type than it has to be."""
    wanted = " or ".join(_IN_WORDS[kind] for kind in kinds)
    found = _IN_WORDS[type(data)] if isinstance(data, (dict, list)) else f"{json.dumps(data):.40}"
    return ValueError(f"{f'`{where[:80]}`' if where else 'it'} must be {wanted}, but is {found}")
