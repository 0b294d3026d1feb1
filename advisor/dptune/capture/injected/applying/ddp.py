"""Arguments of DistributedDataParallel that depend on others, or on this torch."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from dptune.capture.injected.applying.constructing import Arguments, adjust

MIB = 2**20


def bucket_cap_mb(value: float | None) -> None:
    """One size for all buckets. None is torch's default, a first bucket of 1 MiB and then 25: 25 is not the same."""

    def change(given: Arguments) -> None:
        given.pop("bucket_cap_mb", None)  # what is not given is torch's default, whichever torch it is
        given.pop("bucket_cap_mb_list", None)
        if value is not None:
            given["bucket_cap_mb"] = value

    adjust(DistributedDataParallel, change)


def bucket_cap_mb_list(value: str) -> None:
    """A size for each bucket in the order of the backward pass, like `1,8`; the last is that of all further ones."""
    sizes = [float(size) for size in value.split(",")]
    adjust(DistributedDataParallel, lambda given: given.__setitem__("bucket_cap_mb_list", sizes))


def first_bucket_mb(value: float) -> None:
    """The size of the first bucket where the others have torch's default."""
    dist._DEFAULT_FIRST_BUCKET_BYTES = int(value * MIB)  # type: ignore[attr-defined]


def broadcast_buffers(value: bool) -> None:
    """Whether buffers are sent before each forward pass, by torch's newer name for it where this torch has that.

    The older one is deprecated, is passed over where the script gives the newer one, and leaves out the sending at the
    start as well.
    """
    newer = "forward_sync_buffers" in inspect.signature(DistributedDataParallel.__init__).parameters

    def change(given: Arguments) -> None:
        if newer and value and given.get("broadcast_buffers") is False:
            given.pop("broadcast_buffers")
        if newer and given.get("broadcast_buffers") is None:
            given["forward_sync_buffers"] = value
        else:
            given.pop("forward_sync_buffers", None)
            given["broadcast_buffers"] = value

    adjust(DistributedDataParallel, change)


APPLIERS: dict[str, Callable[[Any], None]] = {
    "ddp.bucket_cap_mb": bucket_cap_mb,
    "ddp.bucket_cap_mb_list": bucket_cap_mb_list,
    "ddp.first_bucket_mb": first_bucket_mb,
    "ddp.broadcast_buffers": broadcast_buffers,
}
