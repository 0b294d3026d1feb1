"""Which gradients DistributedDataParallel puts into one bucket.

Source: torch/csrc/distributed/c10d/reducer.cpp, `compute_bucket_assignment_by_size` and `rebuild_buckets`, and
torch/nn/parallel/distributed.py, `_BucketCapacityConfig`, torch 2.13.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MIB = 2**20
DEFAULT_CAP_BYTES = 25 * MIB
DEFAULT_FIRST_BYTES = MIB


@dataclass(frozen=True)
class Caps:
    """The sizes at which buckets are closed, bytes, in their order; the last is that of all further ones."""

    bytes: tuple[int, ...]

    @classmethod
    def of(
        cls,
        cap_mb: float | None = None,
        each_mb: Sequence[float] = (),
        first_bytes: int = DEFAULT_FIRST_BYTES,
    ) -> Caps:
        """What DistributedDataParallel makes of its arguments: a first bucket of its own only where no cap is given."""
        if each_mb:
            return cls(tuple(int(size_mb * MIB) for size_mb in each_mb))
        if cap_mb is None:
            return cls((first_bytes, DEFAULT_CAP_BYTES))
        return cls((int(cap_mb * MIB),))


def assign(gradient_bytes: Sequence[int], caps: Caps) -> list[list[int]]:
    """The places of the gradients of each bucket. `gradient_bytes` are in the order in which gradients become ready.

    A bucket is closed by the gradient with which it reaches its cap. All gradients are of one dtype and device.
    """
    buckets: list[list[int]] = []
    open_: list[int] = []
    filled = 0
    for place, size in enumerate(gradient_bytes):
        open_.append(place)
        filled += size
        if filled >= caps.bytes[min(len(buckets), len(caps.bytes) - 1)]:
            buckets.append(open_)
            open_, filled = [], 0
    return [*buckets, open_] if open_ else buckets
