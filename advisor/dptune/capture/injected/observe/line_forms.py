"""The known costly patterns (forms) of sampled lines of the script.

Read from the source of the script's files; nothing is run. A form alone is no finding: it selects the remedy for a line
that takes time, by stack samples.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import linecache
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import CodeType

Frame = tuple[CodeType, int]

_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_ANY_LOOPS = (*_LOOPS, *_COMPREHENSIONS)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_OF_ELEMENTS = re.compile(r"(?:range|zip|enumerate)\(|.*\.tolist\(\)$")  # what a loop over elements iterates over
_NESTED = 2  # loops
# What a line calls that computes on single values.
_OF_VALUES = re.compile(
    r"(?:abs|min|max|len|int|float|bool|round|sum|ord|chr|str|range|zip|enumerate)$|math\.\w+$"
    r"|.*\.(?:append|add|get|item|isalpha|isdigit|lower|upper|startswith)$"
)

_ITEM = re.compile(r".*\.item$")
_COPYING = re.compile(r"(?:copy\.)?deepcopy$")
_STATE = re.compile(r".*\.state_dict\(\)")
_OF_STATE = frozenset(("clone", "cpu", "deepcopy", "to", "numpy"))  # that copies each of its tensors
_BUILDING = re.compile(r"(?:torch|np|numpy)\.(?:(?:as_)?tensor|Tensor|\w+Tensor|array|asarray)$")
_READING = re.compile(
    r"(?:json|csv|re|ast|pickle|zlib|gzip|bz2|lzma|base64|struct)\.\w+$"
    r"|(?:Image|sf|soundfile|cv2)\.(?:open|read|imread)$|.*\.(?:convert|thumbnail|read_image|decode_\w+)$"
    r"|(?:np|torch)\.(?:load|loadtxt|genfromtxt|fromstring)$|pd\.read_\w+$"
    r"|.*\.(?:split|tokenize|encode|encode_plus|encode_batch|batch_encode_plus|normalize)$|(?:.*\.)?tokenizer$"
    r"|(?:librosa|torchaudio|scipy\.signal)\..+$|.*\.fft\.\w+$|(?:\w+\.)*stft$"
)
_WRITING = re.compile(r"(?:json|pickle|yaml)\.dumps?$|.*\.(?:write|writelines|writerow|flush|to_csv)$|np\.savez?\w*$")
_COUNTING = re.compile(r"(?:torch|np|numpy)\.(?:histc|histogram\w*)$|.*\.histc$|.*\.add_histogram$")
_WEIGHTED = re.compile(r".*\.choice$")
_DRAWING = re.compile(r"random\.\w+$|.*\.(?:randint|randrange|integers|choice|uniform|normal|random|gauss)$")
_MOST_TO_DRAW = 2  # arguments: bounds, or mean and deviation; a third is the number of values
_OF_DEQUE = re.compile(r"random\.(?:sample|choices)$")
_JOINING = re.compile(r"(?:torch|np|numpy)\.(?:cat|concatenate|concat|[vh]?stack|append)$")
_PANDAS = re.compile(r".*\.(?:iloc|loc|iat|at)$")
_PANDAS_CALLS = re.compile(r".*\.(?:iterrows|itertuples|apply|to_dict)$")
_IS_ARRAY = re.compile(
    r".*\.(?:to_numpy|numpy|astype)\(|.*\.values$|(?:np|numpy)\.\w+\("
)  # no values that Python holds
_CALLS = (
    (_COPYING, "copy"),
    (_COUNTING, "histogram"),
    (_WRITING, "writing"),
    (_PANDAS_CALLS, "rows"),
    (_READING, "reading"),
)
# Names that show that results of a call may differ, although its arguments are constants.
_VARYING = re.compile(
    r"rand|normal|uniform|choice|shuffle|sample|permutation|bernoulli|multinomial|time|clock|open|load|read|next"
    r"|recv|send|reduce|gather|broadcast|barrier|step|backward|train|eval|global|environ|queue"
)


def form_of(frames: Sequence[Frame]) -> tuple[str, int]:
    """The form of the innermost of these lines that has one, and the index of this line; "" and 0 if none has.

    `frames` are the script's, from the outermost on.
    """
    with contextlib.suppress(Exception):  # a script may be of any form
        for at in range(len(frames) - 1, -1, -1):
            code, line = frames[at]
            called = frames[at + 1][0] if at + 1 < len(frames) else None
            found = _form(code.co_filename, line, called)
            if found:
                return found, at
    return "", 0


def loops_of(frames: Sequence[Frame]) -> list[int]:
    """For each of these lines, the line of the innermost loop of its function around it; 0 without one."""
    with contextlib.suppress(Exception):  # a script may be of any form
        return [_loop(code.co_filename, line) for code, line in frames]
    return []


def _loop(file: str, line: int) -> int:
    nodes, begins = _around(file, line)
    return max((node.lineno for node in nodes if isinstance(node, _ANY_LOOPS) and node.lineno >= begins), default=0)


def _form(file: str, line: int, called: CodeType | None) -> str:
    """`called`: the function of the script that the line is in; None for the innermost line."""
    calls = _calls(file, line)
    if called is not None:
        return "constants" if _is_constant(calls, called) else ""
    if any(map(_copies_state, _nodes(file, line))):
        return "copy"
    if _reads_row(file, line):
        return "rows"
    if any(_builds(call) for call in calls):
        return "tensor"
    if any(
        _WEIGHTED.match(ast.unparse(call.func)) and any(each.arg == "p" for each in call.keywords) for call in calls
    ):
        return "weighted"
    if any(map(_grows, calls)):
        return "joining"
    for call in calls:
        words = ast.unparse(call.func)
        for pattern, form in _CALLS:
            if pattern.match(words):
                return form
        if words == "sorted":
            return "sorting"
        if _OF_DEQUE.match(words):
            return "deque"
    if any(map(_draws_one, calls)):
        return "draws"
    if not all(_OF_VALUES.match(ast.unparse(call.func)) for call in calls):
        return ""
    iterated, loops = _iterated(file, line)
    if any(_READING.match(ast.unparse(call.func)) for each in iterated for call in _calls_in(each)):
        return "reading"  # of the words of a text, for example
    if loops < _NESTED and not any(_OF_ELEMENTS.match(ast.unparse(each)) for each in iterated):
        return ""
    return "items" if any(_ITEM.match(ast.unparse(call.func)) for call in calls) else "elements"


def _draws_one(call: ast.Call) -> bool:
    """Whether it draws a single random number."""
    return (
        _DRAWING.match(ast.unparse(call.func)) is not None
        and len(call.args) <= _MOST_TO_DRAW
        and not any(isinstance(each, (ast.Tuple, ast.List)) for each in call.args)
        and not {"size", "k", "generator", "p"} & {each.arg for each in call.keywords}
    )


def _is_constant(calls: Sequence[ast.Call], called: CodeType) -> bool:
    """Whether the line calls that function with constants only, and nothing in it shows that results differ."""
    if "self" in called.co_varnames[:1] or called.co_freevars or any(map(_VARYING.search, _names(called))):
        return False
    matching = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == called.co_name]
    return len(matching) == 1 and all(
        _is_fixed(value) for value in (*matching[0].args, *(keyword.value for keyword in matching[0].keywords))
    )


def _is_fixed(value: ast.expr) -> bool:
    """Whether it is a literal or a constant by its name: `WIDTH`."""
    if isinstance(value, ast.UnaryOp):
        return _is_fixed(value.operand)
    if isinstance(value, (ast.Tuple, ast.List)):
        return all(map(_is_fixed, value.elts))
    return isinstance(value, ast.Constant) or (isinstance(value, ast.Name) and value.id.isupper())


def _names(code: CodeType) -> Iterator[str]:
    """Functions and attributes that the function uses, also in functions inside it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _builds(call: ast.Call) -> bool:
    """Whether it makes a tensor or an array of values that Python holds, but not of a list of constants."""
    if not call.args or not _BUILDING.match(ast.unparse(call.func)):
        return False
    if isinstance(call.args[0], ast.List) and all(map(_is_fixed, call.args[0].elts)):
        return False
    return _IS_ARRAY.match(ast.unparse(call.args[0])) is None


def _reads_row(file: str, line: int) -> bool:
    """Whether it takes rows of a table, or values of a row that a line before it took: `row = frame.iloc[i]`."""
    read = [node.value for node in _nodes(file, line) if isinstance(node, ast.Subscript)]
    if any(map(_is_of_table, read)):
        return True
    begins = _around(file, line)[1]
    taken = {name for name, at in _indexed(file).rows if begins <= at <= line}
    return any(isinstance(value, ast.Name) and value.id in taken for value in read)


def _is_of_table(value: ast.expr) -> bool:
    return _PANDAS.match(ast.unparse(value)) is not None


def _rows(node: ast.AST) -> Iterator[tuple[str, int]]:
    """The names that a statement gives to a row of a table, with its line."""
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript) and _is_of_table(node.value.value):
        yield from ((target.id, node.lineno) for target in node.targets if isinstance(target, ast.Name))
    if isinstance(node, ast.For) and any(_PANDAS_CALLS.match(ast.unparse(call.func)) for call in _calls_in(node.iter)):
        yield from ((name.id, node.lineno) for name in ast.walk(node.target) if isinstance(name, ast.Name))


def _copies_state(node: ast.AST) -> bool:
    """Whether it is a comprehension that copies each tensor of a `state_dict()`."""
    if not isinstance(node, _COMPREHENSIONS):
        return False
    made = node.value if isinstance(node, ast.DictComp) else node.elt
    called = {
        call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        for call in ast.walk(made)
        if isinstance(call, ast.Call)
    }
    return bool(called & _OF_STATE) and any(_STATE.match(ast.unparse(part.iter)) for part in node.generators)


def _grows(call: ast.Call) -> bool:
    """Whether it joins what an attribute holds, alone or with more: `torch.cat([self.outputs, out])`."""
    if not call.args or not _JOINING.match(ast.unparse(call.func)):
        return False
    joined = call.args[0]
    parts = joined.elts if isinstance(joined, (ast.List, ast.Tuple)) else [joined]
    return isinstance(parts[0], ast.Attribute) if parts else False


def _iterated(file: str, line: int) -> tuple[list[ast.expr], int]:
    """What the loops of its function around a line iterate over, and how many loops there are."""
    nodes, begins = _around(file, line)
    loops = [node for node in nodes if isinstance(node, _LOOPS) and node.lineno >= begins]
    within = [node for node in nodes if isinstance(node, _COMPREHENSIONS) and node.lineno >= begins]
    over = [loop.iter for loop in loops if isinstance(loop, (ast.For, ast.AsyncFor))]
    over += [generator.iter for comprehension in within for generator in comprehension.generators]
    return over, len(over) + sum(isinstance(loop, ast.While) for loop in loops)


def _around(file: str, line: int) -> tuple[list[ast.AST], int]:
    """The loops and functions around a line, and the line where its function begins."""
    nodes = [node for node in _indexed(file).around if _holds(node, line)]
    return nodes, max((node.lineno for node in nodes if isinstance(node, _FUNCTIONS)), default=0)


def _calls_in(node: ast.AST) -> Iterator[ast.Call]:
    yield from (inner for inner in ast.walk(node) if isinstance(inner, ast.Call))


def _calls(file: str, line: int) -> list[ast.Call]:
    return [node for node in _nodes(file, line) if isinstance(node, ast.Call)]


def _nodes(file: str, line: int) -> Sequence[ast.expr]:
    return _indexed(file).expressions.get(line, ())


def _holds(node: ast.AST, line: int) -> bool:
    first, last = getattr(node, "lineno", None), getattr(node, "end_lineno", None)
    if isinstance(node, _LOOPS):
        first, last = node.body[0].lineno, node.body[-1].end_lineno
    return first is not None and last is not None and first <= line <= last


@dataclass
class _Indexed:
    """The source of a file: the expressions of each line, the loops and functions, and names of rows of tables."""

    expressions: dict[int, list[ast.expr]] = field(default_factory=dict)
    around: list[ast.AST] = field(default_factory=list)
    rows: list[tuple[str, int]] = field(default_factory=list)


@functools.lru_cache(maxsize=16)
def _indexed(file: str) -> _Indexed:
    """Each node is visited once for all lines: the training thread waits for it."""
    found = _Indexed()
    for node in ast.walk(ast.parse("".join(linecache.getlines(file)))):
        if isinstance(node, (*_LOOPS, *_COMPREHENSIONS, *_FUNCTIONS)):
            found.around.append(node)
        found.rows.extend(_rows(node))
        if isinstance(node, ast.expr):
            for line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                found.expressions.setdefault(line, []).append(node)
    return found
