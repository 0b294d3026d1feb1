"""One argument of one call set in a program, and nothing else of it: what cannot be done surely is refused."""

from __future__ import annotations

import ast
from functools import partial
from math import isclose

from dptune.advice import Change
from dptune.advise.edit_call import EditError, argument_in, call_on
from dptune.advise.edit_source import parsed, rewritten
from dptune.advise.edit_text import Text
from dptune.knobs import ENVIRONMENT, knob

_BINDS = (ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom)
_TUPLES = ("betas",)  # torch takes lists of what else has several numbers
_EXCLUDE = {"batch_size": "batch_sampler", "fused": "foreach", "foreach": "fused"}  # torch takes one of the two


def argument_of(change: Change) -> str:
    """The keyword that sets it in a call; raises EditError for what is set in no call."""
    one = knob(change.knob)
    if one.argument:
        return one.argument
    if one.name.startswith(ENVIRONMENT):
        raise EditError("it is set in the environment, and a diff sets arguments of calls")
    what = "a context manager around lines of the script" if one.paste.startswith("with ") else "a line of its own"
    raise EditError(f"it is {what}, and a diff sets arguments of calls")


def edited(source: bytes, line: int, change: Change) -> bytes:
    """The program with the change's argument set in the call that line `line` begins; encoding and line ends stay.

    Its syntax tree differs from the one of `source` in that argument alone. Raises EditError with a sentence where
    there is no such call, or where the edit cannot be made so.
    """
    argument = argument_of(change)
    literal = _literal(change)
    tree = parsed(source)
    call = call_on(tree, line, change.knob)
    where = argument_in(call, change.knob)
    there = where.value if isinstance(where, ast.keyword) else None if where is None else call.args[where]
    new = ast.parse(literal, mode="eval").body
    _check_file(there, change)
    _check_call(call, there, new, argument)

    def edit(text: Text) -> str:
        return text.added(call, f"{argument}={literal}") if there is None else text.replaced(there, literal)

    def meant() -> ast.Module:
        if isinstance(where, ast.keyword):
            where.value = new
        elif where is not None:
            call.args[where] = new
        else:
            call.keywords.append(ast.keyword(argument, new))
        return tree

    unsafe = f"the call on line {line} is written in a way that cannot be edited safely: set it by hand"
    return rewritten(source, edit, meant, unsafe)


def expression_at(source: bytes, line: int, change: Change) -> str:
    """What computes the argument now; empty where it is a plain value, or not given."""
    call = call_on(parsed(source), line, change.knob)
    where = argument_in(call, change.knob)
    there = where.value if isinstance(where, ast.keyword) else None if where is None else call.args[where]
    return "" if there is None or _is_plain(there) else ast.unparse(there)


def _literal(change: Change) -> str:
    one, then = knob(change.knob), change.then
    if isinstance(then, float) and then.is_integer():
        then = int(then)
    text = f"[{then}]" if one.list_of_numbers and then is not None else repr(then)
    try:
        value = ast.literal_eval(text)
        if one.argument in _TUPLES:
            text = repr(tuple(value))
    except (ValueError, SyntaxError) as error:
        raise EditError(f"{one.argument} cannot be {then}") from error
    if then is None and one.default is not None:
        raise EditError(f"{one.argument} cannot be None")
    return text


def _check_file(there: ast.expr | None, change: Change) -> None:
    """Refuse a file that contradicts the run it is patched for."""
    in_file = knob(change.knob).default if there is None else there
    now, here = _numbers(change.now), _numbers(in_file)
    if now and here and not (len(now) == len(here) and all(map(partial(isclose, rel_tol=1e-3), now, here))):
        words = in_file if there is None else ast.unparse(there)
        raise EditError(f"the call there makes it {words}, in the run it was {change.now}: has the file changed since?")


def _numbers(value: object) -> list[float]:
    """The number or numbers that a value is, or text like `1,8`, or an expression; none where that is computed."""
    try:
        found = ast.literal_eval(value) if isinstance(value, (str, ast.expr)) else value
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return []
    return [one for one in (found if isinstance(found, (tuple, list)) else (found,)) if isinstance(one, (int, float))]


def _is_plain(value: ast.expr) -> bool:
    """Whether it is a literal, and nothing is computed."""
    try:
        ast.literal_eval(value)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return False
    return True


def _check_call(call: ast.Call, there: ast.expr | None, new: ast.expr, argument: str) -> None:
    """Refuse what would be a valid program, but not the one that was meant."""
    if there is not None and ast.dump(there) == ast.dump(new):
        raise EditError("the call there says so already")
    if there is not None and any(isinstance(node, _BINDS) for node in ast.walk(there)):
        raise EditError(f"the value of {argument} does more than to give it: set it by hand")
    other = _EXCLUDE.get(argument)
    beside = [word.value for word in call.keywords if other and word.arg == other]
    if beside and not {_constant(new), _constant(beside[0])} & {None, False}:
        raise EditError(f"torch does not take {argument} beside {other}, which the call gives: take that out")


def _constant(value: ast.expr) -> object:
    """A plain value; where it is computed, the expression itself."""
    return value.value if isinstance(value, ast.Constant) else value
