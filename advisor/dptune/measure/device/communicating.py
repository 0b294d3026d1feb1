"""Which operations of a device communicate whatever they are called: those that a collective operator launches itself.

A collective operator (`c10d::`, `_c10d_functional::`, `record_param_comms`, a `nccl:` range, or an operator or autograd
Function that is named after a collective) launches the transfer from its own code, so that it is the innermost operator
around the launch. What prepares the transfer or unpacks it stays what it is: torch runs concatenation, casts, fills and
copies through operators of their own (`aten::cat`, `aten::copy_`), which are then the innermost; where a trace lacks
them, kernels of ATen and kernels named after local data movement, quantization or products are recognized by name.
Copies between devices that a collective operator launches itself are transfers, those within a device and to or from
the host are not. Operations launched before recording began are what all others of their name are.
"""

from __future__ import annotations

import re

import numpy as np

from dptune.measure.host.enclosing import NOWHERE, Ranges, holding
from dptune.measure.host.launches import UNLAUNCHED
from dptune.measure.intervals import Ints, Mask
from dptune.trace.collective_kernels import base_name
from dptune.trace.columns import Columns
from dptune.trace.kernels import (
    COLLECTIVE_PREFIXES,
    COMMUNICATING_CATEGORIES,
    COPY_CATEGORIES,
    OPERATOR_CATEGORIES,
    RANGE_CATEGORIES,
)

_NAMED = re.compile(r"(?i)all_?reduce|all_?gather|reduce_?scatter|all_?to_?all")
# FSDP's operators around a collective only pack and unpack; a product fused with one computes; torch's own operators,
# the nodes of autograd's engine and the steps of an optimizer only hold the name of what they belong to.
_NOT = re.compile(r"(?i)^(fsdp|aten|autograd|triton|inductor)::|matmul|gemm|_mm\b|^triton_|^Optimizer\.|^ProfilerStep")
# Kernels that stay what they are: they move, fill, cast, pack or compute within the device.
_LOCAL = re.compile(
    r"(?i)\bat::|elementwise|cat_?array|copy|cast|convert|fill|memset|quant|to_?(mx)?fp\d|pack|permute|transpose|layout"
    r"|^triton_(poi|red|per|for|tem|mix|unk)_|gemm|matmul|cutlass|^cub::|softmax|norm|attn|attention|flash_|fmha|moe"
    r"|conv|swiglu|silu|gelu|rope|topk|sort|^__amd_rocclr"
)
_BETWEEN_DEVICES = re.compile(r"(?i)PtoP|PeerToPeer|P2P")


def collective_operators(columns: Columns) -> Ints:
    """The host's ranges that call a collective. One that a script names may hold anything: its name does not count."""
    calls = columns.rows(RANGE_CATEGORIES, lambda name: name.startswith(COLLECTIVE_PREFIXES))
    named = columns.rows(OPERATOR_CATEGORIES, lambda name: _NAMED.search(name) and not _NOT.search(name))
    return np.union1d(calls, named)


def launched_by_collectives(columns: Columns, rows: Ints, launch: Ints) -> Mask:
    """Which of the operations `rows`, launched by the calls `launch`, are transfers that a collective launched."""
    found = np.zeros(len(rows), dtype=np.bool_)
    collectives = collective_operators(columns)
    (at,) = np.nonzero(launch != UNLAUNCHED)
    if not len(collectives) or not len(at):
        return found
    at = at[_innermost(columns, collectives, launch[at]) != NOWHERE]
    if not len(at):
        return found
    around = holding(columns, columns.rows(RANGE_CATEGORIES), columns.ts_ns[launch[at]])
    innermost = around[_innermost(columns, around, launch[at])]
    at = at[np.isin(innermost, collectives)]
    kernels = columns.of_category(COMMUNICATING_CATEGORIES, rows[at]) & columns.named(_transfers, rows[at])
    copies = columns.of_category(COPY_CATEGORIES, rows[at]) & columns.named(_BETWEEN_DEVICES.search, rows[at])
    found[at[kernels | copies]] = True
    names = columns.name_id[rows]
    communicating = np.setdiff1d(names[found], names[(launch != UNLAUNCHED) & ~found])
    return np.asarray(found | ((launch == UNLAUNCHED) & np.isin(names, communicating)), dtype=np.bool_)


def _transfers(name: str) -> bool:
    return _LOCAL.search(base_name(name)) is None


def _innermost(columns: Columns, ranges: Ints, calls: Ints) -> Ints:
    return Ranges.of_rows(columns, ranges).at(columns.thread[calls], columns.ts_ns[calls])
