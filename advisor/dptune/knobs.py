"""Every setting dptune can name, once.

Rules, predictions, appliers and patches speak of a setting by the name registered here.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from dptune.errors import UsageError

Value = bool | int | float | str | None


@dataclass(frozen=True)
class Knob:
    """One setting of a training run.

    `paste` is the text a user puts into the script, with `{then}` for the value proposed.
    `numerics` says whether changing it can change what is learned.
    """

    name: str
    kind: type
    unit: str
    default: Value
    numerics: Literal["same", "changes"]
    summary: str
    paste: str


_ALL = (
    Knob(
        "ddp.bucket_cap_mb",
        float,
        "MiB",
        None,
        "same",
        "how many MiB of gradients DistributedDataParallel sends in one all-reduce",
        "DistributedDataParallel(model, ..., bucket_cap_mb={then})",
    ),
    Knob(
        "ddp.no_sync",
        bool,
        "",
        False,
        "same",
        "all-reduce gradients on the last micro-batch of an accumulated step only",
        "with model.no_sync() if micro < accumulate - 1 else contextlib.nullcontext():\n"
        "    loss = model(x)  # forward and backward both inside\n"
        "    loss.backward()",
    ),
    Knob(
        "loader.num_workers",
        int,
        "processes",
        0,
        "same",
        "how many processes prepare batches beside the training process",
        "DataLoader(dataset, ..., num_workers={then}, persistent_workers=True)",
    ),
    Knob(
        "precision.float32_matmul",
        str,
        "",
        "highest",
        "changes",
        "precision of float32 matrix products: 'highest' is full fp32, 'high' is TF32 on tensor cores",
        'torch.set_float32_matmul_precision("{then}")',
    ),
)

KNOBS: MappingProxyType[str, Knob] = MappingProxyType({knob.name: knob for knob in _ALL})


def knob(name: str) -> Knob:
    """The knob of that name; raises UsageError naming the nearest one."""
    if name in KNOBS:
        return KNOBS[name]
    near = difflib.get_close_matches(name, KNOBS, n=1)
    raise UsageError(
        f"there is no knob called '{name}'", f"did you mean '{near[0]}'?" if near else f"knobs: {', '.join(KNOBS)}"
    )
