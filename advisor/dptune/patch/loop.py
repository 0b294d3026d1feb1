"""Where a script accumulates gradients: the statements of a micro-batch, and the test for the last one of a step.

Three loop shapes are supported, the last also over anything with a known length; all others are refused:

    for number, batch in enumerate(loader):    for batch in loader:             for micro in range(accumulate):
        loss = model(batch)                        loss = model(batch)              loss = model(next(batches))
        loss.backward()                            loss.backward()                  loss.backward()
        if (number + 1) % accumulate == 0:         if not is_last(number):      optimizer.step()
            optimizer.step()                           continue
                                                   optimizer.step()
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import NamedTuple

from dptune.patch.call import calls_of
from dptune.patch.first_step import first_step, may_be_static
from dptune.patch.source import AlreadyMadeError, EditError, Source

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_LEAVES = (ast.Break, ast.Continue, ast.Return)
_NO_OPTIMIZER = ("sched", "prof")  # in the names of what has a step, too
_PURE = (  # what a condition may hold to mean the same some lines earlier
    *(ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.Compare, ast.Name, ast.Attribute, ast.Subscript, ast.Constant),
    *(ast.boolop, ast.operator, ast.unaryop, ast.cmpop, ast.expr_context),
)
_NUMBERS = ("micro", "micro_batch")  # what a loop counts in, where it has to begin to
_READS_GRADIENTS = ("grad", "grads", "unscale_", "clip_grad_norm_", "clip_grad_value_")


class MicroBatch(NamedTuple):
    """`block[first : last + 1]` are its forward and backward pass; `is_last`, as an expression before them.

    `model` is the DistributedDataParallel, `wraps` the expression of that class where `model` may be another module,
    else None. `counted` are loops that do not count yet, with the names that `is_last` has for their numbers.
    """

    block: list[ast.stmt]
    first: int
    last: int
    is_last: ast.expr
    model: ast.expr
    wraps: ast.expr | None
    counted: list[tuple[ast.For, str]]


def micro_batch(source: Source, line: int) -> MicroBatch:
    """The micro-batch whose backward pass is called on `line`; raises EditError for other loop shapes."""
    tree = source.tree
    _refuse_no_sync(tree)
    path = _path_to(tree, line)
    step = _optimizer_step(tree)
    block, last, found = _last_of_step(path, step)
    model, wraps, static = _model(source, path)
    first = _forward(block, last, model)
    passed = block[first : last + 1]
    counted = []
    if isinstance(found, ast.For):
        is_last, between = _at_end(tree, found), list(found.body)
        number = ast.unparse(is_last).partition(" ")[0]
        counted = [(found, number)] if number not in _names(found.target) else []
        if any(isinstance(node, _LEAVES) for node in _inside(found.body)):
            raise EditError("the loop of micro-batches may end before its last one")
    else:
        test = found.test if _holds(found.body, step) else _inverse(found.test)
        is_last, between = deepcopy(test), block[first : block.index(found)]
    if _holds(passed, step):
        raise EditError("the optimizer steps in the lines that no_sync would wrap")
    _refuse_gradients(found.body if isinstance(found, ast.For) else block[: block.index(found)])
    is_last = _before(is_last, between, passed)
    if static:
        is_first, loop = first_step(tree, [place[2] for place in path], found, is_last)
        counted += [loop] if loop else []
        is_last = ast.BoolOp(ast.Or(), [is_last, is_first])
    return MicroBatch(block, first, last, is_last, model, wraps, counted)


def _refuse_no_sync(tree: ast.Module) -> None:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in ("no_sync", "require_backward_grad_sync"):
            raise AlreadyMadeError("the script already controls gradient synchronization")


Place = tuple[list[ast.stmt], int, ast.AST]  # a statement's block, its place there, and what the block is part of


def _path_to(tree: ast.Module, line: int) -> list[Place]:
    """The statement that calls backward on that line, and its enclosing statements, innermost first."""

    def calls(statement: ast.stmt) -> bool:
        nodes = ast.walk(statement)
        return any(isinstance(node, ast.Call) and _is_method(node, "backward") and _is_on(node, line) for node in nodes)

    path: list[Place] = []
    inner: ast.AST | None = tree
    while inner is not None:
        places = [(block, at, inner) for block in _blocks(inner) for at, child in enumerate(block) if calls(child)]
        if len(places) > 1:
            raise EditError(f"line {line} calls backward more than once")
        path[:0] = places
        inner = places[0][0][places[0][1]] if places else None
    if not path or not isinstance(path[0][0][path[0][1]], (ast.Expr, ast.With)):
        raise EditError(f"line {line} has no call of backward as a separate statement")
    return path


def _blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    """The lists of statements that a statement is made of."""
    for _, value in ast.iter_fields(node):
        if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
            yield value
        elif isinstance(value, list):
            for clause in value:  # handlers of exceptions, cases of a match
                if isinstance(clause, (ast.ExceptHandler, ast.match_case)):
                    yield clause.body


def _optimizer_step(tree: ast.Module) -> ast.Call:
    """The one call that steps an optimizer."""
    steps = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and _is_method(node, "step")
        and not any(word in ast.unparse(node.func).lower() for word in _NO_OPTIMIZER)
    ]
    if len(steps) != 1:
        raise EditError(f"the file has {len(steps)} calls of step, and none can be identified as the optimizer's")
    return steps[0]


def _last_of_step(path: Sequence[Place], step: ast.Call) -> tuple[list[ast.stmt], int, ast.If | ast.For]:
    """The block and the statement of the backward pass, and the test or loop that shows the last one of a step."""
    for block, at, inner in path:
        later = block[at + 1 :]
        for number, statement in enumerate(later):
            if not isinstance(statement, ast.If) or statement.orelse:
                continue
            if _holds(statement.body, step):
                return block, at, statement
            skips = len(statement.body) == 1 and isinstance(statement.body[0], ast.Continue)
            if skips and _holds(later[number + 1 :], step):
                return block, at, statement
        if isinstance(inner, ast.For) and block is inner.body and not inner.orelse:
            around = next(place for place in path if place[0][place[1]] is inner)
            if _holds(around[0][around[1] + 1 :], step):
                return block, at, inner
        if not isinstance(inner, ast.With):
            break
    raise EditError("no test for the last micro-batch of a step was found around the backward pass")


def _model(source: Source, path: Sequence[Place]) -> tuple[ast.expr, ast.expr | None, bool]:
    """What the DistributedDataParallel is called, its class where it may be another module there, and whether its graph
    may be declared static.
    """
    tree = source.tree
    made = [source.in_tree(call) for call in calls_of(source, "ddp.no_sync")]
    wrapped = [
        statement
        for statement in ast.walk(tree)
        if isinstance(statement, ast.Assign) and any(statement.value is call for call in made)
    ]
    if len(made) != 1 or len(wrapped) != 1:
        raise EditError(f"the file creates {len(made)} DistributedDataParallel models, so the model's name is unclear")
    (call,), (assignment,) = made, wrapped
    assert call is not None
    target = assignment.targets[0]
    if len(assignment.targets) != 1 or not isinstance(target, (ast.Name, ast.Attribute)):
        raise EditError("the DistributedDataParallel is not assigned to a single name")
    name = ast.unparse(target)
    for node in ast.walk(tree):
        if any(
            other_target is not target and ast.unparse(other_target) == name and other_target.lineno > target.lineno
            for other_target in _targets(node)
        ):
            raise EditError(f"`{name}` is reassigned on line {node.lineno}")  # type: ignore[attr-defined]
    static = may_be_static(tree, call)
    if _is_always(assignment, name, path):
        return _read(target), None, static
    root = ast.unparse(call.func).partition(".")[0]
    if not any(
        isinstance(statement, (ast.Import, ast.ImportFrom)) and root in _imports(statement) for statement in tree.body
    ):
        raise EditError(f"`{name}` may not be the DistributedDataParallel there")
    return _read(target), call.func, static


def _is_always(assignment: ast.Assign, name: str, path: Sequence[Place]) -> bool:
    """Whether it is made on the way to the loop, by no condition, and is no argument of a function there."""
    for block, _, inner in path:
        if assignment in block:
            return True
        if isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef)):
            given = {argument.arg for argument in ast.walk(inner.args) if isinstance(argument, ast.arg)}
            if name.partition(".")[0] in given:
                return False
    return False


def _imports(statement: ast.Import | ast.ImportFrom) -> set[str]:
    """The names that it binds."""
    return {name.asname or name.name.partition(".")[0] for name in statement.names}


def _read(node: ast.AST) -> ast.expr:
    """An expression as Python reads it anew."""
    return ast.parse(ast.unparse(node), mode="eval").body


def _forward(block: Sequence[ast.stmt], last: int, model: ast.expr) -> int:
    """The first statement that calls the model, or gives it to a function."""
    name = ast.unparse(model)
    for at in range(last + 1):
        for node in ast.walk(block[at]):
            if isinstance(node, ast.Call) and name in map(ast.unparse, (node.func, *node.args)):
                return at
    raise EditError(f"no forward pass of `{name}` was found before the backward pass")


def _at_end(tree: ast.Module, loop: ast.For) -> ast.expr:
    """Whether a loop is at its last number; one that is not counted yet is taken to be."""
    match loop:
        case ast.For(target=ast.Name(id=name), iter=ast.Call(func=ast.Name(id="range"), args=[count], keywords=[])):
            end = str(count.value - 1) if _is_whole(count) else f"{ast.unparse(count)} - 1"  # type: ignore[attr-defined]
            return ast.parse(f"{name} == {end}", mode="eval").body
        case ast.For(
            target=ast.Tuple(elts=[ast.Name(id=name), _]),
            iter=ast.Call(func=ast.Name(id="enumerate"), args=[over], keywords=[]),
        ) if _has_length(tree, over):
            return ast.parse(f"{name} == len({ast.unparse(over)}) - 1", mode="eval").body
        case ast.For(iter=over) if _has_length(tree, over):
            there = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
            for name in _NUMBERS:
                if name not in there:
                    return ast.parse(f"{name} == len({ast.unparse(over)}) - 1", mode="eval").body
    raise EditError("the last micro-batch is known only in loops over `range(...)`, or where `len(...)` is called")


def _has_length(tree: ast.Module, over: ast.expr) -> bool:
    """Whether the program itself asks for the length of what a loop goes over."""
    if not isinstance(over, (ast.Name, ast.Attribute)):
        return False
    asked = (node for node in ast.walk(tree) if _is_length(node))
    return any(ast.unparse(node) == f"len({ast.unparse(over)})" for node in asked)


def _names(target: ast.expr) -> set[str]:
    return {node.id for node in ast.walk(target) if isinstance(node, ast.Name)}


def _is_whole(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and isinstance(value.value, int)


def _inverse(test: ast.expr) -> ast.expr:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return test.operand
    match test:
        case ast.Compare(ops=[ast.NotEq()]):
            return ast.Compare(test.left, [ast.Eq()], test.comparators)
    return ast.UnaryOp(ast.Not(), test)


def _before(condition: ast.expr, between: Sequence[ast.stmt], passed: Sequence[ast.stmt]) -> ast.expr:
    """The condition as it reads before `between`, in which a name may be counted up after the passes."""
    for node in ast.walk(condition):
        if not isinstance(node, _PURE) and not _is_length(node):
            raise EditError(f"`{ast.unparse(condition)}` may have another value before the forward pass")
    names = {ast.unparse(node) for node in ast.walk(condition) if isinstance(node, (ast.Name, ast.Attribute))}
    roots = {
        ast.unparse(node.value).partition(".")[0]
        for node in ast.walk(condition)
        if isinstance(node, (ast.Attribute, ast.Subscript))
    }
    for node in ast.walk(condition):
        if _is_length(node):
            roots |= {ast.unparse(arg).partition(".")[0] for arg in node.args}  # type: ignore[attr-defined]
    for statement in between:
        counted = _counted(statement) if statement not in passed else None
        if counted is not None and counted in names:
            condition = _read(_Counted(counted).visit(condition))
            continue
        changed = {ast.unparse(target) for node in ast.walk(statement) for target in _targets(node)} & names
        if changed or any(_hands_over(node, roots) for node in ast.walk(statement)):
            raise EditError(f"line {statement.lineno} may change the value of `{ast.unparse(condition)}`")
    return condition


def _is_length(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "len" and not node.keywords


def _counted(statement: ast.stmt) -> str | None:
    """The name that a statement adds one to."""
    match statement:
        case ast.AugAssign(target=target, op=ast.Add(), value=ast.Constant(value=1)):
            return ast.unparse(target)
    return None


class _Counted(ast.NodeTransformer):
    """Puts `name + 1` in the place of `name`."""

    def __init__(self, name: str) -> None:
        self._name = name

    def visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, (ast.Name, ast.Attribute)) and ast.unparse(node) == self._name:
            return ast.BinOp(node, ast.Add(), ast.Constant(1))
        return self.generic_visit(node)


def _targets(node: ast.AST) -> Iterator[ast.Name | ast.Attribute]:
    """What a node gives a new value, or an item of it."""
    if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)) and isinstance(node.ctx, (ast.Store, ast.Del)):
        base = node.value if isinstance(node, ast.Subscript) else node
        if isinstance(base, (ast.Name, ast.Attribute)):
            yield base


def _hands_over(node: ast.AST, roots: set[str]) -> bool:
    """Whether a call is given one of these objects whole, or is a method of it: either may change what it holds."""
    if not isinstance(node, ast.Call) or _is_length(node):
        return False
    given = [*node.args, *(word.value for word in node.keywords)]
    owner = node.func.value if isinstance(node.func, ast.Attribute) else None
    return any(isinstance(value, ast.Name) and value.id in roots for value in (*given, owner))


def _refuse_gradients(between: Sequence[ast.stmt]) -> None:
    """Code that reads gradients between micro-batches would read local gradients of one rank."""
    for node in _inside(between):
        name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
        if name in _READS_GRADIENTS:
            raise EditError(f"line {node.lineno} reads gradients of each micro-batch")  # type: ignore[attr-defined]


def _holds(statements: Sequence[ast.stmt], call: ast.Call) -> bool:
    return any(node is call for statement in statements for node in ast.walk(statement))


def _is_on(call: ast.Call, line: int) -> bool:
    """Whether Python's line of a call is that: the one it begins on, or the one of the method's name."""
    return line in (call.lineno, call.func.end_lineno)


def _is_method(call: ast.Call, name: str) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr == name


def _inside(statements: Sequence[ast.stmt]) -> Iterator[ast.AST]:
    """All nodes, but for what functions hold that are defined there."""
    waiting: list[ast.AST] = list(statements)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, _FUNCTIONS):
            waiting.extend(ast.iter_child_nodes(node))
