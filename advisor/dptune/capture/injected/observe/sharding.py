"""Whether an iterable data set divides its samples among the workers of a loader, as far as its code shows.

Nothing of the data set is run: its methods, and the functions that they call, are searched for `get_worker_info`, and
so are the data sets that it wraps. What is not found may still be there, so that the answer is a reason or nothing.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

from torch.utils.data import Dataset

_ASKS = "get_worker_info"
# Packages whose iterable data sets divide their samples among workers.
_DIVIDES = ("datasets", "webdataset", "streaming", "litdata")
_DEEP = 4  # calls, and data sets in data sets
_MOST = 400  # functions that are searched


def sharded_by(loader: Any) -> str | None:
    """What divides the samples of a loader's iterable data set among workers; None where nothing is known to."""
    seen: set[int] = set()
    init = loader.worker_init_fn
    if init is not None and _asks(init, seen, _DEEP):
        return "worker_init_fn"
    return _of_dataset(loader.dataset, seen, _DEEP)


def _of_dataset(dataset: Any, seen: set[int], deep: int) -> str | None:
    if id(dataset) in seen or len(seen) > _MOST:
        return None
    seen.add(id(dataset))
    kind = type(dataset)
    if kind.__module__.partition(".")[0] in _DIVIDES:
        return f"{kind.__module__.partition('.')[0]}.{kind.__name__}"
    if hasattr(kind, "apply_sharding"):  # torch divides by it among workers itself
        return kind.__name__
    if any(_asks(method, seen, _DEEP) for method in _methods(kind)):
        return kind.__name__
    if not deep:
        return None
    found = (_of_dataset(part, seen, deep - 1) for part in _parts(dataset))
    return next((reason for reason in found if reason), None)


def _methods(kind: type) -> Iterator[Any]:
    for base in kind.__mro__:
        if base is not object and not base.__module__.startswith(("torch.", "typing", "abc")):
            yield from (value for value in vars(base).values() if isinstance(value, types.FunctionType))


def _parts(dataset: Any) -> Iterator[Any]:
    """Data sets and generators that it holds, also in a list or tuple."""
    for value in list(getattr(dataset, "__dict__", {}).values()):
        for part in value[:8] if isinstance(value, (list, tuple)) else (value,):
            packaged = type(part).__module__.partition(".")[0] in _DIVIDES
            if isinstance(part, Dataset) or packaged or (hasattr(type(part), "__iter__") and hasattr(part, "__dict__")):
                yield part


def _asks(function: Any, seen: set[int], deep: int) -> bool:
    """Whether the code of a function, or of those it calls by name, refers to `get_worker_info`."""
    function = getattr(function, "func", function)  # of a partial
    code = getattr(function, "__code__", None)
    if code is None or id(code) in seen or len(seen) > _MOST:
        return False
    seen.add(id(code))
    codes = [code]
    for at in codes:  # grows: functions and generators that are written inside
        codes += [inner for inner in at.co_consts if isinstance(inner, types.CodeType)]
    names = {name for searched_code in codes for name in searched_code.co_names}
    if _ASKS in names:
        return True
    known = getattr(function, "__globals__", {})
    called = [known[name] for name in names if isinstance(known.get(name), (types.FunctionType, type))]
    aliased = any(getattr(callee, "__name__", "") == _ASKS for callee in called)
    return aliased or (
        deep > 0 and any(_asks(callee, seen, deep - 1) for callee in called if isinstance(callee, types.FunctionType))
    )
