r"""Read and rewrite a script; every character outside of an edit stays unchanged.

`ast` gives the meaning, libcst the positions, the scopes and the rewritten text. Of a few scripts libcst keeps not
every character (a form feed or a backslash that begins a line, a last line ended by \r), so only the lines between the
first and the last character that a rewrite changes are taken from it, and the result is parsed again and compared.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
import warnings
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, reduce
from typing import Any

import libcst as cst
from libcst.metadata import MetadataWrapper, ParentNodeProvider, PositionProvider, Scope, ScopeProvider

_LINE_END = re.compile(r"\r\n?|\n")
_MOST_OPERANDS = 1000  # of one `or`: libcst nests them, and its parser has no limit but the stack's
_BY_HAND = "the file cannot be edited safely: edit it by hand"

Edit = Callable[[Any], cst.CSTNode]
Undo = Callable[[], None]
Place = tuple[int, int]  # line from 1, column in characters from 0: as Python counts them, in the script itself


class EditError(Exception):
    """Why a script cannot be edited: one sentence."""


class AlreadyMadeError(EditError):
    """The script has the change already."""


class Source:
    """A script, its syntax tree and its concrete syntax tree; raises EditError where it is not one.

    `data` and `tree` are the script with the edits made so far; nodes and places are those of the script as it was.
    """

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.tree = _parsed(data)
        self._encoding = _encoding_of(data)
        try:
            self._text = data.decode(self._encoding)
            if self._text.encode(self._encoding) != data or _nests_too_deeply(self.tree):
                raise EditError(_BY_HAND)
            self._wrapper = MetadataWrapper(cst.parse_module(self._text), unsafe_skip_copy=True)
            self.module, self._code = self._wrapper.module, self._wrapper.module.code
            self._positions = self._wrapper.resolve(PositionProvider)
        except (ValueError, LookupError, RecursionError, cst.ParserSyntaxError) as error:
            raise EditError(_BY_HAND) from error
        self._offsets = _aligned(self._code, self._text)
        self._line_starts, self._code_starts = _line_starts(self._text), _line_starts(self._code)
        self._edits: dict[cst.CSTNode, list[Edit]] = {}

    def calls(self) -> list[cst.Call]:
        """All calls of the script."""
        return [node for node in self._positions if isinstance(node, cst.Call)]

    def begin(self, node: cst.CSTNode) -> Place:
        """Where the node begins, without the blank lines and comments above it."""
        start = self._positions[node].start
        return self._place(start.line, start.column)

    def end(self, node: cst.CSTNode) -> Place:
        """Where the node ends."""
        end = self._positions[node].end
        return self._place(end.line, end.column)

    def place(self, node: ast.expr | ast.stmt) -> Place:
        """Where a node of the syntax tree begins."""
        return self._in_characters(node.lineno, node.col_offset)

    def in_tree(self, call: cst.Call) -> ast.Call | None:
        """The call in the syntax tree; None where Python does not say where that is (in some f-strings)."""
        span = self.begin(call), self.end(call)
        calls = (node for node in ast.walk(self.tree) if isinstance(node, ast.Call) and node.lineno == span[0][0])
        return next((node for node in calls if (self.place(node), self._end_of(node)) == span), None)

    def attribute(self, node: ast.Attribute) -> cst.Attribute | None:
        """An attribute of the syntax tree; None where Python does not say where that is."""
        span = self.place(node), self._end_of(node)
        found = (place for place in self._positions if isinstance(place, cst.Attribute))
        return next((place for place in found if (self.begin(place), self.end(place)) == span), None)

    def statement(self, node: ast.stmt) -> cst.CSTNode | None:
        """The line, or the compound statement, that begins where a statement of the syntax tree does."""
        kinds = (cst.SimpleStatementLine, cst.BaseCompoundStatement)
        place = self.place(node)
        return next(
            (position for position in self._positions if isinstance(position, kinds) and self.begin(position) == place),
            None,
        )

    def parent(self, node: cst.CSTNode) -> cst.CSTNode:
        """The node that holds this one."""
        parent: cst.CSTNode = self._parents[node]
        return parent

    def scope(self, node: cst.CSTNode) -> Scope:
        """The scope whose names the node sees."""
        while (scope := self._scopes.get(node)) is None:
            node = self._parents[node]
        return scope

    def edited(self, call: cst.Call) -> cst.Call:
        """The call with the edits of it made so far."""
        edited = reduce(lambda node, edit: edit(node), self._edits.get(call, ()), call)
        assert isinstance(edited, cst.Call)
        return edited

    def edit(self, edits: Mapping[cst.CSTNode, Edit], mean: Callable[[], Undo], unsafe: str) -> None:
        """Edit these nodes; raises EditError with `unsafe` where the script is not then what `mean` makes of `tree`.

        `mean` returns what takes that back.
        """
        edits_so_far = {
            node: [*self._edits.get(node, ()), *filter(None, [edits.get(node)])] for node in {**self._edits, **edits}
        }
        try:
            module = self.module.visit(_Edits(edits_so_far))
            assert isinstance(module, cst.Module)
            data = self._spliced(module.code).encode(self._encoding)
            after = ast.dump(_parsed(data))
        except (ValueError, LookupError, RecursionError, EditError, cst.CSTValidationError) as error:
            raise EditError(unsafe) from error
        undo = mean()
        if ast.dump(self.tree) != after:
            undo()
            raise EditError(unsafe)
        self._edits, self.data = edits_so_far, data

    @cached_property
    def _scopes(self) -> Mapping[cst.CSTNode, Scope | None]:
        return self._resolved(ScopeProvider)

    @cached_property
    def _parents(self) -> Mapping[cst.CSTNode, cst.CSTNode]:
        return self._resolved(ParentNodeProvider)

    def _resolved(self, provider: Any) -> Mapping[cst.CSTNode, Any]:
        try:
            found: Mapping[cst.CSTNode, Any] = self._wrapper.resolve(provider)
        except RecursionError as error:
            raise EditError(_BY_HAND) from error
        return found

    def _end_of(self, node: ast.expr) -> Place:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._in_characters(node.end_lineno, node.end_col_offset)

    def _in_characters(self, line: int, column: int) -> Place:
        """The place for a column of the syntax tree, which is in bytes of UTF-8."""
        start = self._line_starts[line - 1]
        row = self._text[start : start + column]  # has no fewer characters than that
        return line, len(row.encode()[:column].decode(errors="replace"))

    def _spliced(self, code: str) -> str:
        """The text with what differs between the module's code and `code`."""
        begin = _common(self._code, code)
        kept = _common(self._code[begin:][::-1], code[begin:][::-1])
        end = len(self._code) - kept
        first, last = self._offsets[begin], self._offsets[end]
        if self._text[first:last] != self._code[begin:end]:
            raise EditError(_BY_HAND)
        return self._text[:first] + code[begin : len(code) - kept] + self._text[last:]

    def _place(self, line: int, column: int) -> Place:
        offset = self._offsets[self._code_starts[line - 1] + column]
        line = bisect_right(self._line_starts, offset)
        return line, offset - self._line_starts[line - 1]


class _Edits(cst.CSTTransformer):
    def __init__(self, edits: Mapping[cst.CSTNode, Sequence[Edit]]) -> None:
        super().__init__()
        self._edits = edits

    def on_leave(self, original_node: cst.CSTNode, updated_node: cst.CSTNode) -> cst.CSTNode:  # type: ignore[override]
        return reduce(lambda node, edit: edit(node), self._edits.get(original_node, ()), updated_node)


def _parsed(data: bytes) -> ast.Module:
    """The syntax tree; raises EditError where it is no program."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an escape in a string that Python does not know is not our business
            return ast.parse(data)
    except SyntaxError as error:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        where = f" (line {error.lineno})" if error.lineno else ""
        newer = "; if the script needs a newer Python, run dptune with it" if where and _is_newer(data) else ""
        raise EditError(f"the file is not valid Python {version}: {error.msg}{where}{newer}") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise EditError("the file cannot be parsed") from error


def _is_newer(data: bytes) -> bool:
    """Whether it may be of a Python that is newer than this one."""
    if data.count(b"(") + data.count(b"[") + data.count(b"{") > _MOST_OPERANDS:  # may be nested without a limit
        return False
    try:
        cst.parse_module(data)
    except Exception:
        return False
    return True


def _encoding_of(data: bytes) -> str:
    """As the file declares it; "utf-8-sig" for one with a byte order mark, which that puts back."""
    try:
        lines = io.BytesIO(data.replace(b"\r\n", b"\n").replace(b"\r", b"\n"))
        return tokenize.detect_encoding(lines.readline)[0]
    except SyntaxError as error:
        raise EditError(f"the file's encoding is unknown: {error.msg}") from error


def _nests_too_deeply(tree: ast.Module) -> bool:
    return any(isinstance(node, ast.BoolOp) and len(node.values) > _MOST_OPERANDS for node in ast.walk(tree))


def _aligned(code: str, text: str) -> range | list[int]:
    """Where each character of `code` is in `text`, which has more of them; raises EditError where it has fewer."""
    if code == text:
        return range(len(text) + 1)
    offsets, at = [], 0
    for character in code:
        at = text.find(character, at) + 1
        if not at:
            raise EditError(_BY_HAND)
        offsets.append(at - 1)
    return [*offsets, at]


def _common(first: str, second: str) -> int:
    """How many characters two texts have in common at their begin."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((at for at, (character, other) in pairs if character != other), min(len(first), len(second)))


def _line_starts(text: str) -> list[int]:
    return [0, *(end.end() for end in _LINE_END.finditer(text))]
