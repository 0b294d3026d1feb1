"""Whether a function of the script reads values of tensors to write them somewhere, and does nothing else with them.

Read from its source; nothing is run.
"""

from __future__ import annotations

import ast
from types import CodeType

from dptune.capture.injected.observe.validation import source_of

_READS = frozenset(("item", "tolist", "numpy"))
_WRITES = frozenset(
    (
        *("write", "writelines", "writerow", "writerows", "print", "dump", "dumps", "info", "debug", "warning"),
        *("add_scalar", "add_scalars", "add_histogram", "log_metrics", "log_dict", "log_metric"),
    )
)
_LOGS = "log"  # with a name or a dictionary first: not a logarithm
_TRAINS = frozenset(("backward", "step", "zero_grad", "train", "eval", "load_state_dict"))


def writes_values(code: CodeType) -> bool:
    """It reads values and writes, returns nothing, changes no tensor in place, and does not train."""
    node = source_of(code)
    if node is None:
        return False
    nodes = list(ast.walk(node))
    if any(isinstance(each, (ast.Yield, ast.YieldFrom)) or _returns(each) for each in nodes):
        return False
    calls = [each for each in nodes if isinstance(each, ast.Call)]
    names = {_name(call) for call in calls}
    if names & _TRAINS or any(name.endswith("_") and not name.endswith("__") for name in names):
        return False
    reads = bool(names & _READS) or any(isinstance(call.func, ast.Name) and call.func.id == "float" for call in calls)
    return reads and (bool(names & _WRITES) or any(map(_logs, calls)))


def _returns(node: ast.AST) -> bool:
    value = node.value if isinstance(node, ast.Return) else None
    return value is not None and not (isinstance(value, ast.Constant) and value.value is None)


def _name(call: ast.Call) -> str:
    """Of the function or method: `item` of `loss.item()`."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _logs(call: ast.Call) -> bool:
    first = call.args[0] if call.args else None
    named = isinstance(first, (ast.JoinedStr, ast.Dict)) or (
        isinstance(first, ast.Constant) and isinstance(first.value, str)
    )
    return named and _name(call) == _LOGS
