"""Advice as a unified diff of the user's script: set an argument in the call that the facts name.

Of the changes without a call argument, micro-batches are wrapped in `no_sync`, and dtypes are set in the policy of
`fully_shard`; the others (a line at the start) remain text to paste. So does every change that cannot be made safely.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from dptune.advice import Change, Location
from dptune.knobs import Value
from dptune.knobs.patched import BLOCKS, DDP, OFFLOAD, WITHIN_HOSTS, WRAPPER
from dptune.patch.argument import argument_of, set_argument
from dptune.patch.callers import caller_of
from dptune.patch.larger_units import set_blocks_per_unit
from dptune.patch.no_sync import import_contextlib, put_in_no_sync
from dptune.patch.policy import DTYPE_OF, set_dtype
from dptune.patch.recomputing import remove_checkpoints
from dptune.patch.shard_options import set_offload, set_within_hosts
from dptune.patch.source import AlreadyMadeError, EditError, Source
from dptune.patch.to_ddp import replicate, sharding_function
from dptune.patch.to_fsdp import add_checkpoints, shard


@dataclass(frozen=True)
class Unpatched:
    """A change without a patch, and why."""

    change: Change
    why: str


class Patches(NamedTuple):
    """One diff of all files, the changes it leaves out, and the expressions that it replaces by values."""

    diff: str
    left_out: list[Unpatched]
    taken_out: list[str]


def patches(changes: Sequence[Change], root: Path) -> Patches:
    """The changes as a diff with paths below `root`, where the script was started."""
    return _made(changes, root)[0]


def patched(changes: Sequence[Change], root: Path) -> tuple[dict[str, bytes], frozenset[str]]:
    """The patched files by their path below `root`, and the knobs whose changes are all included.

    If the diff leaves out one change of a knob, all changes of this knob are left out.
    """
    made, files = _made(changes, root)
    left = {unpatched.change.knob for unpatched in made.left_out}
    whole = [change for change in changes if change.knob not in left]
    if left:
        files = _made(whole, root)[1]
    return files, frozenset(change.knob for change in whole if files)


def already_made(changes: Sequence[Change], root: Path) -> bool:
    """Whether the files below `root` have all of the changes."""
    return bool(changes) and all(_is_made(change, root) for change in changes)


def _is_made(change: Change, root: Path) -> bool:
    try:
        path = root / _below(root, change.at.file) if change.at else root
        if change.at and path.is_file():
            _edit(Source(path.read_bytes()), change.at.line, change)
    except AlreadyMadeError:
        return True
    except (EditError, OSError):
        pass
    return False


def _edit(source: Source, line: int, change: Change, caller: Source | None = None) -> str | None:
    """Make the change there, and in the file that calls its function; the expression that a value replaces, if any."""
    if _wraps(change):
        put_in_no_sync(source, line)
        return None
    if _replicates(change):
        replicate(source, caller)
        return None
    if (edit := _STRUCTURAL.get((change.knob, change.then))) is not None:
        edit(source, change)
        return None
    if change.knob in _OPTIONS:
        _OPTIONS[change.knob](source, change)
        return None
    if change.knob == BLOCKS.name:
        set_blocks_per_unit(source, line, change)
        return None
    if change.knob in DTYPE_OF:
        set_dtype(source, line, change)
        return None
    return set_argument(source, line, change)


_STRUCTURAL: dict[tuple[str, Value], Callable[[Source, Change], None]] = {
    ("wrapper", "fsdp"): shard,
    ("memory.checkpointing", False): lambda source, _: remove_checkpoints(source),
    ("memory.checkpointing", True): add_checkpoints,
}

_OPTIONS: dict[str, Callable[[Source, Change], None]] = {
    WITHIN_HOSTS.name: set_within_hosts,
    OFFLOAD.name: set_offload,
}


def _is_structural(change: Change) -> bool:
    """Whether it replaces statements of the script."""
    return _replicates(change) or (change.knob, change.then) in _STRUCTURAL or change.knob in (BLOCKS.name, *_OPTIONS)


def _replicates(change: Change) -> bool:
    return (change.knob, change.then) == (WRAPPER.name, DDP)


def _made(changes: Sequence[Change], root: Path) -> tuple[Patches, dict[str, bytes]]:
    whys: dict[int, str] = {}
    taken_out: list[str] = []
    by_file: dict[str, list[tuple[int, Location, Change]]] = {}
    for number, change in enumerate(changes):
        try:
            if not _wraps(change) and not _is_structural(change) and change.knob not in DTYPE_OF:
                argument_of(change)
            if change.at is None:
                raise EditError("the line that creates it is unknown")
            by_file.setdefault(_below(root, change.at.file), []).append((number, change.at, change))
        except EditError as error:
            whys[number] = str(error)
    files: dict[str, bytes] = {}
    diff = "".join(_patch(root, file, asked, whys, taken_out, files) for file, asked in by_file.items())
    left_out = [Unpatched(changes[number], why) for number, why in sorted(whys.items())]
    return Patches(diff, left_out, taken_out), files


def _below(root: Path, name: str) -> str:
    """The file's name as a diff writes it; raises EditError for names that `patch` and `git apply` do not accept."""
    try:
        if not name.isprintable():
            raise EditError("its file name cannot be written in a diff")
        file = (root / name).resolve().relative_to(root.resolve()).as_posix()  # they write through no link
    except (OSError, RuntimeError) as error:
        raise EditError(f"cannot read {root / name}: {error}") from error
    except ValueError as error:
        raise EditError(f"{name} is outside of {root.resolve()}, and a diff can only name files below it") from error
    if not file.isprintable() or '"' in file or "\\" in file:
        raise EditError("its file name cannot be written in a diff")
    return file


def _patch(
    root: Path,
    file: str,
    asked: list[tuple[int, Location, Change]],
    whys: dict[int, str],
    taken_out: list[str],
    files: dict[str, bytes],
) -> str:
    """The diff of one file; fills `files` with its content, `whys` with what is left out, and `taken_out`."""
    if (root / file).exists() and not (root / file).is_file():  # reading a pipe or a device may never end
        whys.update({number: f"cannot read {root / file}: it is not a regular file" for number, _, _ in asked})
        return ""
    if file in files:
        whys.update({number: f"another change edits {file}: make one of them first" for number, _, _ in asked})
        return ""
    try:
        before = (root / file).read_bytes()
    except OSError as error:
        whys.update({number: f"cannot read {root / file}: {error.strerror}" for number, _, _ in asked})
        return ""
    try:
        source = Source(before)
    except EditError as error:
        whys.update({number: str(error) for number, _, _ in asked})
        return ""
    done: dict[tuple[str, int], Change] = {}
    other, caller_before, caller = "", b"", None
    for number, at, change in sorted(
        asked, key=lambda entry: (_is_structural(entry[2]), _wraps(entry[2]))
    ):  # arguments first: they decide how to wrap
        first = done.get((change.knob, at.line))
        if first is not None and first.then == change.then:  # two of them, made in turn by one line
            continue
        try:
            if first is not None:
                raise EditError(f"another recommendation sets it to {first.then} there, and only one of them can apply")
            if _replicates(change) and (function := sharding_function(source)):
                other, caller_before = caller_of(root, file, function)
                if other in files:
                    raise EditError(f"another change edits {other}, which calls `{function}`: make one of them first")
                caller = Source(caller_before) if other else None
            if there := _edit(source, at.line, change, caller):
                taken_out.append(f"{change.knob} in {at} was `{there}`, which no longer has an effect there")
            done[change.knob, at.line] = change
        except EditError as error:
            whys[number] = str(error)
    try:
        if any(map(_wraps, done.values())):
            import_contextlib(source)
        changed = {file: (before, source.data)}
        if caller is not None and any(map(_replicates, done.values())):
            changed[other] = (caller_before, caller.data)
        diff = "".join(_diff(name, *data) for name, data in changed.items())
        files.update({name: after for name, (data, after) in changed.items() if after != data})
        return diff
    except EditError as error:
        whys.update({number: str(error) for number, _, _ in asked if number not in whys})
    except UnicodeEncodeError:
        why = "the lines around it are not UTF-8, the encoding of the printed diff"
        whys.update({number: why for number, _, _ in asked if number not in whys})
    return ""


def _wraps(change: Change) -> bool:
    """Whether it puts lines into a context manager."""
    return change.knob == "ddp.no_sync" and change.then is True


def _diff(file: str, before: bytes, after: bytes) -> str:
    """The unified diff, its lines ended as those of the file. Raises UnicodeEncodeError where they are not UTF-8."""
    name = f"{file}\t" if " " in file else file  # `patch` ends a name at a space, unless a tab comes after it
    lines = difflib.unified_diff(_lines(before), _lines(after), f"a/{name}", f"b/{name}")
    diff = "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
    diff.encode()
    return diff


def _lines(data: bytes) -> list[str]:
    r"""Lines as `patch` counts them: ended by \n and by nothing else."""
    *lines, last = data.decode(errors="surrogateescape").split("\n")
    return [f"{line}\n" for line in lines] + ([last] if last else [])
