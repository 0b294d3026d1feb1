"""Which trace events are work of a device, and of which class.

| class | events |
|---|---|
| compute | category kernel or Kernel, any other name |
| communication | category kernel, name holds nccl or rccl in any case |
| copy | category gpu_memcpy or Memcpy |
| memset | category gpu_memset or Memset |
| communication on a CPU | name begins with `gloo:` |

Sources: categories from libkineto `ActivityType.cpp` (`Kernel` and its like are their names before 2022);
`ncclDevKernel_*` from NCCL `src/device/generate.py` (`ncclKernel_*` before 2.19), names that RCCL keeps; `gloo:*` from
torch `ProcessGroupGloo.cpp`.

Not work of a device: gpu_user_annotation (a copy of a range), cuda_sync (the host waiting), cpu_op events of inductor
and triton that carry a `stream` argument.
"""

from __future__ import annotations

import re
from enum import IntEnum

KERNEL_CATEGORIES = frozenset({"kernel", "Kernel"})
COPY_CATEGORIES = frozenset({"gpu_memcpy", "Memcpy"})
MEMSET_CATEGORIES = frozenset({"gpu_memset", "Memset"})
DEVICE_CATEGORIES = KERNEL_CATEGORIES | COPY_CATEGORIES | MEMSET_CATEGORIES
SYNC_CATEGORIES = frozenset({"cuda_sync"})
LAUNCH_CATEGORIES = frozenset({"cuda_runtime", "cuda_driver", "Runtime", "xpu_runtime"})
OPERATOR_CATEGORIES = frozenset({"cpu_op", "Operator"})
RANGE_CATEGORIES = (
    frozenset({"user_annotation"}) | OPERATOR_CATEGORIES
)  # on the host: old traces write ranges as operators
FOREIGN_DEVICE_CATEGORIES = frozenset({"mtia_ccp_events", "mtia_insight", "hpu_op", "glow_runtime"})

# libkineto/src/ActivityType.cpp, and the names of the same before 2022: what tells a torch trace from another.
TORCH_CATEGORIES = (
    DEVICE_CATEGORIES
    | SYNC_CATEGORIES
    | LAUNCH_CATEGORIES
    | RANGE_CATEGORIES
    | FOREIGN_DEVICE_CATEGORIES
    | frozenset(
        {"gpu_user_annotation", "python_function", "cpu_instant_event", "mtia_runtime", "overhead", "xpu_driver"}
    )
)

# torch.autograd.profiler before torch.profiler wrote no categories: its two processes say what the events are.
LEGACY_PROCESSES = {"CPU functions": "Operator", "CUDA functions": "Kernel"}

COMMUNICATION_NAME = re.compile(r"nccl|rccl", re.IGNORECASE)
GLOO_PREFIX = "gloo:"
# Operators and ranges that stand for a collective call; their arguments tell of it.
COLLECTIVE_PREFIXES = (GLOO_PREFIX, "c10d::", "_c10d_functional::", "nccl:", "record_param")
STEP_NAME = re.compile(r"^ProfilerStep#(\d{1,18})$")
LOADER_NAME = re.compile(r"^enumerate\(DataLoader\)#.*__next__$")
LAUNCH_NAME = re.compile(r"^(cuda|cu|hip)\w*Launch\w*Kernel|^(cuda|hip)GraphLaunch|^hipModuleLaunch")


class Work(IntEnum):
    """Class of a device operation; where several run at once, the account gives the time to the lowest number."""

    COMPUTE = 0
    COMMUNICATION = 1
    COPY = 2
    MEMSET = 3


def work_of(category: str, name: str) -> Work | None:
    """The class of an event on a GPU; None where it is not work of the device."""
    if category in KERNEL_CATEGORIES:
        return Work.COMMUNICATION if COMMUNICATION_NAME.search(name) else Work.COMPUTE
    if category in COPY_CATEGORIES:
        return Work.COPY
    return Work.MEMSET if category in MEMSET_CATEGORIES else None
