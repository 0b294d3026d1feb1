"""Kinds of collective, from the names that torch, NCCL and gloo give them."""

from __future__ import annotations

import re

from dptune.trace.collective_kernels import base_name, library_of

UNKNOWN = "unknown"

# In this order: `reduce_scatter` and `all_reduce` hold `reduce`, `all_gather` holds `gather`.
_KINDS = (
    (re.compile(r"reduce_?scatter"), "reduce_scatter"),
    (re.compile(r"all_?reduce"), "all_reduce"),
    (re.compile(r"all_?gather"), "all_gather"),
    (re.compile(r"all_?to_?all"), "all_to_all"),
    (re.compile(r"broadcast"), "broadcast"),
    (re.compile(r"barrier"), "barrier"),
    (re.compile(r"send|recv"), "p2p"),
    (re.compile(r"scatter"), "scatter"),
    (re.compile(r"gather"), "gather"),
    (re.compile(r"reduce"), "reduce"),
)
# The type in a kernel's name is that of the arithmetic; kinds without any are all run as bytes.
_KERNEL_DTYPE = re.compile(
    r"_(?:Sum|Prod|Min|Max|MinMax|PreMulSum|SumPostDiv|Avg)_(\w+?)(?:_(?:RING|TREE|NVLS|COLLNET|PAT)|\(|$)"
)


def kind_of(name: object) -> str:
    """all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, p2p, ...; or unknown."""
    word = str(name).lower()
    return next((kind for pattern, kind in _KINDS if pattern.search(word)), UNKNOWN)


def kernel_collective(name: str) -> str:
    """The kind of collective that a kernel runs, by its base name; where that hides it, by its library."""
    library = library_of(name)
    return library.kind if library is not None and library.kind else kind_of(base_name(name))


def kernel_dtype(name: str) -> str | None:
    """The element type in the name of a reducing NCCL kernel, as that name writes it."""
    match = _KERNEL_DTYPE.search(name)
    reduces = kernel_collective(name) in ("all_reduce", "reduce_scatter", "reduce")
    return match[1] if match and reduces else None
