"""Micro-batches put into `no_sync`, but for the last of each optimizer step: what is unsure is refused."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from itertools import islice

import libcst as cst

from dptune.patch.loop import MicroBatch, micro_batch
from dptune.patch.source import EditError, Source

_MODULE = "contextlib"
_BY_HAND = "are written in a way that cannot be edited safely: do it by hand"
_CONTINUED = re.compile(r"\\(\r\n?|\n)")


def in_no_sync(source: Source, line: int) -> bytes:
    """The script with forward and backward pass, called on that line, in a `with`; encoding and line ends stay.

    What the `with` needs is not imported yet: `imported` does that, once the lines of other edits need not be found
    any more. Raises EditError with a sentence where the loop around that line is of no shape that is known.
    """
    found = micro_batch(source, line)
    item = ast.withitem(_context(found))
    inner = found.block[found.first : found.last + 1]
    unsafe = f"lines {inner[0].lineno} to {inner[-1].end_lineno} {_BY_HAND}"

    def module() -> cst.Module:
        block, lines = _lines_of(source, inner)
        nested = _nested(source, cst.parse_expression(ast.unparse(item)), lines)
        begin = block.body.index(lines[0])
        body = [*block.body[:begin], nested, *block.body[begin + len(lines) :]]
        nodes: dict[cst.CSTNode, cst.CSTNode] = {block: block.with_changes(body=body)}
        for loop, number in found.counted:
            nodes.update(_counted(source, loop, number))
        return source.replaced(nodes)

    def is_meant(after: ast.Module) -> bool:
        found.block[found.first : found.last + 1] = [ast.With([item], inner)]
        for loop, number in found.counted:
            loop.target = ast.Tuple([ast.Name(number, ast.Store()), loop.target], ast.Store())
            loop.iter = ast.Call(ast.Name("enumerate", ast.Load()), [loop.iter], [])
        return ast.dump(after) == ast.dump(source.tree)

    return source.rewritten(module, is_meant, unsafe)


def imported(source: Source) -> bytes:
    """The script with the import of what `in_no_sync` needs, among its others, where it has none."""
    tree, module = source.tree, source.module
    names = [name for one in tree.body if isinstance(one, ast.Import) for name in one.names]
    if any(name.name == _MODULE and not name.asname for name in names):
        return source.data
    rest = iter(tree.body)
    lines = [list(islice(rest, len(_small(line)))) for line in module.body]
    first = next((at for at, line in enumerate(lines) if any(map(_is_import, line))), None)
    if first is None:
        raise EditError("the file has no imports, to which another could be added")
    at = first if _is_import(lines[first][0]) else first + 1  # a docstring is the first statement of all
    while at < len(lines) and all(isinstance(one, ast.Import) and one.names[0].name < _MODULE for one in lines[at]):
        at += 1

    def with_import() -> cst.Module:
        body = list(module.body)
        ended = cst.TrailingWhitespace(newline=_newline(body[max(at - 1, first)]))
        name = cst.ImportAlias(cst.Name(_MODULE))
        added = cst.SimpleStatementLine([cst.Import([name])], trailing_whitespace=ended)
        if at == first:  # what is written above the imports stays there
            added = added.with_changes(leading_lines=body[at].leading_lines)
            body[at] = body[at].with_changes(leading_lines=[])
        return module.with_changes(body=[*body[:at], added, *body[at:]])

    def is_meant(after: ast.Module) -> bool:
        tree.body.insert(sum(map(len, lines[:at])), ast.Import([ast.alias(_MODULE)]))
        return ast.dump(after) == ast.dump(tree)

    return source.rewritten(with_import, is_meant, f"the imports {_BY_HAND}")


def _lines_of(source: Source, statements: Sequence[ast.stmt]) -> tuple[cst.IndentedBlock, list[cst.CSTNode]]:
    """The block of these statements, and its lines that hold them and nothing else; raises EditError without such."""
    begin = source.statement(statements[0])
    block = None if begin is None else source.parent(begin)
    if begin is None or not isinstance(block, cst.IndentedBlock):
        raise EditError(_BY_HAND)
    lines: list[cst.CSTNode] = []
    for line in block.body[block.body.index(begin) :]:
        if sum(len(_small(one)) for one in lines) == len(statements):
            break
        lines.append(line)
    if sum(len(_small(one)) for one in lines) != len(statements):
        raise EditError(_BY_HAND)
    return block, lines


def _nested(source: Source, item: cst.BaseExpression, lines: Sequence[cst.CSTNode]) -> cst.With:
    """The lines in a `with`; what is written above the first of them stays above it."""
    first, *others = (line.visit(_Deeper(source.module.default_indent)) for line in lines)
    body = cst.IndentedBlock(
        [first.with_changes(leading_lines=[]), *others], header=cst.TrailingWhitespace(newline=_newline(lines[0]))
    )
    return cst.With([cst.WithItem(item)], body, leading_lines=first.leading_lines)


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


def _counted(source: Source, loop: ast.For, number: str) -> dict[cst.CSTNode, cst.CSTNode]:
    """What becomes of a loop's target and of what it goes over, so that it counts."""
    there = source.statement(loop)
    if not isinstance(there, cst.For):
        raise EditError(_BY_HAND)
    over, target = there.iter, there.target
    if isinstance(over, cst.Tuple) and not over.lpar:
        over = over.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    if isinstance(target, cst.Tuple) and not target.lpar:
        target = target.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    pair = cst.Tuple([cst.Element(cst.Name(number), comma), cst.Element(target)], lpar=[], rpar=[])
    return {there.iter: cst.Call(cst.Name("enumerate"), [cst.Arg(over)]), there.target: pair}


def _small(line: cst.CSTNode) -> Sequence[cst.CSTNode]:
    """The statements of a line, of which a semicolon makes several; a compound statement alone."""
    return line.body if isinstance(line, cst.SimpleStatementLine) else [line]


def _newline(line: cst.CSTNode) -> cst.Newline:
    """How a line is ended, or the first of a compound statement."""
    whitespace = line.trailing_whitespace if isinstance(line, cst.SimpleStatementLine) else line.body.header
    return whitespace.newline


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
