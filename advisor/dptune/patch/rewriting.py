"""Statements and expressions of a script replaced by others, in its text and in its syntax tree at once."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

import libcst as cst

from dptune.patch.argument import added_argument
from dptune.patch.call import calls_of
from dptune.patch.source import Edit, EditError, Source, Undo

_BY_HAND = "lines {} to {} cannot be edited safely: edit them by hand"


class Rewriting:
    """Replacements in one script, made together by `make` or not at all."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._edits: dict[cst.CSTNode, Edit] = {}
        self._means: list[Callable[[], Undo]] = []
        self._lines: list[int] = []

    def replace(self, statement: ast.stmt, text: str) -> None:
        """Replace a statement by the statements in `text`; none remove it. Raises EditError where that is unsafe."""
        line = self._source.statement(statement)
        if line is None or (isinstance(line, cst.SimpleStatementLine) and len(line.body) != 1):
            raise EditError(_BY_HAND.format(statement.lineno, statement.end_lineno))
        new = ast.parse(text).body

        def edit(now: cst.SimpleStatementLine | cst.BaseCompoundStatement) -> cst.CSTNode:
            parsed = cst.parse_module(text, self._source.module.config_for_parsing).body
            return _in_place_of(now, list(parsed))

        self._note(statement, line, edit)
        self._means.append(lambda: _collective(self._source.tree, statement, new))

    def insert(self, statement: ast.stmt, text: str, *, after: bool = False) -> None:
        """Put the statements in `text` before or after a statement, which stays."""
        line = self._source.statement(statement)
        if line is None:
            raise EditError(_BY_HAND.format(statement.lineno, statement.end_lineno))
        new = ast.parse(text).body

        def edit(now: cst.SimpleStatementLine | cst.BaseCompoundStatement) -> cst.CSTNode:
            parsed = list(cst.parse_module(text, self._source.module.config_for_parsing).body)
            if after:
                return _flat([now, *parsed])
            first = parsed[0].with_changes(leading_lines=now.leading_lines)
            return _flat([first, *parsed[1:], now.with_changes(leading_lines=[])])

        self._note(statement, line, edit)
        around = [statement, *new] if after else [*new, statement]
        self._means.append(lambda: _collective(self._source.tree, statement, around))

    def replace_call(self, call: ast.Call, text: str) -> None:
        """Replace a call by the expression in `text`, which needs no parentheses there."""
        found = [node for node in self._source.calls() if self._source.in_tree(node) is call]
        if len(found) != 1:
            raise EditError(_BY_HAND.format(call.lineno, call.end_lineno))
        self._replace(call, found[0], text)

    def set_keyword(self, call: ast.Call, name: str, text: str | None) -> None:
        """Give a call a keyword argument with the expression in `text`, another value for it, or take it out."""
        found = [node for node in self._source.calls() if self._source.in_tree(node) is call]
        if len(found) != 1:
            raise EditError(_BY_HAND.format(call.lineno, call.end_lineno))

        def edit(now: cst.Call) -> cst.CSTNode:
            at = next((at for at, arg in enumerate(now.args) if arg.keyword and arg.keyword.value == name), None)
            if at is None:
                return added_argument(now, name, cst.parse_expression(text or "None"))
            if text is not None:
                args = [*now.args]
                args[at] = args[at].with_changes(value=cst.parse_expression(text))
                return now.with_changes(args=args)
            args = [*now.args[:at], *now.args[at + 1 :]]
            if args and at == len(args):  # the last one: nothing follows the comma before it
                last = now.args[at]
                args[-1] = args[-1].with_changes(comma=last.comma, whitespace_after_arg=last.whitespace_after_arg)
            return now.with_changes(args=args)

        def mean() -> Undo:
            before = call.keywords
            new = [] if text is None else [ast.keyword(name, ast.parse(text, mode="eval").body)]
            at = next((at for at, word in enumerate(before) if word.arg == name), len(before))
            call.keywords = [*before[:at], *new, *before[at + 1 :]]

            def undo() -> None:
                call.keywords = before

            return undo

        self._note(call, found[0], edit)
        self._means.append(mean)

    def replace_value(self, attribute: ast.Attribute, text: str) -> None:
        """Replace what an attribute is of by the expression in `text`."""
        place = self._source.attribute(attribute)
        if place is None:
            raise EditError(_BY_HAND.format(attribute.lineno, attribute.end_lineno))
        self._replace(attribute.value, place.value, text)

    def replace_attribute(self, attribute: ast.Attribute, text: str) -> None:
        """Replace an attribute and what it is of by the expression in `text`."""
        place = self._source.attribute(attribute)
        if place is None:
            raise EditError(_BY_HAND.format(attribute.lineno, attribute.end_lineno))
        self._replace(attribute, place, text)

    def _replace(self, node: ast.expr, place: cst.CSTNode, text: str) -> None:
        def edit(now: cst.BaseExpression) -> cst.CSTNode:
            new = cst.parse_expression(text, self._source.module.config_for_parsing)
            return new.with_changes(lpar=[*now.lpar, *new.lpar], rpar=[*new.rpar, *now.rpar])

        self._note(node, place, edit)
        new = ast.parse(text, mode="eval").body
        self._means.append(lambda: _replace_expression(self._source.tree, node, new))

    def make(self) -> None:
        """Make all of them; raises EditError, with nothing changed, where the result is not what they mean."""
        if not self._edits:
            return

        def mean() -> Undo:
            undone = [act() for act in self._means]

            def undo() -> None:
                for back in reversed(undone):
                    back()

            return undo

        self._source.edit(self._edits, mean, _BY_HAND.format(min(self._lines), max(self._lines)))

    def _note(self, node: ast.stmt | ast.expr, place: cst.CSTNode, edit: Edit) -> None:
        if place in self._edits:
            raise EditError(_BY_HAND.format(node.lineno, node.end_lineno))
        self._edits[place] = edit
        self._lines += [node.lineno, node.end_lineno or node.lineno]


def calls_in_tree(source: Source, knob: str) -> list[ast.Call]:
    """The calls that create the object of a knob, in the order of the file."""
    found = [source.in_tree(call) for call in calls_of(source, knob)]
    calls = [call for call in found if call is not None]
    if len(calls) < len(found):
        raise EditError("a call in an f-string cannot be edited: edit it by hand")
    return sorted(calls, key=source.place)


def parents(tree: ast.AST) -> dict[ast.AST, ast.AST]:
    """The parent of each node."""
    return {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}


def blocks(tree: ast.AST) -> Iterator[list[ast.stmt]]:
    """All lists of statements below a node."""
    for node in ast.walk(tree):
        for _, value in ast.iter_fields(node):
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                yield value


def block_of(tree: ast.AST, statement: ast.stmt) -> list[ast.stmt]:
    """The list of statements that holds this one."""
    return next(block for block in blocks(tree) if any(each is statement for each in block))


def _in_place_of(now: cst.SimpleStatementLine | cst.BaseCompoundStatement, new: list[cst.CSTNode]) -> cst.CSTNode:
    if not new:
        removed: cst.CSTNode = cst.RemoveFromParent()  # type: ignore[assignment]
        return removed
    first = new[0].with_changes(leading_lines=now.leading_lines)
    if isinstance(now, cst.SimpleStatementLine) and isinstance(new[-1], cst.SimpleStatementLine):
        new[-1] = new[-1].with_changes(trailing_whitespace=now.trailing_whitespace)
        first = first if len(new) > 1 else first.with_changes(trailing_whitespace=now.trailing_whitespace)
    return _flat([first, *new[1:]])


def _flat(nodes: list[cst.CSTNode]) -> cst.CSTNode:
    if len(nodes) == 1:
        return nodes[0]
    flat: cst.CSTNode = cst.FlattenSentinel(nodes)  # type: ignore[assignment]
    return flat


def _collective(tree: ast.AST, statement: ast.stmt, new: list[ast.stmt]) -> Undo:
    block = block_of(tree, statement)
    at = next(at for at, each in enumerate(block) if each is statement)
    for each in new:
        if each is not statement:
            _unplaced(each)
    block[at : at + 1] = new

    def undo() -> None:
        block[at : at + len(new)] = [statement]

    return undo


def _replace_expression(tree: ast.AST, old: ast.expr, new: ast.expr) -> Undo:
    _unplaced(new)
    for node in ast.walk(tree):
        for name, value in ast.iter_fields(node):
            if value is old:
                setattr(node, name, new)
                return lambda: setattr(node, name, old)
            if isinstance(value, list) and any(each is old for each in value):
                at = next(at for at, each in enumerate(value) if each is old)
                value[at] = new
                return lambda: value.__setitem__(at, old)
    raise EditError("the call is in lines that another change replaces")


def _unplaced(node: ast.AST) -> None:
    """Of no line of the script, so that no place in it finds the node."""
    for each in ast.walk(node):
        if hasattr(each, "lineno"):
            each.lineno = each.end_lineno = 0  # type: ignore[attr-defined]
