"""Lines of a data set's methods that do work in proportion to the whole data set, or to a file, for each sample.

Read from the source of its class; nothing is run. Only a few known forms are looked for. What a form costs depends on
what it is applied to, so a line counts only where samples of the stack show that it takes the time.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import textwrap
from collections.abc import Collection, Iterator
from typing import Any

from torch.utils.data import Subset

from dptune.capture.injected.observe.places import is_the_users, relative

_OPENING = ("ZipFile", "TarFile", "h5py.File", "tarfile.open", "lmdb.open", "netCDF4.Dataset", "sqlite3.connect")
_OVER_ALL = {
    *("mean", "std", "var", "min", "max", "amin", "amax", "median", "quantile", "sum", "norm", "unique", "bincount"),
    *("nanmean", "nanstd", "std_mean", "var_mean", "argsort", "sort", "sort_values", "percentile", "histogram"),
}  # functions and methods that read all values
_FILES = ("np.load", "numpy.load", "torch.load", "json.load", "pickle.load", "loadtxt", "genfromtxt", "loadmat")
_TABLES = (".read_csv", ".read_parquet", ".read_pickle", ".read_feather", ".read_hdf", ".read_json")
_ONCE = ("__init__", "__setstate__")  # methods that do not run for each sample
_MOST = 32


def costly_lines(dataset: Any) -> dict[str, str]:
    """By `file:line`, the form: `mask`, `archive`, `file`, `index`, `pop`, `search` or `statistics`."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    found: dict[str, str] = {}
    for kind in type(dataset).__mro__:
        file = inspect.getsourcefile(kind) if kind.__module__ != "builtins" else None
        if file is None or not is_the_users(file):
            continue
        lines, first = inspect.getsourcelines(kind)
        listed = {name for name, value in vars(dataset).items() if isinstance(value, (list, tuple))}
        for line, form in _forms(ast.parse(textwrap.dedent("".join(lines))), listed, _whole(dataset)):
            found.setdefault(f"{relative(file)}:{first + line - 1}", form)
    return dict(list(found.items())[:_MOST])


def _whole(dataset: Any) -> set[str]:
    """The attributes of the data set that hold as many rows as it has samples, in a tensor, an array or a frame."""
    with contextlib.suppress(Exception):  # a data set may have no length
        samples = len(dataset)
        shapes: dict[str, Any] = {name: getattr(value, "shape", ()) for name, value in vars(dataset).items()}
        return {name for name, shape in shapes.items() if len(shape) and samples > 1 and shape[0] == samples}
    return set()


def _forms(tree: ast.AST, listed: Collection[str], whole: Collection[str]) -> Iterator[tuple[int, str]]:
    """`listed`: the attributes of the data set that are lists; `whole`: those that hold all samples."""
    methods = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name not in _ONCE]
    for method, node in ((each, node) for each in methods for node in ast.walk(each)):
        if isinstance(node, ast.Subscript) and _is_mask(node):
            yield node.lineno, "mask"
        elif isinstance(node, ast.Compare) and isinstance(node.ops[-1], (ast.In, ast.NotIn)):
            if ast.unparse(node.comparators[-1]) in {f"self.{name}" for name in listed}:
                yield node.lineno, "search"
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called.endswith(_OPENING):
                yield node.lineno, "archive"
            elif called.endswith((*_FILES, *_TABLES)) and _is_same(node, method):
                yield node.lineno, "file"
            elif called.endswith(".index") and len(node.args) == 1:
                yield node.lineno, "index"
            elif _reads_all(node, whole):
                yield node.lineno, "statistics"
            elif called.endswith(".pop") and len(node.args) == 1 and not _is_end(node.args[0]):
                yield node.lineno, "pop"


def _is_same(call: ast.Call, method: ast.FunctionDef) -> bool:
    """Whether its arguments depend on nothing but the data set: the file is the same for each sample."""
    named = [*method.args.posonlyargs, *method.args.args, *method.args.kwonlyargs]
    local = {each.arg for each in named[1:]}
    local |= {part.id for part in ast.walk(method) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}
    given = [*call.args, *(word.value for word in call.keywords)]
    names = {part.id for each in given for part in ast.walk(each) if isinstance(part, ast.Name)}
    return "self" in names and not names & local


def _is_mask(node: ast.Subscript) -> bool:
    """Whether it selects rows by a comparison of one of their own columns: `rows[rows["key"] == key]`."""
    rows = ast.unparse(node.value).removesuffix(".loc")
    test = node.slice.elts[0] if isinstance(node.slice, ast.Tuple) and node.slice.elts else node.slice
    if not isinstance(test, ast.Compare) or not isinstance(test.left, (ast.Subscript, ast.Attribute)):
        return False
    return ast.unparse(test.left.value) == rows and isinstance(test.ops[0], ast.Eq)


def _reads_all(call: ast.Call, whole: Collection[str]) -> bool:
    """Whether it computes over a whole attribute, or a column of it: `self.x.mean(0)`, `np.std(self.x)`."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in _OVER_ALL:
        return False
    for read in (call.func.value, *call.args[:1]):
        if isinstance(read, ast.Subscript) and isinstance(read.slice, ast.Constant):
            read = read.value if isinstance(read.slice.value, str) else read  # a column
        if ast.unparse(read) in {f"self.{name}" for name in whole}:
            return True
    return False


def _is_end(argument: ast.expr) -> bool:
    """Whether it is the last item, which a list gives up at once, or the key of a dict."""
    return ast.unparse(argument) == "-1" or (isinstance(argument, ast.Constant) and not isinstance(argument.value, int))
