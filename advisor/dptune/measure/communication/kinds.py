"""What collective a kernel runs and on which element type, from its name."""

from __future__ import annotations

import re

from dptune.measured.collectives import REDUCING, kind_of
from dptune.trace.collective_kernels import base_name, library_of

# The type in a kernel's name is that of the arithmetic; kinds without any are all run as bytes.
_KERNEL_DTYPE = re.compile(
    r"_(?:Sum|Prod|Min|Max|MinMax|PreMulSum|SumPostDiv|Avg)_(\w+?)(?:_(?:RING|TREE|NVLS|COLLNET|PAT)|\(|$)"
)


def kernel_collective(name: str) -> str:
    """The kind of collective that a kernel runs, by its base name; where that hides it, by its library."""
    library = library_of(name)
    return library.kind if library is not None and library.kind else kind_of(base_name(name))


def kernel_dtype(name: str) -> str | None:
    """The element type in the name of a reducing NCCL kernel, as that name writes it."""
    match = _KERNEL_DTYPE.search(name)
    return match[1] if match and kernel_collective(name) in REDUCING else None
