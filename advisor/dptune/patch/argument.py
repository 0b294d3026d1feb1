"""Set one argument of one call in a script and change nothing else; unsafe edits are refused."""

from __future__ import annotations

import ast
from functools import partial
from math import isclose

import libcst as cst

from dptune.advice import Change
from dptune.knobs import ENVIRONMENT, Knob, knob, of_change
from dptune.patch.call import argument_in, call_on, positional
from dptune.patch.source import AlreadyMadeError, EditError, Source, Undo

_BINDS = (ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom)
_TUPLES = ("betas",)  # torch takes lists of what else has several numbers


def argument_of(change: Change) -> str:
    """The keyword that sets it in a call; raises EditError for settings without a call argument."""
    setting = of_change(change.knob)
    if setting.argument:
        return setting.argument
    if setting.name.startswith(ENVIRONMENT):
        raise EditError("it is an environment variable; a diff sets only call arguments")
    what = (
        "a context manager around lines of the script" if setting.paste.startswith("with ") else "a separate statement"
    )
    raise EditError(f"it is {what}; a diff sets only call arguments")


def set_argument(source: Source, line: int, change: Change) -> str:
    """Set the change's argument in the call that starts on `line`; returns the previous expression if not a literal.

    Only that argument changes in the script's syntax tree. Raises EditError with a sentence if the call is not found or
    the edit is unsafe.
    """
    argument, literal = argument_of(change), _literal(change)
    call = call_on(source, line, change.knob)
    there = source.edited(call)
    given = argument_in(there, change.knob)
    now = None if given is None else _expression(source, given.value)
    new = ast.parse(literal, mode="eval").body
    if now is not None and ast.dump(now) == ast.dump(new):
        raise AlreadyMadeError("the script already sets this value")
    _check_file(now, change)
    _check_call(source, there, now, new, knob(change.knob))
    at = None if given is None else there.args.index(given)
    position = None if given is None or given.keyword else positional(there).index(given)
    unsafe = f"the call on line {line} cannot be edited safely: set it by hand"
    in_tree = source.in_tree(call)
    if in_tree is None:
        raise EditError(unsafe)

    def edit(call: cst.Call) -> cst.Call:
        value = cst.parse_expression(literal)
        return added_argument(call, argument, value) if at is None else _with_value(call, at, value)

    source.edit({call: edit}, lambda: _set(in_tree, position, ast.keyword(argument, new)), unsafe)
    return "" if now is None or _is_plain(now) else ast.unparse(now)


def _set(call: ast.Call, position: int | None, argument: ast.keyword) -> Undo:
    """Set an argument in the syntax tree: by its position, where it has one, else by name."""
    args, keywords = call.args, call.keywords
    if position is not None:
        call.args = [argument.value if at == position else arg for at, arg in enumerate(args)]
    elif any(word.arg == argument.arg for word in keywords):
        call.keywords = [argument if word.arg == argument.arg else word for word in keywords]
    else:
        call.keywords = [*keywords, argument]

    def undo() -> None:
        call.args, call.keywords = args, keywords

    return undo


def _with_value(call: cst.Call, at: int, value: cst.BaseExpression) -> cst.Call:
    """The call with another value of an argument, in the same parentheses."""
    before, given, after = call.args[:at], call.args[at], call.args[at + 1 :]
    left, right = given.value.lpar, given.value.rpar
    if isinstance(given.value, (cst.Tuple, cst.GeneratorExp)):  # the innermost are part of the value
        left, right = left[:-1], right[1:]
    value = value.with_changes(lpar=[*left, *value.lpar], rpar=[*value.rpar, *right])
    return call.with_changes(args=[*before, given.with_changes(value=value), *after])


def added_argument(call: cst.Call, name: str, value: cst.BaseExpression) -> cst.Call:
    """The call with one more argument at the end, before a comma that ends them."""
    tight = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    added = cst.Arg(value, cst.Name(name), equal=tight)
    if not call.args:
        added = added.with_changes(whitespace_after_arg=call.whitespace_before_args)
        return call.with_changes(args=[added], whitespace_before_args=cst.SimpleWhitespace(""))
    *others, last = call.args
    if isinstance(last.value, cst.GeneratorExp) and not last.value.lpar:
        # f(x for x in y): the call's parentheses are the generator's, and it needs its own now
        left, right = cst.LeftParen(call.whitespace_before_args), cst.RightParen(last.whitespace_after_arg)
        last = last.with_changes(
            value=last.value.with_changes(lpar=[left], rpar=[right]), whitespace_after_arg=cst.SimpleWhitespace("")
        )
        call = call.with_changes(whitespace_before_args=cst.SimpleWhitespace(""))
    added = added.with_changes(comma=last.comma, whitespace_after_arg=last.whitespace_after_arg)
    comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    last = last.with_changes(comma=comma, whitespace_after_arg=cst.SimpleWhitespace(""))
    return call.with_changes(args=[*others, last, added])


def _expression(source: Source, value: cst.BaseExpression) -> ast.expr:
    """A value as `ast` has it."""
    try:
        return ast.parse(f"({source.module.code_for_node(value)}\n)", mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise EditError("the current value cannot be parsed: set it by hand") from error


def _literal(change: Change) -> str:
    setting, then = knob(change.knob), change.then
    if isinstance(then, float) and then.is_integer():
        then = int(then)
    text = f"[{then}]" if setting.list_of_numbers and then is not None else repr(then)
    try:
        value = ast.literal_eval(text)
        if setting.argument in _TUPLES:
            text = repr(tuple(value))
    except (ValueError, SyntaxError) as error:
        raise EditError(f"{setting.argument} cannot be {then}") from error
    if then is None and setting.default is not None:
        raise EditError(f"{setting.argument} cannot be None")
    return text


def _check_file(there: ast.expr | None, change: Change) -> None:
    """Refuse a file whose value differs from that of the run."""
    in_file = knob(change.knob).default if there is None else there
    now, here = _numbers(change.now), _numbers(in_file)
    if now and here and not (len(now) == len(here) and all(map(partial(isclose, rel_tol=1e-3), now, here))):
        words = in_file if there is None else ast.unparse(there)
        raise EditError(f"it is {words} in the script, but was {change.now} in the run: has the file changed since?")


def _numbers(value: object) -> list[float]:
    """The number or numbers that a value is, or text like `1,8`, or an expression; none where that is computed."""
    try:
        found = ast.literal_eval(value) if isinstance(value, (str, ast.expr)) else value
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return []
    return [
        number
        for number in (found if isinstance(found, (tuple, list)) else (found,))
        if isinstance(number, (int, float))
    ]


def _is_plain(value: ast.expr) -> bool:
    """Whether it is a literal, and nothing is computed."""
    try:
        ast.literal_eval(value)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return False
    return True


def _check_call(source: Source, call: cst.Call, there: ast.expr | None, new: ast.expr, setting: Knob) -> None:
    """Refuse edits that give a valid program with another meaning."""
    if there is not None and any(isinstance(node, _BINDS) for node in ast.walk(there)):
        raise EditError(f"the expression for {setting.argument} has side effects: set it by hand")
    other = setting.excludes
    beside = [given.value for given in call.args if other and given.keyword and given.keyword.value == other]
    if beside and not {_constant(new), _constant(_expression(source, beside[0]))} & {None, False}:
        together = f"{setting.argument} together with {other}"
        raise EditError(f"torch rejects {together}, which the call sets: remove {other} first")


def _constant(value: ast.expr) -> object:
    """A plain value; where it is computed, the expression itself."""
    return value.value if isinstance(value, ast.Constant) else value
