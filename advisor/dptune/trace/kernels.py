"""What the events of a trace are, by category and name: what every figure rests on.

A kernel of a library of collectives (`collective_kernels.py`) communicates; for all else `TABLE` gives the class of a
device operation: the first row that fits decides. Beside it stand the categories of the host's events, and the names
that mark steps and loaders. What differs from maker to maker is in `vendors.py`.

Sources of the categories: libkineto `ActivityType.cpp`; `Kernel` and its like are their names before 2022. Not work of
a device: gpu_user_annotation (a copy of a range), cuda_sync (what waits, not what works), cuda_profiler_range (a
counter's range around kernels), and the cpu_op events of inductor and triton that carry a `stream` argument.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum

from dptune.trace.collective_kernels import library_of
from dptune.trace.vendors import RUNTIME_CATEGORIES, UNREAD, WAIT_NAME

KERNEL_CATEGORIES = frozenset({"kernel", "Kernel"})
COPY_CATEGORIES = frozenset({"gpu_memcpy", "Memcpy"})
MEMSET_CATEGORIES = frozenset({"gpu_memset", "Memset"})
MTIA_CATEGORIES = frozenset({"mtia_ccp_events"})
COMMUNICATING_CATEGORIES = KERNEL_CATEGORIES | MTIA_CATEGORIES  # of kernels, which may be a communication library's
DEVICE_CATEGORIES = COMMUNICATING_CATEGORIES | COPY_CATEGORIES | MEMSET_CATEGORIES
SYNC_CATEGORIES = frozenset({"cuda_sync"})
STREAM_WAIT = "Stream Wait Event"  # there a stream waits for another, and the host goes on
LAUNCH_CATEGORIES = RUNTIME_CATEGORIES
OPERATOR_CATEGORIES = frozenset({"cpu_op", "Operator"})
RANGE_CATEGORIES = (
    frozenset({"user_annotation"}) | OPERATOR_CATEGORIES
)  # on the host: old traces write ranges as operators
FOREIGN_DEVICE_CATEGORIES = frozenset[str]().union(*(device.categories for device in UNREAD))

# What distinguishes a torch trace from another tool's.
TORCH_CATEGORIES = (
    DEVICE_CATEGORIES
    | SYNC_CATEGORIES
    | LAUNCH_CATEGORIES
    | RANGE_CATEGORIES
    | FOREIGN_DEVICE_CATEGORIES
    | frozenset({"gpu_user_annotation", "python_function", "cpu_instant_event", "overhead", "cuda_profiler_range"})
)

# torch.autograd.profiler before torch.profiler wrote no categories: its two processes say what the events are.
LEGACY_PROCESSES = {"CPU functions": "Operator", "CUDA functions": "Kernel"}


class Work(IntEnum):
    """Class of a device operation; where several run at once, the account gives the time to the lowest number."""

    COMPUTE = 0
    COMMUNICATION = 1
    COPY = 2
    MEMSET = 3


@dataclass(frozen=True)
class Row:
    """Device operations of these categories whose name holds `name` (a regular expression) are of this class."""

    work: Work
    categories: frozenset[str]
    name: str
    source: str


_KERNEL, _MTIA = KERNEL_CATEGORIES, MTIA_CATEGORIES
TABLE = (
    Row(Work.COPY, _KERNEL, r"^__amd_rocclr_copy", "ROCm CLR: copies that run as kernels"),
    Row(Work.MEMSET, _KERNEL, r"^__amd_rocclr_fill", "ROCm CLR: fills that run as kernels"),
    Row(Work.COMPUTE, _KERNEL, r"", "any other kernel, those of a CUDA graph too"),
    Row(Work.COPY, COPY_CATEGORIES, r"", "memory copies of CUPTI and roctracer"),
    Row(Work.MEMSET, MEMSET_CATEGORIES, r"", "memory sets of CUPTI and roctracer"),
    Row(Work.COPY, _MTIA, r"^dma_request$", "MTIA: the only events with a direction and a size"),
    Row(Work.COMPUTE, _MTIA, r"", "any other event of the MTIA command processor"),
)

# On a CPU collectives are ranges of the backend's own: torch ProcessGroupGloo.cpp and its like for MPI and UCC.
HOST_COLLECTIVE_PREFIXES = ("gloo:", "mpi:", "ucc:")
# Ranges of a backend whose collectives run on a device.
DEVICE_COLLECTIVE_PREFIXES = ("nccl:", "xccl:", "hccl:")
# Operators and ranges that stand for a collective call; their arguments tell of it.
COLLECTIVE_PREFIXES = (
    *HOST_COLLECTIVE_PREFIXES,
    *DEVICE_COLLECTIVE_PREFIXES,
    "c10d::",
    "_c10d_functional::",
    "record_param",
)

STEP_NAME = re.compile(r"^ProfilerStep#(\d{1,18})$")
OPTIMIZER_STEP_NAME = re.compile(r"^Optimizer\.step#")
# A pass of autograd on the host: its engine's ranges, and the nodes that torch wrote as operators before 1.9.
BACKWARD_NAME = re.compile(r"^autograd::engine::evaluate_function|Backward\d*$")
# Kernels by which a training step is recognized where nothing marks it: they need not be all of its kind.
BACKWARD_KERNEL_NAME = re.compile(r"(?i)backward|_bwd|bwd_|dgrad|wgrad|grad_(input|weight)")
OPTIMIZER_KERNEL_NAME = re.compile(r"(?i)multi_tensor_apply|foreach|^triton_for_|adam|sgd|lamb(?!da)|rmsprop|addcdiv")
LOADER_NAME = re.compile(r"^enumerate\(DataLoader\)#.*__next__$")
# gc.collect() as torch records Python's calls.
COLLECTION_NAME = re.compile(r"^<built-in (function|method) collect\b")

_TABLE = tuple((row.work, row.categories, re.compile(row.name)) for row in TABLE)


def work_of(category: str, name: str) -> Work | None:
    """The class of an event on a device; None where it is not work of one."""
    if category in COMMUNICATING_CATEGORIES and library_of(name) is not None:
        return Work.COMMUNICATION
    return next((work for work, kinds, pattern in _TABLE if category in kinds and pattern.search(name)), None)


def waits(category: str, name: str) -> bool:
    """Whether the host waits for the device in an event, by its name alone."""
    if category in SYNC_CATEGORIES:
        return name != STREAM_WAIT
    return category in LAUNCH_CATEGORIES and WAIT_NAME.search(name) is not None
