"""Short names of operations: the full name of a C++ kernel can fill a page."""

from __future__ import annotations

import re

LONGEST = 80  # characters
_CUTLASS = re.compile(r"^(?:cutlass::)?Kernel2?<(\w+)>")  # the name of the kernel is in its template argument
_ARGUMENTS = re.compile(r"(?<=\w)[<(]")  # of a template or a call; `Memcpy DtoH (Device -> Pageable)` has none
_PYTHON = re.compile(r"\(\d+\): ")  # `train.py(31): forward`


def short_name(operation: str) -> str:
    """A kernel's name without its return type, namespaces' brackets, template arguments and parameters."""
    if _PYTHON.search(operation):
        return cut(operation)
    plain = operation.replace("(anonymous namespace)::", "").removeprefix("void ")
    cutlass = _CUTLASS.match(plain)
    if cutlass:
        return cut(cutlass[1])
    return cut(_ARGUMENTS.split(plain, maxsplit=1)[0].strip() or operation)


def cut(name: str) -> str:
    """A name of any kind, truncated to LONGEST."""
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 3]}..."
