"""The architecture of a GPU that a trace does not name, from the names of its kernels.

Libraries name kernels after what they are compiled for: cuBLAS and cuDNN `ampere_sgemm`, CUTLASS `sm80_xmma`, `Sm90`,
AMD's `gfx942`. Kernels of an earlier NVIDIA architecture run on later ones, so that the latest name counts and is a
lower bound; only those for Hopper and Blackwell use instructions (`sm_90a`, `sm_100a`) that no other has. On 51 public
traces that name the device and have such kernels, the bound held on all. A kernel of AMD runs on its ISA alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from dptune.measure.views import RankView
from dptune.trace.collective_kernels import MOST_CHARACTERS
from dptune.trace.columns import Columns
from dptune.trace.kernels import KERNEL_CATEGORIES

# The latest first; an architecture, its names, and whether its kernels run on no later one.
_NVIDIA = (
    ("Blackwell", re.compile(r"(?<![a-z0-9])sm_?1[0-2]\d[af]?(?![a-z0-9])|(?<![a-z])blackwell(?![a-z])", re.I), True),
    ("Hopper", re.compile(r"(?:(?<![a-z0-9])|(?<=[a-z]))sm_?90a?(?![0-9])|(?<![a-z])hopper(?![a-z])", re.I), True),
    ("Ampere", re.compile(r"(?<![a-z0-9])sm_?8[069](?![0-9])|(?<![a-z])ampere(?![a-z])", re.I), False),
    ("Turing", re.compile(r"(?<![a-z0-9])sm_?75(?![0-9])|(?<![a-z])turing(?![a-z])", re.I), False),
    ("Volta", re.compile(r"(?<![a-z0-9])sm_?70(?![0-9])|(?<![a-z])volta(?![a-z])", re.I), False),
)
_AMD = re.compile(r"(?<![a-z0-9])(gfx(?:9[0-9a-f]{2}|1[0-9]{3}))(?![a-z0-9])", re.IGNORECASE)
# All of these ISAs, and of Ampere and later, have matrix units; of Turing, GTX 16 cards have none.
_AMD_MATRIX = frozenset({"gfx908", "gfx90a", "gfx940", "gfx941", "gfx942", "gfx950"})
_WITH_MATRIX = frozenset({"Blackwell", "Hopper", "Ampere"})


class Architecture(NamedTuple):
    """What kernels show; `exact`: it is no later one. `kernels`: how many different ones show it."""

    name: str
    exact: bool
    kernels: int

    @property
    def text(self) -> str:
        """`Hopper`, or `Ampere or later`."""
        return self.name if self.exact else f"{self.name} or later"

    @property
    def matrix_units(self) -> bool | None:
        """Whether it has tensor or matrix cores; None where it may have."""
        return True if self.name in _WITH_MATRIX or self.name in _AMD_MATRIX else None


def architecture_of(view: RankView) -> Architecture | None:
    """The architecture that the kernels of a rank show."""
    return of_columns(view.columns)


def of_columns(columns: Columns) -> Architecture | None:
    """The architecture that the kernels of a trace show."""
    rows = columns.rows(KERNEL_CATEGORIES)
    return architecture(columns.names[number] for number in np.unique(columns.name_id[rows]).tolist())


def latest(shown: Iterable[Architecture | None]) -> Architecture | None:
    """The latest architecture that the kernels of any rank show; kernels of an earlier one run on later ones."""
    order = [name for name, _, _ in _NVIDIA]
    known = [each for each in shown if each is not None]
    return min(known, key=lambda each: order.index(each.name) if each.name in order else len(order), default=None)


def architecture(names: Iterable[str]) -> Architecture | None:
    """The architecture that names of kernels show; None where none does, and where they contradict each other."""
    short = [name[:MOST_CHARACTERS] for name in names]
    isas = [match[1].lower() for name in short if (match := _AMD.search(name))]
    for architecture_name, pattern, exact in _NVIDIA:
        if found := sum(pattern.search(name) is not None for name in short):
            return None if isas else Architecture(architecture_name, exact, found)
    return Architecture(isas[0], True, len(isas)) if len(set(isas)) == 1 else None
