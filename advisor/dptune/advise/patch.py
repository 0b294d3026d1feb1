"""Advice as a unified diff of the user's script: a keyword argument is set in the call that the facts name.

What a keyword cannot say (a context manager around micro-batches, a line at the start) stays text to paste.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dptune.advice import Change
from dptune.knobs import Value, knob


@dataclass(frozen=True)
class Unpatched:
    """A change without a patch, and why."""

    change: Change
    why: str


def patches(changes: Sequence[Change], root: Path) -> tuple[str, list[Unpatched]]:
    """One diff of all files, with paths below `root`, where the script was started; and what it leaves out."""
    texts: dict[str, str] = {}
    before: dict[str, str] = {}
    left: list[Unpatched] = []
    for change in changes:
        if change.at is None:
            left.append(Unpatched(change, "the line that makes it is not known"))
            continue
        file = change.at.file
        try:
            if file not in texts:
                texts[file] = before[file] = (root / file).read_text(encoding="utf-8")
            texts[file] = _changed(texts[file], change.at.line, change)
        except OSError as error:
            left.append(Unpatched(change, f"cannot read {root / file}: {error.strerror}"))
        except (ValueError, SyntaxError) as error:
            left.append(Unpatched(change, str(error)))
    return "".join(line for file in texts for line in _diff(file, before[file], texts[file])), left


def _changed(text: str, line: int, change: Change) -> str:
    """The text with the keyword of the call on that line set. Raises ValueError where there is no such call."""
    argument = knob(change.knob).argument
    if not argument:
        raise ValueError("it is not an argument of the call there")
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call) and node.lineno == line]
    if len(calls) > 1:  # DDP(Net(...)): the outermost was noted, as the one that begins first and ends last
        calls = [max(calls, key=lambda node: (node.end_lineno or 0, node.end_col_offset or 0))]
    if not calls:
        raise ValueError(f"line {line} makes nothing: the file has changed since")
    (call,) = calls
    value = _literal(change.then, argument)
    there = next((one for one in call.keywords if one.arg == argument), None)
    rows = text.splitlines(keepends=True)
    if there is not None:
        return _replaced(rows, _span(there.value), value)
    if any(one.arg is None for one in call.keywords):
        raise ValueError("the call takes its arguments from a dictionary")
    assert call.end_lineno is not None
    assert call.end_col_offset is not None
    end = (call.end_lineno, call.end_col_offset - 1)
    last = max((_span(one)[1] for one in [*call.args, *(word.value for word in call.keywords)]), default=None)
    if last is None:
        return _replaced(rows, (end, end), f"{argument}={value}")
    return _replaced(rows, (last, last), f", {argument}={value}")


Place = tuple[int, int]  # line from 1 on, bytes of UTF-8 before it in that line


def _span(node: ast.expr) -> tuple[Place, Place]:
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)


def _replaced(rows: list[str], span: tuple[Place, Place], new: str) -> str:
    (first, begin), (last, end) = span
    head = rows[first - 1].encode()[:begin].decode()
    tail = rows[last - 1].encode()[end:].decode()
    return "".join([*rows[: first - 1], head + new + tail, *rows[last:]])


def _literal(value: Value, argument: str) -> str:
    if argument.endswith("_list"):
        return f"[{value}]"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return repr(value)


def _diff(file: str, before: str, after: str) -> Iterator[str]:
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    for line in difflib.unified_diff(old, new, fromfile=f"a/{file}", tofile=f"b/{file}"):
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
