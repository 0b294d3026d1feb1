"""Micro-batches put into `no_sync`, but for the last of each optimizer step: what is unsure is refused."""

from __future__ import annotations

import ast

from dptune.advise.edit_call import EditError
from dptune.advise.edit_loop import MicroBatch, micro_batch
from dptune.advise.edit_source import parsed, rewritten
from dptune.advise.edit_text import Text

_MODULE = "contextlib"
_BY_HAND = "are written in a way that cannot be edited safely: do it by hand"


def in_no_sync(source: bytes, line: int) -> bytes:
    """The program with forward and backward pass, called on that line, in a `with`; encoding and line ends stay.

    What the `with` needs is not imported yet: `imported` does that, once the lines of other edits need not be found
    any more. Raises EditError with a sentence where the loop around that line is of no shape that is known.
    """
    tree = parsed(source)
    found = micro_batch(tree, line)
    item = ast.withitem(_context(found))
    inner = found.block[found.first : found.last + 1]
    head, begin, end = f"with {ast.unparse(item)}:", inner[0].lineno, inner[-1].end_lineno or inner[-1].lineno

    def edit(text: Text) -> str:
        content = text.nested(head, begin, end)
        for loop, number in found.counted:  # above what was nested, from the inside out: each is still where it was
            content = Text(content).replaced(loop.iter, f"enumerate({ast.unparse(loop.iter)})")
            content = Text(content).replaced(loop.target, f"{number}, {ast.unparse(loop.target)}")
        return content

    def meant() -> ast.Module:
        found.block[found.first : found.last + 1] = [ast.With([item], inner)]
        for loop, number in found.counted:
            loop.target = ast.Tuple([ast.Name(number, ast.Store()), loop.target], ast.Store())
            loop.iter = ast.Call(ast.Name("enumerate", ast.Load()), [loop.iter], [])
        return tree

    return rewritten(source, edit, meant, f"lines {begin} to {end} {_BY_HAND}")


def imported(source: bytes) -> bytes:
    """The program with the import of what `in_no_sync` needs, among its others, where it has none."""
    tree = parsed(source)
    names = [name for one in tree.body if isinstance(one, ast.Import) for name in one.names]
    if any(name.name == _MODULE and not name.asname for name in names):
        return source
    at = next((at for at, one in enumerate(tree.body) if _is_import(one)), None)
    if at is None:
        raise EditError("the file has no imports, to which another could be added")
    line = tree.body[at].lineno
    while at < len(tree.body) and isinstance(one := tree.body[at], ast.Import) and one.names[0].name < _MODULE:
        at, line = at + 1, (one.end_lineno or one.lineno) + 1

    def meant() -> ast.Module:
        tree.body.insert(at, ast.Import([ast.alias(_MODULE)]))
        return tree

    return rewritten(source, lambda text: text.with_line(f"import {_MODULE}", line), meant, f"the imports {_BY_HAND}")


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
