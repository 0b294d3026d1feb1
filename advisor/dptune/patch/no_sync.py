"""Wrap micro-batches in `no_sync`, except the last of each optimizer step; unsafe edits are refused."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from functools import partial
from itertools import accumulate, islice
from typing import Any

import libcst as cst

from dptune.patch.loop import MicroBatch, micro_batch
from dptune.patch.source import Edit, EditError, Source, Undo

_MODULE = "contextlib"
_BY_HAND = "cannot be edited safely: edit them by hand"
_CONTINUED = re.compile(r"\\(\r\n?|\n)")


def put_in_no_sync(source: Source, line: int) -> None:
    """Wrap the forward and backward pass called on that line in a `with`.

    `import_contextlib` adds the import that the `with` needs. Raises EditError with a sentence if the loop around that
    line has no supported shape.
    """
    found = micro_batch(source, line)
    item = ast.withitem(_context(found))
    inner = found.block[found.first : found.last + 1]
    unsafe = f"lines {inner[0].lineno} to {inner[-1].end_lineno} {_BY_HAND}"
    block, begin, end = _lines_of(source, inner, unsafe)
    indentation = source.module.default_indent

    def nest(block: cst.IndentedBlock) -> cst.IndentedBlock:
        nested = _nested(cst.parse_expression(ast.unparse(item)), block.body[begin:end], indentation)
        return block.with_changes(body=[*block.body[:begin], nested, *block.body[end:]])

    edits: dict[cst.CSTNode, Edit] = {block: nest}
    for loop, number in found.counted:
        there = source.statement(loop)
        if there is None:
            raise EditError(unsafe)
        edits[there] = partial(_counting, number=number)

    def mean() -> Undo:
        before = [(loop, loop.target, loop.iter) for loop, _ in found.counted]
        found.block[found.first : found.last + 1] = [ast.With([item], inner)]
        for loop, number in found.counted:
            loop.target = ast.Tuple([ast.Name(number, ast.Store()), loop.target], ast.Store())
            loop.iter = ast.Call(ast.Name("enumerate", ast.Load()), [loop.iter], [])
        ast.fix_missing_locations(source.tree)

        def undo() -> None:
            found.block[found.first : found.first + 1] = inner
            for loop, target, over in before:
                loop.target, loop.iter = target, over

        return undo

    source.edit(edits, mean, unsafe)


def import_contextlib(source: Source) -> None:
    """Add the import that `put_in_no_sync` needs to the script's imports, unless it is there."""
    tree = source.tree
    names = [name for statement in tree.body if isinstance(statement, ast.Import) for name in statement.names]
    if any(name.name == _MODULE and not name.asname for name in names):
        return
    rest = iter(tree.body)
    lines = [list(islice(rest, len(_small(line)))) for line in source.module.body]
    first = next((at for at, line in enumerate(lines) if any(map(_is_import, line))), None)
    if first is None:
        raise EditError("the file has no imports to which contextlib could be added")
    at = first if _is_import(lines[first][0]) else first + 1  # a docstring is the first statement of all
    while at < len(lines) and all(
        isinstance(statement, ast.Import) and statement.names[0].name < _MODULE for statement in lines[at]
    ):
        at += 1
    place = sum(map(len, lines[:at]))

    def add(module: cst.Module) -> cst.Module:
        body = list(module.body)
        ended = cst.TrailingWhitespace(newline=_newline(body[max(at - 1, first)]))
        name = cst.ImportAlias(cst.Name(_MODULE))
        added = cst.SimpleStatementLine([cst.Import([name])], trailing_whitespace=ended)
        if at == first:  # what is written above the imports stays there
            added = added.with_changes(leading_lines=body[at].leading_lines)
            body[at] = body[at].with_changes(leading_lines=[])
        return module.with_changes(body=[*body[:at], added, *body[at:]])

    def mean() -> Undo:
        tree.body.insert(place, ast.Import([ast.alias(_MODULE)]))

        def undo() -> None:
            del tree.body[place]

        return undo

    source.edit({source.module: add}, mean, f"the imports {_BY_HAND}")


def _lines_of(source: Source, statements: Sequence[ast.stmt], unsafe: str) -> tuple[cst.IndentedBlock, int, int]:
    """The block of these statements, and the range of its lines with only them; raises EditError if there is none."""
    line = source.statement(statements[0])
    block = None if line is None else source.parent(line)
    if line is None or not isinstance(block, cst.IndentedBlock):
        raise EditError(unsafe)
    begin = block.body.index(line)
    ends = accumulate((len(_small(body_line)) for body_line in block.body[begin:]), initial=0)
    count = next((count for count, held in enumerate(ends) if held == len(statements)), None)
    if count is None:
        raise EditError(unsafe)
    return block, begin, begin + count


def _nested(item: cst.BaseExpression, lines: Sequence[Any], indentation: str) -> cst.With:
    """The lines in a `with`; comments and blank lines above the first line stay above the `with`."""
    first, *others = (line.visit(_Deeper(indentation)) for line in lines)
    body = [first.with_changes(leading_lines=[]), *others]
    header = cst.TrailingWhitespace(newline=_newline(lines[0]))
    return cst.With([cst.WithItem(item)], cst.IndentedBlock(body, header=header), leading_lines=first.leading_lines)


class _Deeper(cst.CSTTransformer):
    """Indents the lines that a backslash continues; libcst indents the others by their block."""

    def __init__(self, indentation: str) -> None:
        super().__init__()
        self._indentation = indentation

    def leave_SimpleWhitespace(  # noqa: N802
        self, original_node: cst.SimpleWhitespace, updated_node: cst.SimpleWhitespace
    ) -> cst.SimpleWhitespace:
        """With the indentation after each backslash."""
        return updated_node.with_changes(value=_CONTINUED.sub(rf"\g<0>{self._indentation}", updated_node.value))


def _counting(loop: cst.For, number: str) -> cst.For:
    """The loop with a counter."""
    comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    pair = [cst.Element(cst.Name(number), comma), cst.Element(_in_parentheses(loop.target))]
    over = cst.Call(cst.Name("enumerate"), [cst.Arg(_in_parentheses(loop.iter))])
    return loop.with_changes(target=cst.Tuple(pair, lpar=[], rpar=[]), iter=over)


def _in_parentheses(value: Any) -> Any:
    """A tuple that is written without parentheses, with them."""
    if isinstance(value, cst.Tuple) and not value.lpar:
        return value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    return value


def _small(line: cst.CSTNode) -> Sequence[cst.CSTNode]:
    """The statements of a line, of which a semicolon makes several; a compound statement alone."""
    return line.body if isinstance(line, cst.SimpleStatementLine) else [line]


def _newline(line: Any) -> cst.Newline:
    """How a line is ended, or the first of a compound statement."""
    whitespace = line.trailing_whitespace if isinstance(line, cst.SimpleStatementLine) else line.body.header
    newline: cst.Newline = whitespace.newline
    return newline


def _context(found: MicroBatch) -> ast.expr:
    """Nothing for the last micro-batch of a step, `no_sync` for the others."""
    test, name = found.is_last, ast.unparse(found.model)
    if found.wraps is not None:
        test = ast.BoolOp(ast.Or(), [test, _read(f"not isinstance({name}, {ast.unparse(found.wraps)})")])
    return ast.IfExp(test, _read(f"{_MODULE}.nullcontext()"), _read(f"{name}.no_sync()"))


def _read(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _is_import(statement: ast.stmt) -> bool:
    return isinstance(statement, (ast.Import, ast.ImportFrom)) and getattr(statement, "module", "") != "__future__"
