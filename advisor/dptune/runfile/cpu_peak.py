"""The peak of a CPU, as the ranks of a recording measured it when their last window was closed."""

from __future__ import annotations

from dataclasses import dataclass, field

from dptune.runfile.load import LoadFacts


@dataclass
class DtypePeakFacts:
    """The highest FLOP/s of a dense matrix product in one dtype, named as torch does: `float32`.

    `width` is that of the square matrices with the highest rate, `products` the number of products that were timed.
    """

    dtype: str
    flops_per_s: float
    width: int
    products: int


@dataclass
class CpuPeakFacts:
    """FLOP/s that this rank reached, with `threads` threads, while the other ranks of its host did the same.

    `ranks` of the host measured at once, of `expected`. `load`: CPU time of the job and of the machine
    during the measurement.
    """

    threads: int
    ranks: int
    expected: int
    dtypes: list[DtypePeakFacts] = field(default_factory=list)
    load: LoadFacts | None = None
