"""DDP's buckets from the kernels that copy gradients into them, for traces without the sizes of collectives.

The reducer copies each gradient under `mul_out` with one elementwise kernel of blocks of 128 threads. In torch's
CUDALoops.cuh a thread takes 4 elements of 4 or 8 bytes as long as `at::detail::Array` is among a kernel's arguments: a
grid of n blocks then has between 512 (n - 1) + 1 and 512 n elements. Later torch, with `std::array`, takes 8 (tried on
an H200), in some versions perhaps 4, as for elements of 2 bytes: no size is inferred there, where traces have those of
messages. `elementwise_kernel<128, 4, ...>` names both numbers.
Grids of more gradients than the device's memory holds are not those of a run.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np

from dptune.errors import TraceError
from dptune.measure.device.matmul import device_of
from dptune.measure.inferred.hosts import HostEvents
from dptune.measure.inferred.precision import element_dtype
from dptune.measure.intervals import Ints
from dptune.measured import InferredBuckets
from dptune.trace.collective_kernels import MOST_CHARACTERS
from dptune.trace.kernels import KERNEL_CATEGORIES
from dptune.trace.kineto.arguments import chosen_arguments
from dptune.trace.kineto.schema import ABSENT

_DIVIDED = re.compile(r"torch::distributed::reducer::mul_out$")
_KERNEL = re.compile(
    r"\b(?:vectorized|unrolled)_elementwise_kernel<.*\bat::detail::Array<|\belementwise_kernel<128, ?(?P<each>[1-9]),"
)
_BYTES = {"float32": 4, "float64": 8}
_THREADS, _OF_THREAD = 128, 4
_MOST_BLOCKS = 2**31 - 1  # of a grid, in its first dimension
_MOST_BYTES = 2**39  # of gradients: no GPU has 512 GiB
_MOST_KERNELS = 50_000  # of more, reading their arguments takes seconds
_LEAST_PASSES = 2  # that agree

_Size = tuple[int, int, str]  # of a gradient: the fewest and the most elements, and the dtype


class _Launched(msgspec.Struct, gc=False):
    grid: msgspec.Raw = ABSENT
    block: msgspec.Raw = ABSENT


def copied_buckets(host: HostEvents, issued: Sequence[int]) -> InferredBuckets | None:
    """The buckets of most backward passes; None where fewer than two agree, or the size of a gradient is not known.

    `issued` are the rows of the host's calls that issued the all-reduces of gradients, in order of time. Events that
    a trace lost make passes differ.
    """
    copies, at = host.rows(_DIVIDED), np.array(issued, dtype=np.int64)
    if not len(copies) or not len(at):
        return None
    sizes = _sizes(host, copies)
    of_copies, of_issued = host.pass_of(copies), host.pass_of(at)
    start_ns = host.columns.ts_ns
    found: list[tuple[tuple[_Size, ...], ...] | None] = []
    for number in np.unique(of_issued).tolist():
        mine, calls = np.flatnonzero(of_copies == number), at[of_issued == number]
        lasts = np.searchsorted(start_ns[copies[mine]], start_ns[calls], side="right").tolist()
        of_pass = [sizes.get(int(row)) for row in copies[mine]]
        known = [size for size in of_pass if size is not None]
        whole = len(known) == len(of_pass) == lasts[-1] and all(a < b for a, b in pairwise([0, *lasts]))
        found.append(tuple(tuple(known[a:b]) for a, b in pairwise([0, *lasts])) if whole else None)
    buckets, times = Counter(found).most_common(1)[0]
    if buckets is None or times < _LEAST_PASSES or 2 * times <= len(found):
        return None
    low_bytes = [sum(low * _BYTES[dtype] for low, _, dtype in bucket) for bucket in buckets]
    listed = device_of(host.view)
    if sum(low_bytes) > min(_MOST_BYTES, (listed.memory_bytes if listed else None) or _MOST_BYTES):
        return None
    return InferredBuckets(
        gradients=[len(bucket) for bucket in buckets],
        low_bytes=low_bytes,
        high_bytes=[sum(high * _BYTES[dtype] for _, high, dtype in bucket) for bucket in buckets],
        dtypes=sorted({dtype for bucket in buckets for _, _, dtype in bucket}),
        confidence="medium",
    )


def _sizes(host: HostEvents, copies: Ints) -> dict[int, _Size | None]:
    """By the row of each copy the size of its gradient; None where it launched other than one kernel of known size."""
    columns, view = host.columns, host.view
    found: dict[int, _Size | None] = {}
    for device in view.devices:
        ran = device.operations
        if ran.on_cpu:
            continue
        chosen = columns.of_category(KERNEL_CATEGORIES, ran.rows) & (ran.launch >= 0)
        rows, launch = ran.rows[chosen], ran.launch[chosen]
        inside = host.inside(launch, copies)
        rows, launch = rows[inside], launch[inside]
        if len(rows) > _MOST_KERNELS:
            return {}
        around = copies[np.searchsorted(columns.ts_ns[copies], columns.ts_ns[launch], side="right") - 1]
        for copy, size in zip(around.tolist(), _elements(host, rows), strict=True):
            found[copy] = None if copy in found else size
    return found


def _elements(host: HostEvents, rows: Ints) -> list[_Size | None]:
    """The size that the grid of each kernel shows."""
    found: list[_Size | None] = [None] * len(rows)
    try:
        read = list(chosen_arguments(host.view.trace, rows.tolist(), _Launched))
    except TraceError:
        return found
    for places, launched in read:
        for place, each in zip(places, launched, strict=True):
            found[place] = _size(host.columns.name(int(rows[place])), _whole(each.grid), _whole(each.block))
    return found


def _size(name: str, grid: list[int], block: list[int]) -> _Size | None:
    kind, dtype = _KERNEL.search(name[:MOST_CHARACTERS]), element_dtype(name)
    if kind is None or dtype not in _BYTES or block != [_THREADS, 1, 1] or grid[1:] != [1, 1]:
        return None
    of_block = _THREADS * int(kind["each"] or _OF_THREAD)
    return ((grid[0] - 1) * of_block + 1, grid[0] * of_block, dtype) if 0 < grid[0] <= _MOST_BLOCKS else None


def _whole(text: msgspec.Raw) -> list[int]:
    """Three whole numbers as a trace writes them; none for anything else."""
    try:
        found: Any = msgspec.json.decode(bytes(text), type=list[int])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return []
    return found if len(found) == 3 else []
